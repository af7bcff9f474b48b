"""A described step is the same whatever was described before it."""

from dataclasses import replace

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber, fit_batch_shapes
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.profile.repeated_blocks import RepeatedBlocks
from jaxdist.profile.trace import TraceCache

PLANS = (
    Plan(mesh=MeshShape(data=4)),
    Plan(mesh=MeshShape(data=2, fsdp=2)),
    Plan(mesh=MeshShape(fsdp=4)),
    Plan(mesh=MeshShape(fsdp=4), remat=True),
    Plan(mesh=MeshShape(fsdp=4), remat=True, remat_end="block2"),
    Plan(mesh=MeshShape(fsdp=4), zero=1),
    Plan(mesh=MeshShape(data=2, spatial_h=2)),
    Plan(mesh=MeshShape(spatial_h=4), spatial_end="head"),
    Plan(mesh=MeshShape(spatial_h=2), spatial_end="head", spatial_end_mode="samples"),
    Plan(mesh=MeshShape(data=2, tensor=2)),
    Plan(mesh=MeshShape(tensor=2), tensor_strategy="filter"),
    Plan(mesh=MeshShape(pipe=2, data=2)),
    Plan(mesh=MeshShape(pipe=2, spatial_h=2)),
    Plan(mesh=MeshShape(pipe=2, data=2), pipe=PipelineConfig(cuts=("block1",))),
    Plan(mesh=MeshShape(pipe=2, tensor=2), remat=True),
    Plan(mesh=MeshShape(data=2, fsdp=2), microbatches=8),
    Plan(
        mesh=MeshShape(pipe=2, data=2),
        microbatches=4,
        pipe=PipelineConfig(schedule="gpipe"),
    ),
)


@pytest.fixture(scope="module")
def subject():
    words = ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "optim.accumulate=2")
    return StepDescriber(resolve_config("digits", words).config)


@pytest.fixture(scope="module")
def warm(subject):
    for plan in PLANS:
        subject.describe(plan)
    return subject.trace_cache


@pytest.mark.parametrize("plan", PLANS, ids=[repr(n) for n in range(len(PLANS))])
def test_what_was_read_before_changes_no_case(subject, warm, plan):
    subject.trace_cache = warm
    again = subject.describe(plan)
    subject.trace_cache = TraceCache()
    assert again == subject.describe(plan)


def test_what_was_read_of_other_splits_of_experts_changes_no_case():
    words = ("model.size=tiny", "data.context=16", "data.batch=8", "plan.mesh.fsdp=1")
    config = resolve_config("mixtral", (*words, "data.name=synthetic")).config
    meshes = [{"expert": 2, axis: 2} for axis in ("data", "fsdp", "tensor", "pipe")]
    warm = StepDescriber(config)
    for mesh in ({"data": 4}, *meshes, {"expert": 4}, {"data": 2, "context": 2}):
        plan = Plan(mesh=MeshShape(**mesh), microbatches=2)
        assert warm.describe(plan) == StepDescriber(config).describe(plan)


CLUSTER = load_cluster("dgx-a100")
INTERLEAVED = PipelineConfig(schedule="interleaved", chunks=2)
TEXT = (
    Plan(mesh=MeshShape(data=4)),
    Plan(mesh=MeshShape(fsdp=4), remat=True),
    Plan(mesh=MeshShape(fsdp=4), remat=True, remat_end="block3"),
    Plan(mesh=MeshShape(fsdp=2, tensor=2), microbatches=4),
    Plan(mesh=MeshShape(tensor=2), tensor_strategy="sequence"),
    Plan(
        mesh=MeshShape(pipe=4, tensor=2),
        microbatches=4,
        pipe=PipelineConfig(cuts=("block1", "block3", "block5")),
    ),
    Plan(mesh=MeshShape(pipe=2, fsdp=2), microbatches=2, pipe=INTERLEAVED),
)


@pytest.fixture(scope="module")
def text():
    words = ("model.depth=6", "optim.clip=1.0", "optim.name=adamw", "plan.mesh.data=1")
    return StepDescriber(resolve_config("characters", words).config)


