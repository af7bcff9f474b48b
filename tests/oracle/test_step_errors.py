"""Intervals of predicted steps, held against steps that they do not rest on."""

import math
from collections import defaultdict

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.step_errors import (
    TIMED,
    layout_kind,
    order_tolerance,
    read_held_out_steps,
    step_interval,
)

KINDS = {
    "samples split": Plan(mesh=MeshShape(data=4)),
    "layers split": Plan(mesh=MeshShape(data=2, tensor=2)),
    "stages": Plan(mesh=MeshShape(pipe=4)),
}


def test_layouts_are_told_apart_by_where_they_communicate():
    for kind, plan in KINDS.items():
        assert layout_kind(plan) == kind
    assert layout_kind(Plan(mesh=MeshShape(fsdp=2, spatial_h=2))) == "layers split"


@pytest.mark.parametrize("machine", [TIMED, "dgx-h100", "dgx-a100"])
def test_networks_that_are_left_out_lie_in_the_intervals_of_the_others(machine):
    steps = read_held_out_steps()
    cluster = load_cluster("testbed" if machine == TIMED else machine)
    held = []
    for network in {one.network for one in steps if one.machine == machine}:
        others = [one for one in steps if one.network != network]
        for one in steps:
            if (one.machine, one.network) == (machine, network):
                plan = KINDS[one.layout]
                found = step_interval(
                    cluster, plan, timed=machine == TIMED, steps=others
                )
                held.append(found.holds(1.0, math.exp(one.log_ratio)))
    assert 0.85 <= sum(held) / len(held) <= 0.97


def test_a_machine_that_was_timed_has_narrow_intervals():
    cluster = load_cluster("testbed")
    timed = {
        kind: step_interval(cluster, plan, timed=True) for kind, plan in KINDS.items()
    }
    assert timed["samples split"].half_width < 0.15
    assert max(one.half_width for one in timed.values()) < 0.3
    described = step_interval(cluster, KINDS["stages"], timed=False)
    assert described.half_width > 0.7
    # Steps of this card have run, all of them longer than was predicted.
    known = step_interval(load_cluster("dgx-h100"), KINDS["samples split"], timed=False)
    assert known.low == 1
    assert known.high == pytest.approx(2, abs=0.1)
    assert "dgx-h100" in known.basis


def test_more_devices_than_have_run_widen_an_interval():
    cluster = load_cluster("testbed")
    few, many = (
        step_interval(cluster, Plan(mesh=MeshShape(data=count)), timed=True)
        for count in (4, 16)
    )
    assert many.high == pytest.approx(few.high**2)
    assert many.basis == f"{few.basis}, stretched from 4 devices"


def test_nine_of_ten_pairs_of_plans_are_in_the_predicted_order_beyond_the_ratio():
    ratio = order_tolerance(True)
    assert 1.1 < ratio < 1.4 < order_tolerance(False)
    settings = defaultdict(list)
    for one in read_held_out_steps():
        if one.machine == TIMED:
            settings[one.setting].append(one.log_ratio)
    apart = [
        abs(a - b) > math.log(ratio)
        for ratios in settings.values()
        for place, a in enumerate(ratios)
        for b in ratios[:place]
    ]
    assert len(apart) > 1000
    assert sum(apart) / len(apart) == pytest.approx(0.1, abs=0.01)
