"""Attention: its work is dealt out with its heads, and its weights are kept."""

from dataclasses import replace

import pytest

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compute_times import ComputeCostModel
from jaxdist.oracle.memory import device_memory
from jaxdist.oracle.predict import predict
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger


@pytest.fixture(scope="module")
def subject():
    words = ("model.depth=4", "model.vocabulary=256", "plan.mesh.data=1")
    return StepDescriber(resolve_config("characters", words).config)


def attention(subject):
    return next(x for x in subject.profile.layers if x.name == "block0.attention")


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_what_attention_does_is_dealt_out_with_its_heads(subject, tensor):
    case = subject.describe(Plan(mesh=MeshShape(data=2, tensor=tensor)))
    worker = ComputeCostModel(
        case=case,
        device=load_cluster("testbed").device,
        ledger=case.ledgers[0],
        microbatches=1,
    )
    assert worker.work_fraction(attention(subject)) == pytest.approx(
        1 / (2 * tensor), rel=0.05
    )


def test_what_attention_does_is_dealt_out_with_its_tokens(subject):
    case = subject.describe(Plan(mesh=MeshShape(context=2, tensor=2)))
    device = load_cluster("testbed").device
    worker = ComputeCostModel(
        case=case, device=device, ledger=case.ledgers[0], microbatches=1
    )
    assert worker.work_fraction(attention(subject)) == pytest.approx(1 / 4, rel=0.05)


def test_a_ring_hides_behind_attention_and_a_gather_does_not(subject):
    whole = SourcedNumber(1.0, "given: a test")
    cluster = load_cluster("testbed").with_number("overlap", whole)
    found = {}
    for form in ("ring", "all_gather", "all_to_all"):
        plan = Plan(mesh=MeshShape(context=4), context=form)
        found[form] = predict(subject.describe(plan), cluster)
    moved, pulled = "attention, context", "attention gradients, context"
    hidden = found["ring"].overlapped_s
    assert hidden[moved] > 0 < hidden[pulled]
    # Of four turns three are beside a hop, and hops take longer here.
    assert hidden[moved] + hidden[pulled] < found["ring"].terms_s["compute"]
    for form in ("all_gather", "all_to_all"):
        assert not {moved, pulled} & found[form].overlapped_s.keys()
    assert pulled not in found["all_to_all"].terms_s


def test_layers_that_compute_nothing_are_nobodys_measure():
    """Two without FLOPs in a module, of which a plan says something all the same."""
    layers = tuple(
        LayerProfile(name=name, kind="Norm") for name in ("block", "block.a", "block.b")
    )
    plan = Plan(mesh=MeshShape(data=2, tensor=2))
    ledger = Ledger(plan=plan, rows=(), layer_flops={"block.a": 1, "block.b": 1})
    profile = Profile(model="m", inputs=(), batch=4, layers=layers)
    case = StepDescription(profile=profile, plan=plan, ledgers=(ledger,))
    device = load_cluster("testbed").device
    worker = ComputeCostModel(case=case, device=device, ledger=ledger, microbatches=1)
    assert [worker.work_fraction(layer) for layer in layers] == [0.5] * 3


def test_attention_keeps_a_weight_for_each_pair_of_tokens(subject):
    samples, heads, tokens = 16, 4, 128
    assert attention(subject).inner_bytes == samples * heads * tokens**2 * 4


def test_with_remat_the_inside_of_one_block_is_there_once(subject):
    def activations(micro, schedule_depth, remat):
        plan = Plan(
            mesh=MeshShape(pipe=schedule_depth), microbatches=micro, remat=remat
        )
        return device_memory(subject.describe(plan), load_cluster("testbed").device)[
            "activations"
        ]

    # Four microbatches in flight keep four inputs of blocks, and one block's inside.
    one, four = activations(4, 1, True), activations(4, 4, True)
    assert four < 4 * one
    assert activations(4, 4, False) > four


def test_more_microbatches_need_no_larger_buffers(subject):
    def buffers(micro):
        plan = Plan(mesh=MeshShape(pipe=2, tensor=2), microbatches=micro)
        return device_memory(subject.describe(plan), load_cluster("testbed").device)[
            "buffers"
        ]

    assert buffers(8) <= buffers(4) <= buffers(2)


@pytest.mark.slow  # tests/targets reads it from programs
def test_with_the_kernels_of_accelerators_no_weight_is_kept(subject):
    described = {
        platform: StepDescriber(subject.config, platform) for platform in ("tpu", "cpu")
    }
    fused, written = (attention(described[platform]) for platform in ("tpu", "cpu"))
    samples, heads, tokens, features = 16, 4, 128, 32
    # The result, and a number for each query of each head.
    assert fused.inner_bytes == samples * heads * tokens * (features + 1) * 4
    assert written.inner_bytes == samples * heads * tokens**2 * 4
    assert fused.flops_forward == pytest.approx(written.flops_forward, abs=2)
    assert fused.flops_backward == pytest.approx(written.flops_backward, abs=2)
    plan = Plan(mesh=MeshShape(data=2, tensor=2))
    traced = {k: x.describe_traced(plan) for k, x in described.items()}
    peaks = {k: x.traced_bytes["temporaries"] for k, x in traced.items()}
    assert peaks["tpu"] < peaks["cpu"]
    # Written out everywhere, where that is asked for.
    config = replace(subject.config, plan=Plan(attention="einsum"))
    assert attention(StepDescriber(config, "tpu")) == written
