"""What a device keeps and reads of weights that others share with it."""

from dataclasses import replace

import jax
import pytest
from jax.sharding import PartitionSpec

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compute_times import ComputeCostModel
from jaxdist.oracle.memory import device_memory
from jaxdist.pipeline.sync_executor import ScheduleRunner
from jaxdist.train.pipeline.sync_gradients import make_training_pipeline


@pytest.fixture(scope="module")
def subject():
    words = ("model.depth=2", "model.vocabulary=256", "plan.mesh.data=1")
    return StepDescriber(resolve_config("characters", words).config)


def memory(subject, micro=4, **axes):
    plan = Plan(mesh=MeshShape(**axes), microbatches=micro)
    return device_memory(subject.describe(plan), load_cluster("testbed").device)


def test_stages_keep_the_parameters_that_fsdp_shares_out_whole(subject):
    """Put together once for all microbatches, and so are the sums of gradients."""
    shared, alone = memory(subject, pipe=2, fsdp=2), memory(subject, pipe=2, data=2)
    assert shared["parameters"] < 0.6 * alone["parameters"]
    assert shared["gathered"] == pytest.approx(alone["parameters"], rel=0.01)
    assert shared["gradients"] == pytest.approx(alone["parameters"], rel=0.01)
    assert "gathered" not in alone
    plan = Plan(mesh=MeshShape(pipe=2, fsdp=2), microbatches=4)
    needed = subject.describe_traced(plan).traced_bytes["temporaries"]
    assert needed > shared["gathered"] + shared["gradients"]


def test_microbatches_add_whole_gradients_up(subject):
    once, often = memory(subject, 1, fsdp=4), memory(subject, 2, fsdp=4)
    whole = memory(subject, 2, data=4)["gradients"]
    assert once["gradients"] < 0.3 * whole
    assert often["gradients"] == pytest.approx(whole, rel=0.01)


def test_a_kernel_reads_its_own_part_of_the_weights(subject):
    layer = next(x for x in subject.profile.layers if x.name == "block0.mlp.up")
    device = load_cluster("testbed").device

    def passed(tensor):
        case = subject.describe(Plan(mesh=MeshShape(tensor=tensor)))
        (ledger,) = case.ledgers
        worker = ComputeCostModel(
            case=case, device=device, ledger=ledger, microbatches=1
        )
        return worker.weight_bytes(layer, worker.work_fraction(layer))

    assert passed(1) == layer.parameter_bytes
    assert passed(4) == pytest.approx(layer.parameter_bytes / 4, rel=0.01)


@pytest.mark.parametrize("remat", [False, True])
def test_an_input_in_flight_is_of_one_of_a_devices_stages(remat):
    """With two stages a device twice as many are in flight, each half as large."""
    words = ("model.depth=8", "model.vocabulary=256", "plan.mesh.data=1")
    deep = StepDescriber(resolve_config("characters", words).config)

    def activations(**pipe):
        one = Plan(mesh=MeshShape(pipe=2), microbatches=8, pipe=PipelineConfig(**pipe))
        plan = replace(one, remat=remat)
        return device_memory(deep.describe(plan), load_cluster("testbed").device)[
            "activations"
        ]

    whole, halves = activations(), activations(schedule="interleaved", chunks=2)
    assert halves == pytest.approx(whole, rel=0.2)


def test_a_table_that_the_last_block_asks_is_work_of_the_last_stage(subject):
    case = subject.describe(Plan(mesh=MeshShape(pipe=2, tensor=2), microbatches=2))
    stages = [{layer.name for layer in case.compute_layers(stage)} for stage in (0, 1)]
    assert "embed.tokens" in stages[1] - stages[0]
    assert stages[0] | stages[1] == {layer.name for layer in case.profile.layers}
    # Its rows are split over the tensor axis, and so is that work.
    table = next(x for x in case.profile.layers if x.name == "embed.tokens")
    assert case.ledgers[1].layer_flops["embed.tokens"] == pytest.approx(
        table.flops / 2, rel=0.01
    )


@pytest.mark.parametrize(("then", "times"), [("repeat", 4), ("samples", 1)])
def test_work_behind_the_split_of_images_is_repeated_or_dealt_out(digits, then, times):
    """That of norms and pools as well, of which the ledger has no FLOPs."""
    device = load_cluster("testbed").device
    plan = Plan(mesh=MeshShape(spatial_h=4), microbatches=1)
    part = replace(plan, spatial_end="block2", spatial_end_mode=then)
    found = []
    for one in (plan, part):
        case = digits.describe(one)
        (ledger,) = case.ledgers
        found.append(
            ComputeCostModel(case=case, device=device, ledger=ledger, microbatches=1)
        )
    for layer in digits.profile.layers:
        behind = layer.block in ("block2", "block3", "head")
        # Rows are dealt out unevenly in deep blocks, so not to the last FLOP.
        want = (times if behind else 1) / 4
        assert found[1].work_fraction(layer) == pytest.approx(want, rel=0.1), layer.name
    most = [device_memory(worker.case, device)["activations"] for worker in found]
    assert most[1] > 1.5 * most[0] if times > 1 else most[1] <= 1.1 * most[0]


@pytest.mark.parametrize(
    ("name", "remat", "near"),
    [
        ("digits", False, 0.01),
        ("characters", False, 0.01),
        ("digits", True, 0.6),
        ("characters", True, 0.1),
    ],
)
def test_what_is_kept_for_gradients_of_weights_is_the_ring_of_the_program(
    name, remat, near
):
    words = ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "optim.accumulate=4")
    words = words if name == "digits" else (*words[::2], "model.vocabulary=256")
    subject = StepDescriber(resolve_config(name, words).config)
    plan = Plan(
        mesh=MeshShape(pipe=2),
        microbatches=4,
        remat=remat,
        pipe=PipelineConfig(schedule="zb-h1"),
    )
    case = replace(subject.describe(plan), traced_bytes={})
    found = device_memory(case, load_cluster("testbed").device)["weight residuals"]

    layout, rings = subject.layout(plan), []

    def local(state, batch):
        pipe, micro = make_training_pipeline(layout, state, batch)
        carry = ScheduleRunner(
            pipe, state.params, state.stats, micro, graded=True
        ).initial_carry()
        rings.append(sum(x.nbytes for x in jax.tree.leaves(carry.weight_kept)))
        return carry.total[None]

    specs = jax.tree.map(lambda x: x.sharding.spec, layout.state)
    batch = layout.padded_shapes(layout.batch_shapes)
    jax.eval_shape(
        layout.shard_map(local, specs, batch, PartitionSpec("pipe")),
        layout.state,
        batch,
    )
    assert found == pytest.approx(rings[0], rel=near)
