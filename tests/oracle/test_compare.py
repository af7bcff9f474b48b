"""Runs beside their predictions: accuracy, and clusters fitted to what was measured."""

import statistics
from dataclasses import replace

import pytest

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.run_record import Run
from jaxdist.core.step_breakdown import DeviceBreakdown, LayerTime, StepBreakdown
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compare import (
    check_held_out,
    compare_prediction,
    recalibrate_cluster,
)
from jaxdist.oracle.compute_times import step_layer_times
from jaxdist.oracle.predict import predict

MESHES = (
    MeshShape(data=4),
    MeshShape(),
    MeshShape(data=2, spatial_h=2),
    MeshShape(fsdp=4),
    MeshShape(data=2, tensor=2),
    MeshShape(spatial_h=4),
    MeshShape(data=2),
)


@pytest.fixture(scope="module")
def cases():
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1")
    subject = StepDescriber(resolve_config("digits", words).config)
    return [subject.describe(Plan(mesh=mesh)) for mesh in MESHES]


def ran(name, seconds, **more):
    return Run(name=name, experiment="digits", step_s=seconds, steps=10, **more)


def wrong(cluster):
    """Devices three times as fast as they are, links half as fast."""
    device = cluster.device
    flops = {
        d: SourcedNumber(3 * r.value, "given: wrong") for d, r in device.flops.items()
    }
    (level,) = cluster.levels
    slow = replace(
        level,
        bandwidth=SourcedNumber(level.bandwidth.value / 2, "given: wrong"),
        alpha=SourcedNumber(level.alpha.value * 2, "given: wrong"),
    )
    return replace(cluster, device=replace(device, flops=flops), levels=(slow,))


def error(cluster, case, truth):
    return abs(predict(case, cluster).step_s / truth - 1)


def test_one_recalibration_halves_the_error_of_runs_it_has_not_seen(cases):
    cluster = load_cluster("testbed")
    truths = [predict(case, cluster).step_s for case in cases]
    false = wrong(cluster)
    seen = [
        compare_prediction(
            ran(f"r{place}", truths[place]), predict(cases[place], false)
        )
        for place in (0, 1, 2)
    ]
    better = recalibrate_cluster(false, seen)
    others = list(zip(cases[3:], truths[3:], strict=True))
    before = statistics.median(error(false, case, truth) for case, truth in others)
    after = statistics.median(error(better, case, truth) for case, truth in others)
    assert after < before / 2


def test_one_run_that_was_watched_is_enough(cases):
    cluster = load_cluster("testbed")
    false = wrong(cluster)
    said = predict(cases[0], cluster)
    # As much again was spent waiting for samples, which no link is to blame for.
    watched = seen(said.terms_s | {"between steps": said.step_s})
    run = ran("a", 2 * said.step_s, phases_s={"input": 20 * said.step_s})
    better = recalibrate_cluster(
        false, [compare_prediction(run, predict(cases[0], false), watched)]
    )
    truths = [predict(case, cluster).step_s for case in cases]
    others = list(zip(cases[1:], truths[1:], strict=True))
    before = statistics.median(error(false, case, truth) for case, truth in others)
    after = statistics.median(error(better, case, truth) for case, truth in others)
    assert after < before / 4


def test_a_watched_run_that_moves_nothing_says_nothing_of_links(cases):
    cluster = load_cluster("testbed")
    said = predict(cases[1], cluster)  # one device
    run = ran("a", 2 * said.step_s)
    watched = seen({name: 2 * s for name, s in said.terms_s.items()})
    better = recalibrate_cluster(cluster, [compare_prediction(run, said, watched)])
    assert better.levels[0].bandwidth.value == cluster.levels[0].bandwidth.value / 2
    assert predict(cases[1], better).step_s == pytest.approx(run.step_s)


def test_one_run_makes_all_as_much_slower(cases):
    cluster = load_cluster("testbed")
    said = predict(cases[0], cluster)
    better = recalibrate_cluster(
        cluster, [compare_prediction(ran("a", 2 * said.step_s), said)]
    )
    assert predict(cases[0], better).step_s == pytest.approx(2 * said.step_s)


@pytest.mark.parametrize(("slower", "factor"), [(1000, 20), (1e-3, 0.05)])
def test_a_recalibration_stays_within_its_bounds(cases, slower, factor):
    cluster = load_cluster("testbed")
    said = predict(cases[0], cluster)
    better = recalibrate_cluster(
        cluster, [compare_prediction(ran("a", slower * said.step_s), said)]
    )
    before, after = cluster.levels[0].bandwidth, better.levels[0].bandwidth
    assert before.value / after.value == pytest.approx(factor)


def test_a_run_is_not_compared_with_what_was_fitted_to_it(cases):
    cluster = load_cluster("testbed")
    run = ran("a", 1.0)
    better = recalibrate_cluster(
        cluster, [compare_prediction(run, predict(cases[0], cluster))]
    )
    with pytest.raises(BadInput, match="never tested on what it was fitted on"):
        check_held_out(run, better)
    check_held_out(ran("a", 1.5), better)  # another run of the same name


