"""What is made of timings: a line through sums, and a curve through kernels."""

import pytest

from jaxdist.calibrate.kernels import Point
from jaxdist.calibrate.links import Timing, wire
from jaxdist.calibrate.machine import efficiency
from jaxdist.collectives.hlo import wire_bytes

ORIGIN = "measured: a test"


def timings(alpha, bandwidth, devices, sizes=(1 << 10, 1 << 15, 1 << 20, 1 << 24)):
    return [
        Timing(
            kind="all-reduce",
            payload=size,
            seconds=4 * alpha + wire_bytes("all-reduce", size, devices) / bandwidth,
        )
        for size in sizes
    ]


def test_a_line_finds_what_a_message_and_a_byte_cost():
    found = wire(timings(3e-4, 25e6, 4), 4)
    assert found.alpha == pytest.approx(3e-4)
    assert found.bandwidth == pytest.approx(25e6)
    assert found.spread == pytest.approx(0, abs=1e-9)


def test_a_cost_is_never_negative():
    """Small sums that are faster than the line of the large ones."""
    odd = [*timings(0.0, 25e6, 4), Timing(kind="all-reduce", payload=64, seconds=1e-9)]
    found = wire(odd, 4)
    assert found.alpha >= 0
    assert found.bandwidth > 0
    assert found.spread > 0.1


def test_the_curve_has_the_peak_and_the_share_of_each_size():
    points = [
        Point(what="small", flops=1e6, seconds=1e-3),
        Point(what="large", flops=1e9, seconds=1e-2),
        Point(what="largest", flops=8e9, seconds=1e-1),
    ]
    peak, curve = efficiency(points, ORIGIN)
    assert peak == 1e11
    assert curve.at(1e6) == pytest.approx(0.01)
    assert curve.at(1e9) == pytest.approx(1.0)
    assert curve.at(8e9) == pytest.approx(0.8)
