"""What lossy sums compute beside what they send: predicted, compared and refitted."""

from dataclasses import replace

import jax
import pytest

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.core.run_record import Run
from jaxdist.core.step_breakdown import DeviceBreakdown, StepBreakdown
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compare import compare_prediction, recalibrate_cluster
from jaxdist.oracle.predict import predict

EACH = 1e-7
INT8 = Plan(mesh=MeshShape(data=4), reduce=ReductionConfig(algorithm="int8"))


@pytest.fixture(scope="module")
def subject():
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1")
    return StepDescriber(resolve_config("digits", words).config)


@pytest.fixture(scope="module")
def cluster():
    """The testbed, where packing to int8 was timed."""
    plain = load_cluster("testbed")
    packing = {"int8": SourcedNumber(EACH, "measured: a test")}
    return replace(plain, device=replace(plain.device, packing=packing))


def test_each_number_that_is_packed_is_paid_for_once(subject, cluster):
    layout = subject.layout(INT8)
    leaves = jax.tree.leaves(layout.replica_state_shapes.params)
    numbers = sum(leaves[place].size for place in layout.reduction.compressed_indices)
    said = predict(subject.describe(INT8), cluster)
    assert numbers > 50_000
    assert said.terms_s["packing"] == pytest.approx(EACH * numbers)
    assert said.step_s == pytest.approx(sum(said.terms_s.values()))


def test_sums_that_pack_nothing_and_ways_that_were_not_timed_cost_none(
    subject, cluster
):
    exact = subject.describe(Plan(mesh=MeshShape(data=4)))
    assert "packing" not in predict(exact, cluster).terms_s
    assert (
        "packing"
        not in predict(subject.describe(INT8), load_cluster("testbed")).terms_s
    )


def test_packing_that_takes_longer_is_of_the_devices(subject, cluster):
    """A run that was watched says so, and links stay as they are."""
    case = subject.describe(INT8)
    said = predict(case, cluster)
    own = ("compute", "packing", "update")
    took = {name: s * (3 if name in own else 1) for name, s in said.terms_s.items()}
    watched = DeviceBreakdown(device=0, steps=3, terms_s=took)
    measured = StepBreakdown(cores=8, processes=1, devices=(watched,))
    run = Run(name="a", experiment="digits", step_s=sum(took.values()), steps=10)
    found = compare_prediction(run, said, measured)
    better = recalibrate_cluster(cluster, [found])
    assert better.device.packing["int8"].value == pytest.approx(3 * EACH)
    assert better.device.packing["int8"].origin.startswith("fitted")
    before, after = cluster.levels[0].bandwidth, better.levels[0].bandwidth
    assert after.value == pytest.approx(before.value)
    assert predict(case, better).step_s == pytest.approx(run.step_s)


def test_a_miss_of_packing_names_its_numbers(subject):
    guessed = {"int8": SourcedNumber(EACH, "assumed: nobody timed it")}
    plain = load_cluster("testbed")
    cluster = replace(plain, device=replace(plain.device, packing=guessed))
    said = predict(subject.describe(INT8), cluster)
    watched = DeviceBreakdown(
        device=0, steps=3, terms_s={**said.terms_s, "packing": 9.0}
    )
    measured = StepBreakdown(cores=8, processes=1, devices=(watched,))
    step_s = sum(watched.terms_s.values())
    run = Run(name="a", experiment="digits", step_s=step_s, steps=10)
    first = compare_prediction(run, said, measured).mispredictions[0]
    assert first.term.name == "packing"
    assert "device.packing: nobody measured" in first.cause
