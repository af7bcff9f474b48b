"""Steps on hosts of several kinds: what waits for what."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.axes import AXES
from jaxdist.core.cluster.host_group import GroupLink, HostGroup, InterGroupLink
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compute_times import stage_compute_times
from jaxdist.oracle.link_groups import link_group
from jaxdist.oracle.predict import predict
from jaxdist.oracle.rank_devices import collective_groups, rank_groups
from jaxdist.oracle.stage_times import stage_times
from jaxdist.planner.explain import explain_seconds

BASE = load_cluster("testbed")
PLANS = {
    "data": Plan(mesh=MeshShape(data=4)),
    "fsdp": Plan(mesh=MeshShape(data=2, fsdp=2)),
    "tensor": Plan(mesh=MeshShape(data=2, tensor=2)),
    "stages": Plan(mesh=MeshShape(pipe=2, data=2), microbatches=4),
    "inside": Plan(mesh=MeshShape(pipe=2, data=2), microbatches=4, placement=("pipe",)),
    "replicas": Plan(
        mesh=MeshShape(pipe=3),
        microbatches=4,
        pipe=PipelineConfig(schedule="pipedream", replicas=(2, 1)),
    ),
}


def number(value):
    return SourcedNumber(value, "given: a test")


def scaled(device, factor, memory=None):
    """A device that does everything so many times as fast."""
    return replace(
        device,
        name=f"CPU x {factor:g}",
        flops={name: number(factor * x.value) for name, x in device.flops.items()},
        memory_bandwidth=number(factor * device.memory_bandwidth.value),
        launch=number(device.launch.value / factor),
        memory=device.memory if memory is None else number(memory),
    )


def uneven(*kinds, links=(), between=()):
    """The four hosts of the testbed in groups, (hosts, device) each."""
    groups = tuple(
        HostGroup(name=f"g{i}", hosts=hosts, device=device, links=tuple(links))
        if i == len(kinds) - 1
        else HostGroup(name=f"g{i}", hosts=hosts, device=device)
        for i, (hosts, device) in enumerate(kinds)
    )
    return replace(BASE, host_groups=groups, inter_group_links=tuple(between))


def all_of(device):
    return replace(BASE, device=device)


FAST, SLOW = scaled(BASE.device, 4.0), scaled(BASE.device, 0.5)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_equal_kinds_are_one_kind(digits, plan):
    """Also where groups have links of their own that are those of the levels."""
    case, (level,) = digits.describe(plan), BASE.levels
    whole = predict(case, BASE)
    same = GroupLink(level="net", alpha=level.alpha, bandwidth=level.bandwidth)
    for links in ((), (same,)):
        found = predict(case, uneven((1, None), (3, replace(BASE.device)), links=links))
        assert found.terms_s == whole.terms_s
        assert found.memory_by_term == whole.memory_by_term
        assert found.memory_capacity == whole.memory_capacity
        assert found.overlapped_s == whole.overlapped_s
        assert found.interval == whole.interval


@pytest.mark.parametrize("name", ["data", "fsdp", "tensor"])
@pytest.mark.parametrize("hosts", [1, 3])
def test_a_step_without_stages_is_as_fast_as_its_slowest_device(digits, name, hosts):
    case = digits.describe(PLANS[name])
    found = predict(case, uneven((4 - hosts, FAST), (hosts, SLOW)))
    assert found.terms_s == predict(case, all_of(SLOW)).terms_s
    assert found.step_s > predict(case, all_of(FAST)).step_s


def test_devices_that_a_plan_does_not_use_do_not_count(digits):
    case = digits.describe(Plan(mesh=MeshShape(data=2)))
    cluster = uneven((2, FAST), (2, SLOW))
    assert predict(case, cluster).terms_s == predict(case, all_of(FAST)).terms_s
    slow = replace(case, plan=replace(case.plan, host_order=("g1",)))
    assert predict(slow, cluster).terms_s == predict(case, all_of(SLOW)).terms_s
    missing = replace(case, plan=replace(case.plan, host_order=("g2",)))
    with pytest.raises(BadInput, match="there is no g2"):
        predict(missing, cluster)


def test_a_stage_is_priced_on_the_devices_that_it_stands_on(digits):
    case = digits.describe(PLANS["stages"])
    fast, slow = (stage_compute_times(case, all_of(x)) for x in (FAST, SLOW))
    found = stage_compute_times(case, uneven((2, FAST), (2, SLOW)))
    assert found == (fast[0], slow[1])
    # The order of the groups says which stages come to stand on which.
    other = replace(case, plan=replace(case.plan, host_order=("g1",)))
    assert stage_compute_times(other, uneven((2, FAST), (2, SLOW))) == (
        slow[0],
        fast[1],
    )
    # With stages side by side in pairs of hosts each of them has slow devices.
    inside = digits.describe(PLANS["inside"])
    assert stage_compute_times(inside, uneven((2, FAST), (2, SLOW))) == slow
    # One slow host in a stage holds up its replicas.
    assert stage_compute_times(case, uneven((1, SLOW), (3, FAST))) == (slow[0], fast[1])


def test_replicas_of_a_stage_wait_for_the_slowest_of_them(digits):
    case = digits.describe(PLANS["replicas"])
    fast, slow = (stage_compute_times(case, all_of(x)) for x in (FAST, SLOW))
    found = stage_compute_times(case, uneven((1, FAST), (3, SLOW)))
    assert found == slow
    assert stage_compute_times(case, uneven((2, FAST), (2, SLOW))) == (
        fast[0],
        slow[1],
    )


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(PLANS)),
    hosts=st.integers(1, 3),
    speeds=st.tuples(*[st.floats(0.2, 5.0)] * 4),
    faster=st.floats(1.0, 4.0),
    overlap=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_faster_group_never_makes_a_step_slower(
    digits_cases, name, hosts, speeds, faster, overlap
):
    """Whatever is slower on the one and whatever on the other."""

    def step(first):
        kinds = []
        for flops, memory in (first, speeds[2:]):
            device = scaled(BASE.device, flops)
            rate = memory * BASE.device.memory_bandwidth.value
            kinds.append(replace(device, memory_bandwidth=number(rate)))
        cluster = uneven((hosts, kinds[0]), (4 - hosts, kinds[1]))
        cluster = replace(cluster, overlap=number(overlap))
        return predict(digits_cases[name], cluster).step_s

    before = step(speeds[:2])
    assert step((faster * speeds[0], faster * speeds[1])) <= before * (1 + 1e-12)


@pytest.fixture(scope="module")
def digits_cases(digits):
    return {name: digits.describe(plan) for name, plan in PLANS.items()}


def test_the_smaller_memory_decides_where_it_is_used(digits):
    plain = predict(digits.describe(PLANS["data"]), BASE)
    tiny = scaled(BASE.device, 1.0, memory=plain.memory_bytes // 2)
    assert plain.fits
    found = predict(digits.describe(PLANS["data"]), uneven((3, None), (1, tiny)))
    assert not found.fits
    assert found.memory_capacity == plain.memory_bytes // 2
    few = digits.describe(Plan(mesh=MeshShape(data=2)))
    assert predict(few, uneven((2, None), (2, tiny))).fits


def test_each_stage_is_held_against_its_own_memory(digits):
    """The stage that needs less stands on the smaller card, or nothing fits."""
    case = digits.describe(PLANS["stages"])
    needs = []
    for rank in range(2):
        # With next to no memory elsewhere the other rank is the tightest.
        small = scaled(BASE.device, 1.0, memory=1.0)
        kinds = [(2, None), (2, None)]
        kinds[rank] = (2, small)
        needs.append(predict(case, uneven(*kinds)).memory_bytes)
    assert needs[0] != needs[1]
    less = min(range(2), key=lambda rank: needs[rank])
    between = scaled(BASE.device, 1.0, memory=sum(needs) / 2)
    for rank in range(2):
        kinds = [(2, None), (2, None)]
        kinds[rank] = (2, between)
        found = predict(case, uneven(*kinds))
        assert (found.memory_bytes <= found.memory_capacity) == (rank == less)


def test_a_slow_port_holds_up_those_that_wait_for_it(digits):
    slow = GroupLink(level="net", bandwidth=number(BASE.levels[0].bandwidth.value / 10))
    cluster = uneven((3, None), (1, None), links=[slow])
    plan = MeshPlacement(mesh=MeshShape(data=4))
    found, whole = (link_group(x, plan, ["data"]) for x in (cluster, BASE))
    assert found.bandwidth == pytest.approx(whole.bandwidth / 10)
    # Pairs of the first stage do not use the port of the last host.
    pairs = MeshPlacement(mesh=MeshShape(pipe=2, data=2))
    rates = [link_group(cluster, pairs, ["data"], rank).bandwidth for rank in range(2)]
    assert rates == pytest.approx([whole.bandwidth, whole.bandwidth / 10])
    assert link_group(cluster, pairs, ["data"]).bandwidth == min(rates)
    assert link_group(cluster, pairs, ["pipe"], 0).bandwidth == min(rates)
    # Three devices have a level's links.
    three = MeshPlacement(mesh=MeshShape(data=3))
    assert link_group(cluster, three, ["data"]) == link_group(BASE, three, ["data"])
    # What layers of a stage say to each other is slow in that stage alone.
    case = digits.describe(Plan(mesh=MeshShape(pipe=2, tensor=2), microbatches=4))
    passed, usual = stage_times(case, cluster), stage_times(case, BASE)
    assert passed[0] == usual[0]
    assert passed[1].forward_comm > 5 * usual[1].forward_comm
    made = predict(case, cluster)
    terms = made.terms_s
    shown = {one.name: one.value for one in explain_seconds(case, cluster, made)}
    assert {name: shown[name] for name in terms if name in shown} == terms


def test_a_link_between_groups_counts_where_a_collective_crosses_it():
    link = InterGroupLink(groups=("g0", "g1"), bandwidth=number(1e6), alpha=number(0.1))
    cluster = uneven((2, None), (2, FAST), between=[link])
    pairs = MeshPlacement(mesh=MeshShape(pipe=2, data=2))
    within, across = (link_group(cluster, pairs, [axis]) for axis in ("data", "pipe"))
    assert within == link_group(BASE, pairs, ["data"])
    assert (across.bandwidth, across.alpha) == (1e6, 0.1)


@pytest.mark.parametrize("sizes", [(2, 1, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("order", [(), ("g1",)])
def test_groups_of_ranks_and_collectives_are_those_of_their_devices(sizes, order):
    """Against all devices of every mesh of four, one by one."""
    cluster = uneven(*((hosts, None) for hosts in sizes))
    names = [
        group.name for group, places in cluster.group_ranges(order) for _ in places
    ]
    meshes = [
        MeshShape(pipe=p, data=d, tensor=t)
        for p, d, t in itertools.product((1, 2, 3, 4), repeat=3)
        if p * d * t <= 4
    ]
    for mesh, inner in itertools.product(meshes, ((), ("pipe",), ("data",))):
        lie = (*(axis for axis in AXES if axis not in inner), *inner)
        placed = MeshPlacement(mesh=mesh, order=lie, host_order=order)

        def at(place, axis, placed=placed):
            stride, size = placed.place(axis)
            return place // stride % size

        places = range(mesh.devices)
        for rank in range(mesh.pipe):
            own = {names[place] for place in places if at(place, "pipe") == rank}
            assert {one.name for one in rank_groups(cluster, placed, rank)} == own
        for axes in (("data",), ("pipe",), ("data", "tensor")):
            others = [axis for axis in AXES if axis not in axes]
            sets = {}
            for place in places:
                key = tuple(at(place, axis) for axis in others)
                sets.setdefault(key, set()).add(names[place])
            found = collective_groups(cluster, placed, axes)
            assert {frozenset(x.name for x in one) for one in found} == set(
                map(frozenset, sets.values())
            )


def test_a_prediction_says_where_stages_stand(digits):
    case = digits.describe(PLANS["stages"])
    found = predict(case, uneven((1, FAST), (3, SLOW))).to_dict()
    assert found["rank_host_groups"] == [["g0", "g1"], ["g1"]]
    assert "host_groups.g1.device.efficiency" in found["origins"]
    assert json.dumps(found)
    # There is no one peak of which a share could be said.
    assert found["mfu"] is None
    alike = predict(case, BASE).to_dict()
    assert "rank_host_groups" not in alike
    assert alike["mfu"] > 0
