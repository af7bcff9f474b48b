"""What is made of timings: a line through sums, and a curve through kernels."""

from dataclasses import replace

import pytest

from jaxdist.calibrate.alpha_beta_fit import (
    CollectiveTiming,
    fit_alpha_beta,
    smooth_latency,
)
from jaxdist.calibrate.collective_timings import GroupTimings
from jaxdist.calibrate.hosts import DeviceGroup
from jaxdist.calibrate.levels import make_collective_cost
from jaxdist.calibrate.measure_cluster import fit_efficiency_curve
from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.cluster import Level
from jaxdist.core.cluster.device import Device, EfficiencyCurve
from jaxdist.core.cluster.kernel_timings import KernelTiming
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.kernel_shape import KernelShape
from jaxdist.core.plan import MeshShape
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import link_group

ORIGIN = "measured: a test"


def kernel(flops, seconds):
    shape = KernelShape(kind="product", uses=flops / 2e4, inputs=100, outputs=100)
    return KernelTiming(shape=shape, forward_s=seconds, backward_s=3 * seconds)


def timings(alpha, bandwidth, devices, sizes=(1 << 10, 1 << 15, 1 << 20, 1 << 24)):
    return [
        CollectiveTiming(
            kind="all-reduce",
            payload=size,
            seconds=4 * alpha + wire_bytes("all-reduce", size, devices) / bandwidth,
        )
        for size in sizes
    ]


def test_a_line_finds_what_a_message_and_a_byte_cost():
    found = fit_alpha_beta(timings(3e-4, 25e6, 4), 4)
    assert found.alpha == pytest.approx(3e-4)
    assert found.bandwidth == pytest.approx(25e6)
    assert found.spread == pytest.approx(0, abs=1e-9)


def test_a_cost_is_never_negative():
    """Small sums that are faster than the line of the large ones."""
    odd = [
        *timings(0.0, 25e6, 4),
        CollectiveTiming(kind="all-reduce", payload=64, seconds=1e-9),
    ]
    found = fit_alpha_beta(odd, 4)
    assert found.alpha >= 0
    assert found.bandwidth > 0
    assert found.spread > 0.1


def test_the_curve_has_the_peak_and_the_share_of_each_size():
    peak, curve = fit_efficiency_curve(
        [kernel(1e6, 1e-3), kernel(1e9, 1e-2), kernel(8e9, 1e-1)], ORIGIN
    )
    assert peak == 1e11
    assert curve.at(1e6) == pytest.approx(0.01)
    assert curve.at(1e9) == pytest.approx(1.0)
    assert curve.at(8e9) == pytest.approx(0.8)


def test_a_line_with_its_bend_goes_through_every_timing():
    """What a collective was measured to take is what the oracle says that it takes.

    The two smallest are one measurement.
    """
    odd = (3.1e-3, 3.9e-3, 30e-3, 150e-3)
    timed = tuple(
        CollectiveTiming(kind="reduce-scatter", payload=each.payload, seconds=took)
        for each, took in zip(timings(3e-4, 25e6, 4), odd, strict=True)
    )
    level = Level(
        name="data",
        size=4,
        alpha=SourcedNumber(5e-4, ORIGIN),
        bandwidth=SourcedNumber(2e7, ORIGIN),
    )
    chain = GroupTimings(
        kind="reduce-scatter", group=DeviceGroup(size=4), timings=timed
    )
    device = Device(
        name="some",
        flops={},
        memory=SourcedNumber(1e9, ORIGIN),
        memory_bandwidth=SourcedNumber(1e9, ORIGIN),
        efficiency=EfficiencyCurve(points=((1.0, 1.0),), origin=ORIGIN),
    )
    cluster = Cluster(name="some", device=device, levels=(level,))
    group = link_group(cluster, MeshPlacement(mesh=MeshShape(data=4)), ["data"])
    group = replace(
        group, collective_costs=(make_collective_cost(chain, group, ORIGIN),)
    )
    said = [
        collective_seconds("reduce-scatter", each.payload, 1, group) for each in timed
    ]
    assert said == pytest.approx((3.5e-3, 3.5e-3, *odd[2:]))


@pytest.mark.parametrize(
    ("took", "said"),
    [
        ((3.0, 4.0, 30.0, 150.0), (3.5, 3.5, 30.0, 150.0)),
        ((7.5, 6.5, 5.5, 8.5), (6.5, 6.5, 6.5, 8.5)),
        ((2.0, 6.0, 5.0, 6.0), (2.0, 6.0, 5.0, 6.0)),
        ((4.0, 4.0, 4.0, 4.0), (4.0, 4.0, 4.0, 4.0)),
        ((4.0, 5.0, 6.0, 8.0), (5.0, 5.0, 5.0, 8.0)),
    ],
)
def test_small_sizes_that_take_alike_are_one_measurement(took, said):
    """From the smallest on, and only as long as none takes half as long again."""
    assert smooth_latency(took) == pytest.approx(said)
