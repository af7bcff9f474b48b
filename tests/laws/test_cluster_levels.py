"""What a machine of two levels was measured to take is what the oracle says it takes.

The timings are made up, no clock is read: collectives that take another number of
messages and another rate by kind, size and lie of the group, and that switch their
algorithm. They go through the fit, a file and the prices.
"""

from itertools import groupby

import pytest

from jaxdist.calibrate.alpha_beta_fit import CollectiveTiming
from jaxdist.calibrate.collective_timings import GroupTimings
from jaxdist.calibrate.hosts import DeviceGroup, HostTopology
from jaxdist.calibrate.levels import (
    add_collective_costs,
    build_levels,
    level_all_reduces,
    timed_groups,
)
from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device, EfficiencyCurve
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.meshes.clusters.what_if import apply_overrides
from jaxdist.oracle.collective_times import (
    collective_seconds,
    message_count,
    traffic_seconds,
)
from jaxdist.oracle.link_groups import link_group
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.traffic import PlannedCollective

ORIGIN = "measured: a test"
KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
SIZES = tuple(1 << power for power in (10, 15, 17, 19, 21, 23, 26))
IN_HOST, BETWEEN = (4e-6, 40e9), (90e-6, 6e9)
"""Seconds of a message; bytes a second of a device, and of a host."""


def took(kind, payload, among, hosts):
    """The seconds of a collective, where rings that leave a host share its links."""
    inside = hosts.group_devices_per_host(among)
    alpha, rate = IN_HOST if inside is None else BETWEEN
    rate /= 1 if inside is None else hosts.devices_per_host / inside
    odd = 1 + 0.2 * KINDS.index(kind) + 0.03 * (inside or 0)
    start = odd * message_count(kind, among.size) * alpha * (2 if payload > 9e6 else 1)
    # The smallest differs enough from the next to be a measurement of its own.
    start *= 0.3 if payload < 4096 else 1
    return start + odd * wire_bytes(kind, payload, among.size) / rate


def plainly(kind, payload, among, hosts):
    """The same without anything odd."""
    inside = hosts.group_devices_per_host(among)
    alpha, rate = IN_HOST if inside is None else BETWEEN
    rate /= 1 if inside is None else hosts.devices_per_host / inside
    sent = wire_bytes(kind, payload, among.size)
    return message_count(kind, among.size) * alpha + sent / rate


def chains_of(hosts, took=took):
    return [
        GroupTimings(
            kind=kind,
            group=among,
            timings=tuple(
                CollectiveTiming(
                    kind=kind, payload=s, seconds=took(kind, s, among, hosts)
                )
                for s in SIZES
            ),
        )
        for among in timed_groups(hosts)
        for kind in KINDS
    ]


def calibrated(hosts, chains):
    device = Device(
        name="some",
        flops={},
        memory=SourcedNumber(1e9, ORIGIN),
        memory_bandwidth=SourcedNumber(1e9, ORIGIN),
        efficiency=EfficiencyCurve(points=((1.0, 1.0),), origin=ORIGIN),
    )
    levels = build_levels(hosts, level_all_reduces(hosts, chains), ORIGIN)
    bare = Cluster(name="some", device=device, levels=levels)
    return Cluster.from_json(
        add_collective_costs(bare, hosts, chains, ORIGIN).to_json()
    )


@pytest.mark.parametrize(("count", "devices"), [(1, 4), (2, 2), (4, 2), (4, 4), (3, 8)])
def test_what_was_measured_is_what_is_said(count, devices):
    """Inside hosts, all devices, one a host: every kind, group and size."""
    hosts = HostTopology(num_hosts=count, devices_per_host=devices)
    chains = chains_of(hosts)
    cluster = calibrated(hosts, chains)
    assert cluster.devices == hosts.num_devices
    for chain in chains:
        mesh = chain.group.mesh_shape(hosts.num_devices)
        group = link_group(cluster, MeshPlacement(mesh=mesh), ["data"])
        for each in chain.timings:
            said = collective_seconds(chain.kind, each.payload, 1, group)
            assert said == pytest.approx(each.seconds, rel=1e-6)
            row = PlannedCollective(
                what="some",
                kind=chain.kind,
                axes=("data",),
                payload=3 * each.payload,
                layer="",
                arrays=3,
            )
            ledger = Ledger(plan=Plan(mesh=mesh), rows=(row,))
            (whole,) = traffic_seconds(
                ledger, cluster, MeshPlacement(mesh=mesh)
            ).values()
            # Bytes are whole numbers: a third of three arrays may be another byte.
            assert whole == pytest.approx(3 * each.seconds, rel=1e-3)


def test_a_level_has_what_a_unit_below_it_sends_in_all():
    hosts = HostTopology(num_hosts=4, devices_per_host=4)
    host, net = calibrated(hosts, chains_of(hosts, plainly)).levels
    assert [(one.name, one.size) for one in (host, net)] == [("host", 4), ("net", 4)]
    for level, (alpha, rate) in ((host, IN_HOST), (net, BETWEEN)):
        assert level.alpha.value == pytest.approx(alpha)
        assert level.bandwidth.value == pytest.approx(rate)
        for line in level.lines:
            told = line.messages.value, line.share.value
            assert told == pytest.approx((message_count(line.kind, line.devices), 1.0))
    assert "times 4 devices of a host" in net.bandwidth.origin
    assert "times" not in host.bandwidth.origin


