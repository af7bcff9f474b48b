"""Predicted steps: terms that follow from the ledger, the table and the shapes."""

import re
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxdist.collectives.hlo_collectives import COLLECTIVE_KINDS, wire_bytes
from jaxdist.core.cluster.device import EfficiencyCurve
from jaxdist.core.cluster.kernel_timings import KernelTiming, KernelTimings
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.kernel_shape import KernelShape
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.input.registry import open_data
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber, state_bytes
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.launch.training.job.job import make_job
from jaxdist.meshes.build import build_mesh
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.collective_times import collective_seconds, message_count
from jaxdist.oracle.compute_times import ComputeCostModel, stage_compute_times
from jaxdist.oracle.link_groups import LinkGroup
from jaxdist.oracle.predict import UPDATE_PASSES, predict
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import compile_program

FLAT = EfficiencyCurve(points=((1.0, 0.5),), origin="given: a test")


def flat(cluster, **changed):
    """The cluster, every kernel at half of the peak and started for nothing."""
    given = SourcedNumber(0.0, "given: a test")
    device = replace(cluster.device, efficiency=FLAT, launch=given, **changed)
    return replace(cluster, device=device)


@pytest.fixture(scope="module")
def measured(digits):
    """The same, each layer with seconds of a test: FLOPs at 1e9 a second."""
    layers = tuple(
        replace(
            layer,
            seconds_forward=layer.flops_forward / 1e9,
            seconds_backward=layer.flops_backward / 1e9,
        )
        for layer in digits.profile.layers
    )
    return replace(digits.profile, layers=layers)


def test_a_sum_takes_its_messages_and_its_bytes():
    group = LinkGroup(size=4, level="net", alpha=1e-3, bandwidth=1e6)
    sent = wire_bytes("all-reduce", 8000, 4)
    assert collective_seconds("all-reduce", 8000, 3, group) == 3 * 4 * 1e-3 + sent / 1e6
    assert collective_seconds("all-reduce", 8000, 3, replace(group, size=1)) == 0
    assert [message_count("all-to-all", p) for p in (1, 2, 8)] == [0, 1, 7]


def without_memory(device):
    """A device that passes over memory in no time: what is left are its kernels."""
    fast = replace(device.memory_bandwidth, value=1e30)
    return replace(device, memory_bandwidth=fast)


def test_measured_seconds_are_divided_as_the_ledger_divides_the_work(digits, measured):
    """Four devices do a quarter each; rows that are split repeat those of halos."""
    cluster = flat(load_cluster("testbed"))
    cluster = replace(cluster, device=without_memory(cluster.device))

    def whole(mesh):
        case = replace(digits.describe(Plan(mesh=mesh)), profile=measured)
        (one,) = stage_compute_times(case, cluster)
        return case.microbatches * (one.forward + one.backward)

    alone = whole(MeshShape())
    assert whole(MeshShape(data=4)) == pytest.approx(alone / 4)
    rows = whole(MeshShape(spatial_h=4))
    assert alone / 4 < rows < alone / 2


def test_a_slice_of_a_kernel_takes_more_than_its_share(digits, measured):
    """Correction 5: seconds go as work over the efficiency of its size."""
    case = replace(digits.describe(Plan(mesh=MeshShape(data=4))), profile=measured)
    cluster = flat(load_cluster("testbed"))
    curve = EfficiencyCurve(points=((1.0, 0.01), (1e9, 1.0)), origin="given: a test")
    steep = replace(cluster, device=replace(cluster.device, efficiency=curve))
    (even,), (uneven,) = (
        stage_compute_times(case, cluster),
        stage_compute_times(case, steep),
    )
    assert uneven.forward > 1.1 * even.forward


def test_kernels_that_were_timed_go_by_the_slice_that_a_device_has(digits):
    """Few rows are slow here and few filters are not: data costs, tensor does not."""

    def kernel(kind, uses, rate):
        shape = KernelShape(kind=kind, uses=uses, inputs=64, outputs=64)
        seconds = shape.flops / rate
        return KernelTiming(shape=shape, forward_s=seconds, backward_s=4 * seconds)

    peak = load_cluster("testbed").device.peak("float32").value

    def head(mesh, forward=1e9):
        ends = [kernel("product", uses, forward * uses) for uses in (1, 16, 256)]
        kernels = KernelTimings(origin="given: a test", peak=peak, timed=tuple(ends))
        machine = without_memory(flat(load_cluster("testbed")).device)
        device = replace(machine, kernels=kernels)
        case = digits.describe(Plan(mesh=mesh))
        (row,) = (layer for layer in case.profile.layers if layer.name == "head.dense")
        worker = ComputeCostModel(
            case=case,
            device=device,
            ledger=case.ledgers[0],
            microbatches=case.microbatches,
        )
        return row, worker.microbatch_time(row)

    row, one = head(MeshShape())
    assert row.kernel.kind == "product"
    whole = replace(row.kernel, uses=row.kernel.uses / digits.task.microbatches)
    assert whole.uses == pytest.approx(16, rel=0.01)
    assert one.backward == pytest.approx(4 * one.forward, rel=0.01)
    _, four = head(MeshShape(data=4))
    # A quarter of the rows is a quarter as fast here, about.
    assert four.forward > 0.6 * one.forward
    _, filters = head(MeshShape(tensor=2))
    assert filters.forward == pytest.approx(one.forward / 2, rel=0.1)