@pytest.mark.parametrize("plan", TEXT, ids=[one.label for one in TEXT])
def test_a_case_from_few_of_equal_blocks_is_that_from_all(text, plan):
    text.trace_cache = TraceCache()
    short = text.describe(plan)
    assert (
        len(text.trace_cache.get_or_compute("alike", RepeatedBlocks).representatives)
        == 3
    )
    text.trace_cache = TraceCache()
    text.trace_cache.get_or_compute("alike", RepeatedBlocks)
    whole = text.describe(plan)
    assert replace(short, equal_ranks=whole.equal_ranks) == whole
    assert predict(short, CLUSTER) == predict(whole, CLUSTER)
    # Of four stages those in the middle are equal.
    assert short.equal_ranks == ((0, 1, 1, 3) if plan.pipe.cuts else whole.equal_ranks)
    assert whole.equal_ranks == tuple(range(plan.stages > 1 and plan.mesh.pipe))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(mesh=MeshShape(fsdp=2), zero=1),
        Plan(mesh=MeshShape(pipe=2), pipe=PipelineConfig(schedule="pipedream")),
    ],
    ids=["zero 1", "pipedream"],
)
def test_a_plan_is_refused_after_one_that_is_taken(plan):
    words = ("optim.name=schedule_free_adamw", "plan.mesh.data=1")
    describer = StepDescriber(resolve_config("characters", words).config)
    describer.describe(replace(plan, zero=3, pipe=PipelineConfig()))
    with pytest.raises(BadInput, match="schedule-free optimizers do not go"):
        describer.describe(plan)


@pytest.mark.parametrize("plan", TEXT, ids=[one.label for one in TEXT])
def test_what_devices_hold_has_the_shapes_that_are_said(text, plan):
    layout = text.layout(plan)
    found = jax.eval_shape(layout.state_layout.to_device, layout.task.state)
    form = [(x.shape, x.dtype) for x in jax.tree.leaves(layout.replica_state_shapes)]
    assert form == [(x.shape, x.dtype) for x in jax.tree.leaves(found)]
    assert jax.tree.structure(layout.replica_state_shapes) == jax.tree.structure(found)


def test_a_network_on_shapes_has_the_state_of_its_first_step(text):
    task = text.task
    first = jax.eval_shape(task.init)
    form = [(x.shape, x.dtype) for x in jax.tree.leaves(task.state)]
    assert form == [(x.shape, x.dtype) for x in jax.tree.leaves(first)]
    assert jax.tree.structure(task.state) == jax.tree.structure(first)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["imagenet2012", "folder", "tfds:cifar10", "arrays"]),
    st.none() | st.integers(32, 512),
    st.sampled_from([8, 64]),
)
def test_a_step_without_its_data_is_that_with_data(tmp_path_factory, name, size, batch):
    """A data set that is not here yet is read in the size that is set."""
    nowhere = tmp_path_factory.getbasetemp() / "nowhere"
    shared = "model.size=tiny", f"data.size={size}", f"data.batch={batch}"
    absent = (f"data.name={name}", f"data.dir={nowhere}", f"data.path={nowhere}")
    images = [
        fit_batch_shapes(resolve_config("resnet50", [*shared, *words]).config)[1][
            "image"
        ]
        for words in (absent, ("data.name=synthetic",))
    ]
    assert images[0] == images[1]


def test_a_name_of_no_data_set_is_refused_in_a_prediction():
    with pytest.raises(BadInput, match="no data set named synthetik"):
        StepDescriber(resolve_config("resnet50", ["data.name=synthetik"]).config)


@pytest.mark.parametrize(
    ("mesh", "clip", "rows"),
    [
        # Clipping asks for it anyway.
        ({"fsdp": 2}, 1, 0),
        ({"pipe": 2, "tensor": 2}, 0, 2),
    ],
)
def test_what_the_norm_of_the_gradient_costs_is_in_the_ledger(mesh, clip, rows):
    def lengths(recorded):
        words = ("model.depth=2", f"optim.clip={clip}", "plan.mesh.data=1")
        config = resolve_config(
            "characters", (*words, f"run.gradient_norm={recorded}")
        ).config
        plan = Plan(mesh=MeshShape(**mesh), microbatches=2 if "pipe" in mesh else 0)
        ledger = StepDescriber(config).describe(plan).ledgers[0]
        return [row for row in ledger.rows if row.what == "lengths"]

    with_norm, without = lengths("true"), lengths("false")
    assert with_norm[rows:] == without
    assert [x.axes for x in with_norm[:rows]] == [("pipe",), ("tensor",)][:rows]