def test_groups_of_one_size_are_on_their_level_and_lie_as_measured():
    """Four devices of a host, one of each of four hosts, two of each of two."""
    hosts = HostTopology(num_hosts=4, devices_per_host=2)
    cluster = calibrated(hosts, chains_of(hosts))
    apart = link_group(
        cluster, MeshPlacement(mesh=MeshShape(data=4, tensor=2)), ["data"]
    )
    beside = link_group(
        cluster,
        MeshPlacement(mesh=MeshShape(replica=2, data=2, tensor=2)),
        ["data", "tensor"],
    )
    assert [one.collective_cost("all-reduce").inside for one in (apart, beside)] == [
        1,
        2,
    ]
    assert (apart.level, beside.level) == ("net", "net")
    four = HostTopology(num_hosts=4, devices_per_host=4)
    cluster = calibrated(four, chains_of(four))
    within = link_group(
        cluster, MeshPlacement(mesh=MeshShape(replica=4, data=4)), ["data"]
    )
    across = link_group(
        cluster, MeshPlacement(mesh=MeshShape(data=4, tensor=4)), ["data"]
    )
    assert (within.level, across.level) == ("host", "net")
    assert within.collective_cost("all-reduce").inside is None
    assert across.collective_cost("all-reduce").inside == 1


def test_a_lie_that_was_not_measured_is_priced_by_the_most_alike():
    """Two devices of each of two hosts, where one of each of four was measured."""
    hosts = HostTopology(num_hosts=4, devices_per_host=4)
    cluster = calibrated(hosts, chains_of(hosts))
    mesh = MeshShape(data=4, spatial_h=2, tensor=2)
    found = link_group(cluster, MeshPlacement(mesh=mesh), ["data[2]", "tensor"])
    assert (found.size, found.level) == (4, "net")
    assert found.collective_cost("all-reduce").inside == 1
    payload = 1 << 21
    said = collective_seconds("all-reduce", payload, 1, found)
    among = DeviceGroup(size=4, stride=2)
    true = took("all-reduce", payload, among, hosts)
    assert said == pytest.approx(true, rel=0.2)


def test_every_line_has_a_name_of_its_own():
    hosts = HostTopology(num_hosts=4, devices_per_host=2)
    cluster = calibrated(hosts, chains_of(hosts))
    paths = sorted(path for path, _ in cluster.numbers())
    assert [path for path, same in groupby(paths) if len(list(same)) > 1] == []
    assert "levels.net.lines.all-reduce/4/2.share" in paths
    assert "levels.host.lines.all-reduce/2.share" in paths


def test_one_level_is_as_it_was():
    hosts = HostTopology(num_hosts=1, devices_per_host=4)
    (level,) = calibrated(hosts, chains_of(hosts)).levels
    assert (level.name, level.size) == ("data", 4)
    assert {line.name for line in level.lines} == {
        f"{kind}/{size}" for kind in KINDS for size in (2, 4)
    }


def test_asking_about_a_level_asks_about_all_that_cross_it():
    hosts = HostTopology(num_hosts=4, devices_per_host=2)
    cluster = calibrated(hosts, chains_of(hosts))
    faster = apply_overrides(cluster, ["levels.net.bandwidth=1 GB/s"])
    payload = 1 << 23
    for mesh, crosses in (
        (MeshShape(data=8), True),
        (MeshShape(data=4, tensor=2), True),
        (MeshShape(replica=4, data=2), False),
    ):
        before, after = (
            collective_seconds(
                "all-reduce",
                payload,
                1,
                link_group(one, MeshPlacement(mesh=mesh), ["data"]),
            )
            for one in (cluster, faster)
        )
        assert (after > 2 * before) == crosses


def test_a_switch_is_said_of_the_level_that_has_it():
    hosts = HostTopology(num_hosts=4, devices_per_host=2)
    chains = chains_of(hosts)
    host, net = level_all_reduces(hosts, chains)
    assert (host.level, net.level) == ("host", "net")
    assert (net.group.size, net.group.stride) == (4, 2)
    small = [
        CollectiveTiming(kind="all-reduce", payload=size, seconds=1e-3 + size / rate)
        for size, rate in zip(SIZES, (1e8,) * 4 + (1e10,) * 3, strict=True)
    ]
    switching = [
        chain
        if chain.group != net.group
        else GroupTimings(kind=chain.kind, group=chain.group, timings=tuple(small))
        for chain in chains
    ]
    _, found = level_all_reduces(hosts, switching)
    assert (found.switch.below, found.switch.above) == (1 << 19, 1 << 21)
    assert "up to 524,288 B" in found.switch.text


def test_one_device_has_no_sums():
    hosts = HostTopology(num_hosts=1, devices_per_host=1)
    assert timed_groups(hosts) == ()
    assert level_all_reduces(hosts, ()) == ()
    (level,) = calibrated(hosts, ()).levels
    assert (level.size, level.lines) == (1, ())