def test_a_layer_that_reads_the_input_has_one_gradient(digits):
    taps = KernelShape(kind="convolution", taps=9, uses=100, inputs=1, outputs=16)
    timed = KernelTiming(shape=taps, forward_s=1e-3, backward_s=4e-3)
    kernels = KernelTimings(origin="given: a test", peak=1e9, timed=(timed,))
    device = replace(flat(load_cluster("testbed")).device, kernels=kernels)
    case = digits.describe(Plan())
    first, *others = [row for row in case.profile.layers if row.kernel]
    worker = ComputeCostModel(
        case=case, device=device, ledger=case.ledgers[0], microbatches=4
    )
    assert first.flops_backward < 1.2 * first.flops_forward
    spent = worker.microbatch_time(first)
    assert spent.backward < 2.4 * spent.forward
    second = next(row for row in others if row.kernel.kind == "convolution")
    spent = worker.microbatch_time(second)
    assert spent.backward > 3.8 * spent.forward


def test_gradients_are_added_to_those_of_other_microbatches(digits, monkeypatch):
    """3 W / memory bandwidth: a sum of microbatches is read and written by each."""
    cluster, data = load_cluster("testbed"), digits.config.data
    part = replace(data, batch=data.batch // 4)
    alone = StepDescriber(replace(digits.config, data=part)).describe(
        Plan(microbatches=1)
    )
    (once,) = stage_compute_times(alone, cluster)
    (each,) = stage_compute_times(digits.describe(Plan(microbatches=4)), cluster)
    assert each.forward == pytest.approx(once.forward, rel=1e-3)
    passed = 3 * alone.profile.parameter_bytes / cluster.device.memory_bandwidth.value
    assert each.backward - once.backward == pytest.approx(passed, rel=0.02)
    # A pipeline adds up whatever it is given; its program knows no single microbatch.
    staged = digits.describe(Plan(mesh=MeshShape(pipe=2), microbatches=1))
    summed = stage_compute_times(staged, cluster)
    monkeypatch.setattr("jaxdist.oracle.compute_times.ACCUMULATION_PASSES", 0)
    bare = stage_compute_times(staged, cluster)
    more = sum(a.backward - b.backward for a, b in zip(summed, bare, strict=True))
    assert more == pytest.approx(passed, rel=0.02)


@pytest.mark.parametrize(
    ("schedule", "micro", "times"), [("gpipe", 8, 1), ("pipedream", 8, 8)]
)
def test_weights_that_move_after_every_round_take_an_update_each(
    digits, schedule, micro, times
):
    pipe = PipelineConfig(schedule=schedule)
    plan = Plan(mesh=MeshShape(pipe=4), microbatches=micro, pipe=pipe)
    case, cluster = digits.describe(plan), load_cluster("testbed")
    rate = cluster.device.memory_bandwidth.value
    once = UPDATE_PASSES * case.state_bytes["parameters"] / rate
    assert predict(case, cluster).terms_s["update"] == pytest.approx(times * once)


def test_mfu_is_the_networks_flops_over_those_of_the_devices_peak(digits):
    cluster = load_cluster("testbed")
    case = digits.describe(Plan(mesh=MeshShape(data=4), remat=True))
    found = predict(case, cluster)
    done = 4 * cluster.device.peak("float32").value * found.step_s
    # Blocks that are computed again add nothing to the FLOPs.
    assert found.to_dict()["mfu"] == pytest.approx(digits.profile.flops / done)


def test_sums_of_gradients_cost_what_the_ledger_says(digits):
    plan = Plan(mesh=MeshShape(data=4))
    cluster = load_cluster("testbed")
    found = predict(digits.describe(plan), cluster)
    rows = [
        row
        for row in digits.layout(plan).ledger.rows
        if row.what == "all-reduce" and row.axes == ("data",)
    ]
    level = cluster.levels[0]
    sent = wire_bytes("all-reduce", sum(row.payload for row in rows), 4)
    arrays = sum(row.arrays for row in rows)
    least = 4 * arrays * level.alpha.value + sent / level.bandwidth.value
    assert found.terms_s["all-reduce, data"] == pytest.approx(least, rel=0.2)
    assert found.step_s == pytest.approx(sum(found.terms_s.values()))


@pytest.mark.parametrize(
    "mesh",
    [
        MeshShape(data=4),
        MeshShape(fsdp=4),
        MeshShape(data=2, tensor=2),
        MeshShape(pipe=2, data=2),
    ],
)
def test_bytes_of_the_state_are_those_on_real_devices(digits, mesh):
    """Exact: what every device holds of arrays that lie there."""
    plan = Plan(mesh=mesh)
    config = digits.config
    job = make_job(config, plan, open_data(config.data, feature_spec(config))[0])
    real = jax.eval_shape(job.layout.init_state)
    places = jax.tree.map(lambda x: x.sharding, job.layout.state)
    there = sum(
        int(np.prod(place.shard_shape(x.shape))) * x.dtype.itemsize
        for x, place in zip(jax.tree.leaves(real), jax.tree.leaves(places), strict=True)
    )
    assert sum(state_bytes(digits.layout(plan)).values()) == there


def test_bytes_of_a_traced_step_are_those_of_the_compiler():
    """On a mesh without devices, within 5 % of temp + arguments + outputs - alias."""
    plan = Plan(mesh=MeshShape(data=2, fsdp=2))
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1")
    digits = StepDescriber(resolve_config("digits", words).config)
    found = predict(digits.describe_traced(plan), load_cluster("testbed"))
    layout = build_layout(digits.task, plan, build_mesh(plan), digits.shapes)
    needed = compile_program(layout).memory_bytes
    assert found.memory_bytes == pytest.approx(needed, rel=0.05)
    assert found.memory_bytes < needed < found.traced_bytes_with_margin
    assert (
        found.memory_by_term["parameters"]
        == state_bytes(digits.layout(plan))["parameters"]
    )


def test_no_room_is_said_to_be_enough_without_the_margin(digits):
    cluster = load_cluster("testbed")
    found = predict(digits.describe_traced(Plan()), cluster)
    assert found.fits
    assert not replace(found, memory_capacity=found.memory_bytes).fits
    assert replace(found, memory_capacity=found.traced_bytes_with_margin).fits


def test_what_was_not_traced_needs_the_margin_for_all_that_is_estimated(digits):
    found = predict(digits.describe(Plan()), load_cluster("testbed"))
    assert (
        found.traced_bytes_with_margin
        == found.memory_bytes
        < found.untraced_bytes_with_margin
    )
    assert not replace(found, memory_capacity=found.untraced_bytes_with_margin - 1).fits
    assert replace(found, memory_capacity=found.untraced_bytes_with_margin).fits


def test_a_thousand_devices_are_described_without_any(digits):
    config = replace(digits.config, data=replace(digits.config.data, batch=4096))
    plan = Plan(mesh=MeshShape(data=1024))
    found = predict(StepDescriber(config).describe(plan), load_cluster("abci"))
    assert found.fits
    assert found.provenance["levels.host.alpha"].startswith("published")
    curve = load_cluster("abci").device.efficiency
    assert found.provenance["device.efficiency"] == curve.origin


def test_what_a_cluster_cannot_do_is_refused(digits):
    with pytest.raises(BadInput, match="needs more devices"):
        predict(digits.describe(Plan(mesh=MeshShape(data=8))), load_cluster("testbed"))
    case = replace(digits.describe(Plan()), dtype="int8")
    with pytest.raises(BadInput, match="no FLOP/s for int8"):
        predict(case, load_cluster("testbed"))


def test_slow_input_is_a_term_of_its_own(digits):
    case = digits.describe(Plan(mesh=MeshShape(data=4)))
    cluster = load_cluster("testbed")
    before = predict(case, cluster)
    rate = SourcedNumber(case.batch_bytes / (before.step_s + 1.0), "given: a test")
    slow = predict(case, replace(cluster, input_rate=rate))
    assert "input" not in before.terms_s
    assert slow.terms_s["input"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "words",
    [
        ("plan.mesh.data=4", "plan.mesh.spatial_h=1"),
        ("plan.mesh.data=2", "plan.mesh.spatial_h=2"),
        ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "plan.mesh.fsdp=4"),
        ("plan.mesh.data=2", "plan.mesh.spatial_h=1", "plan.mesh.tensor=2"),
    ],
)
def test_the_ledger_knows_how_many_arrays_layers_move(words):
    """As many as collectives of the compiled step have operands."""
    subject = StepDescriber(resolve_config("digits", words).config)
    plan = subject.config.plan
    layout = build_layout(subject.task, plan, build_mesh(plan), subject.shapes)
    text = compile_program(layout).compiled_step.as_text()
    compiled, planned = Counter(), Counter()
    for kind, operands in re.findall(
        rf" ({'|'.join(COLLECTIVE_KINDS)})\(([^)]*)\)", text
    ):
        compiled[kind] += operands.count("%")
    for row in layout.ledger.rows:
        planned[row.kind] += row.arrays
    assert planned == compiled
