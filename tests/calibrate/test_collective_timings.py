"""Chains: every kind of collective is timed, among as many as a mesh may have."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxdist.calibrate import collective_timings
from jaxdist.calibrate.alpha_beta_fit import CollectiveTiming
from jaxdist.calibrate.collective_timings import separate_skew
from jaxdist.calibrate.hosts import DeviceGroup, HostTopology
from jaxdist.collectives.hlo_collectives import read_collectives


def mesh_of(count):
    devices = jax.devices()[:count]
    return jax.make_mesh((count,), ("data",), (AxisType.Auto,), devices=devices)


@pytest.mark.slow  # docs/prediction.md times them
def test_every_kind_is_timed_in_groups_of_every_size(monkeypatch):
    # Short chains: each is a program that is compiled.
    some = {1 << 10: ((1, 3), 3), 1 << 18: ((1, 2), 3)}
    monkeypatch.setattr(collective_timings, "MESSAGE_SIZES", some)
    groups = HostTopology(num_hosts=1, devices_per_host=4).intra_host_groups
    found = collective_timings.time_collectives(mesh_of(4), groups)
    assert {(one.kind, one.group_size) for one in found} == {
        (kind, size) for kind in collective_timings._COLLECTIVE_FNS for size in (2, 4)
    }
    for one in found:
        small, large = (timing.payload for timing in one.timings)
        whole = one.group_size if one.kind == "reduce-scatter" else 1
        assert (small, large) == ((1 << 10) // whole, (1 << 18) // whole)
        assert all(timing.seconds > 0 for timing in one.timings)


def test_groups_lie_as_those_of_a_mesh_axis():
    """Of two hosts of two: both of one, one of each, all of both."""
    ids = [device.id for device in jax.devices()[:4]]
    found = {}
    for among in (
        DeviceGroup(size=2),
        DeviceGroup(size=2, stride=2),
        DeviceGroup(size=4),
    ):
        mesh = collective_timings.group_mesh(mesh_of(4), among)
        rows = np.moveaxis(mesh.devices, 1, 2).reshape(-1, among.size)
        found[among] = [[ids.index(one.id) for one in row] for row in rows]
    assert list(found.values()) == [
        [[0, 1], [2, 3]],
        [[0, 2], [1, 3]],
        [[0, 1, 2, 3]],
    ]


def test_groups_of_devices_apart_are_timed_all_at_once(monkeypatch):
    monkeypatch.setattr(collective_timings, "MESSAGE_SIZES", {1 << 10: ((1, 2), 1)})
    (group,) = HostTopology(num_hosts=2, devices_per_host=2).inter_host_groups[:1]
    calls = []

    def on_all(mesh, function, *own):
        calls.append((mesh.shape["others"], mesh.shape["group"], mesh.shape["beside"]))
        return lambda: None

    monkeypatch.setattr(collective_timings, "bind_on_all_devices", on_all)
    monkeypatch.setattr(
        collective_timings,
        "time_rounds",
        lambda mesh, calls, times: np.ones((len(calls), times)),
    )
    found = collective_timings.time_collectives(mesh_of(4), [group])
    assert {one.group for one in found} == {DeviceGroup(size=2, stride=2)}
    assert set(calls) == {(1, 2, 2)}


@pytest.mark.parametrize("kind", list(collective_timings._COLLECTIVE_FNS))
def test_a_chain_has_its_collectives_and_no_others(kind):
    """Neither folded into one nor left out; a tenth of the product's work is real."""
    from functools import partial

    from jax.sharding import PartitionSpec as P

    grouped = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("group",))
    for collective, count in (
        (collective_timings._COLLECTIVE_FNS[kind], 3),
        (collective_timings._identity, 0),
    ):
        run = jax.shard_map(
            partial(
                collective_timings._run_chain,
                collective,
                collective_timings.matmuls_before(kind, 1 << 10),
                3,
            ),
            mesh=grouped,
            in_specs=P(),
            out_specs=P("group"),
            check_vma=False,
        )
        text = (
            jax.jit(run)
            .lower(*collective_timings._chain_inputs(1 << 10, 4))
            .compile()
            .as_text()
        )
        moves = read_collectives(text, {"group": 4})
        each = collective_timings._COLLECTIVES_PER_LINK.get(kind, 1)
        assert [move.kind for move in moves] == [kind] * count * each
        assert text.count(" dot(") + text.count("custom-call(") >= 2


@pytest.mark.parametrize("products", [1, 24])
def test_each_collective_is_behind_as_many_products(products):
    want = square = np.eye(4, dtype=np.float32)
    x = np.ones(8, np.float32)
    for _ in range(2 * products):
        want = np.tanh(want @ square)
    got = collective_timings._run_chain(
        collective_timings._identity, products, 2, square, x
    )
    assert got - 1 == pytest.approx(want[0, :1], rel=1e-5)


def test_what_is_passed_on_goes_one_way_at_a_time():
    """Stages wait for what comes back; a pair that exchanges is a slower thing."""
    from jax.sharding import PartitionSpec as P

    grouped = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("group",))
    run = jax.shard_map(
        collective_timings._permute_both_ways,
        mesh=grouped,
        in_specs=P(),
        out_specs=P("group"),
    )
    text = jax.jit(run).lower(np.ones(8, np.float32)).compile().as_text()
    pairs = re.findall(r"source_target_pairs=\{(\{.*?\})\}", text)
    assert pairs == ["{0,1},{1,2},{2,3}", "{1,0},{2,1},{3,2}"]


def test_what_is_waited_for_late_devices_is_no_part_of_what_links_take(monkeypatch):
    """Behind long kernels 2 ms more for every size, and the largest takes 5 itself."""
    wire = {1 << 10: 1e-3, 1 << 18: 5e-3}
    behind = {1: 0.0, collective_timings._MATMULS: 2e-3}

    def seconds(grouped, kind, size, times, products):
        return wire[size] + behind[products]

    monkeypatch.setattr(collective_timings, "_collective_seconds", seconds)
    monkeypatch.setattr(
        collective_timings, "MESSAGE_SIZES", dict.fromkeys(wire, ((3, 11), 5))
    )
    for one in collective_timings.time_collectives(mesh_of(4), [DeviceGroup(size=4)]):
        took = [timing.seconds for timing in one.timings]
        if one.kind == "collective-permute":
            assert took == pytest.approx([*wire.values()])
            assert one.skew == pytest.approx(2 * 2e-3)  # there and back wait once
        else:
            assert one.skew == 0
            assert (
                took[1]
                == wire[1 << 18]
                + behind[collective_timings.matmuls_before(one.kind, 1 << 18)]
            )


def test_a_calibration_that_is_quieter_behind_long_kernels_has_no_skew():
    late = [
        CollectiveTiming(kind="collective-permute", payload=8, seconds=s)
        for s in (1.0, 4.0)
    ]
    timings, skew = separate_skew(late, after_short_s=1.5, per_kernel=2)
    assert skew == 0
    assert [one.seconds for one in timings] == [1.0, 4.0]