def test_accuracy_and_the_interval_are_those_of_the_step(cases):
    said = predict(cases[0], load_cluster("testbed"))
    found = compare_prediction(ran("a", said.step_s / 0.8, memory_bytes=10**7), said)
    assert found.step.accuracy == pytest.approx(0.8)
    assert found.in_interval
    assert found.terms[-1].measured == 10**7
    off = compare_prediction(ran("a", 10 * said.step_s), said)
    assert not off.in_interval
    assert "nobody measured" in off.likely_cause


def seen(terms, layers=(), cores=8, processes=1):
    one = DeviceBreakdown(device=0, steps=3, terms_s=terms, layers_s=dict(layers))
    return StepBreakdown(cores=cores, processes=processes, devices=(one,))


def test_measured_terms_are_shares_of_the_median_step(cases):
    said = predict(cases[0], load_cluster("testbed"))
    watched = seen({"compute": 0.3, "all-reduce, data": 0.5, "between steps": 0.2})
    run = ran("a", 0.5, phases_s={"input": 0.6})
    found = compare_prediction(run, said, watched)
    measured = {t.name: t.measured for t in found.terms if t.unit == "s"}
    assert measured["compute"] == pytest.approx(0.15)
    assert measured["all-reduce, data"] == pytest.approx(0.25)
    assert measured["input"] == pytest.approx(0.06)  # it waited for 0.6 s in 10 steps
    assert measured["other"] == pytest.approx(0.04)
    assert sum(measured.values()) == pytest.approx(run.step_s)
    assert set(said.terms_s) < set(measured)


def test_the_two_largest_misses_are_named_with_a_cause(cases):
    said = predict(cases[0], load_cluster("testbed"))
    terms = said.terms_s | {"compute": said.terms_s["compute"] + 7, "waiting": 9.0}
    layers = {"stem.conv": LayerTime(forward=3.0), "head.dense": LayerTime(forward=1.0)}
    watched = seen(terms, layers, cores=8)
    found = compare_prediction(ran("a", watched.busiest.step_s), said, watched)
    first, second = found.mispredictions
    assert (first.term.name, second.term.name) == ("waiting", "compute")
    assert first.seconds == pytest.approx(9.0)
    assert "different times" in first.cause
    assert "most of it in stem.conv" in second.cause
    assert second.remedy == (
        "jaxdist compare a --cluster testbed --recalibrate better.json"
    )
    typed = compare_prediction(
        ran("a", 1.0), said, watched, command_args="runs/a --cluster mine.json"
    )
    assert "compare runs/a --cluster mine.json --rec" in typed.mispredictions[1].remedy
    assert [layer.name for layer in found.layers] == ["stem.conv", "head.dense"]
    crowded = compare_prediction(ran("a", 1.0), said, seen(terms, cores=0))
    assert "share 0 cores" in crowded.mispredictions[0].cause


def test_what_moves_for_long_may_be_a_wait_for_processes_that_nobody_watched(cases):
    said = predict(cases[0], load_cluster("testbed"))
    moved = next(term for term in said.terms_s if "all-reduce" in term)
    for more, processes, waits in ((7.0, 4, True), (7.0, 1, False), (-0.5, 4, False)):
        terms = said.terms_s | {moved: max(0.0, said.terms_s[moved] + more)}
        watched = seen(terms, processes=processes)
        found = compare_prediction(ran("a", watched.busiest.step_s), said, watched)
        assert found.mispredictions[0].term.name == moved
        assert ("wait for other processes" in found.mispredictions[0].cause) is waits


def test_a_term_of_which_a_part_is_hidden_rests_on_the_overlap(cases):
    cluster, half = load_cluster("testbed"), SourcedNumber(0.5, "assumed: a test")
    case = replace(cases[0], microbatches=1)
    for overlap, named in ((cluster.overlap, False), (half, True)):
        said = predict(case, replace(cluster, overlap=overlap))
        for moved, hides in (("all-reduce, data", True), ("statistics, data", False)):
            terms = said.terms_s | {moved: said.terms_s[moved] + 7}
            watched = seen(terms)
            found = compare_prediction(ran("a", watched.busiest.step_s), said, watched)
            assert found.mispredictions[0].term.name == moved
            assert ("overlap" in found.mispredictions[0].cause) == (named and hides)


def test_a_run_that_nobody_watched_misses_nothing_by_term(cases):
    said = predict(cases[0], load_cluster("testbed"))
    found = compare_prediction(ran("a", 1.0), said)
    assert (found.mispredictions, found.layers) == ((), ())


def test_layers_add_up_to_computing(cases):
    cluster = load_cluster("testbed")
    for case in cases[:2]:
        total = sum(pair.both for pair in step_layer_times(case, cluster).values())
        assert total == pytest.approx(predict(case, cluster).terms_s["compute"])
