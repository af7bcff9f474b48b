"""Kernels that were timed, and what those that were not are taken for."""

from dataclasses import replace

import pytest

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.kernel_timings import KernelTiming, KernelTimings
from jaxdist.core.errors import BadInput
from jaxdist.core.kernel_shape import KernelShape
from jaxdist.core.profile import LayerProfile
from jaxdist.meshes.clusters.load import load_cluster

ORIGIN = "measured: a test"
FEW = KernelShape(kind="product", uses=4, inputs=64, outputs=64)
MANY = replace(FEW, uses=1024)
TAPS = KernelShape(kind="convolution", taps=9, uses=256, inputs=16, outputs=16)


def kernel(shape, forward, backward):
    """One of so many FLOPs a second."""
    flops = shape.flops
    return KernelTiming(
        shape=shape, forward_s=flops / forward, backward_s=2 * flops / backward
    )


PEAK = 1e11
TABLE = KernelTimings(
    origin=ORIGIN,
    peak=PEAK,
    timed=(kernel(FEW, 1e9, 5e8), kernel(MANY, 16e9, 8e9), kernel(TAPS, 3e9, 2e9)),
)


@pytest.mark.parametrize("timed", TABLE.timed)
def test_a_kernel_that_was_timed_takes_what_it_took(timed):
    found = TABLE.seconds(timed.shape, PEAK)
    assert found == pytest.approx((timed.forward_s, timed.backward_s), rel=1e-6)


def test_between_two_it_is_as_fast_as_what_is_near():
    """Halfway over the logarithm of uses, the rates' geometric mean."""
    between = replace(FEW, uses=64)
    forward, backward = TABLE.seconds(between, PEAK)
    assert between.flops / forward == pytest.approx(4e9)
    assert 2 * between.flops / backward == pytest.approx(2e9)
    nearer, _ = TABLE.seconds(replace(FEW, uses=16), PEAK)
    assert replace(FEW, uses=16).flops / nearer < 2e9


def test_a_device_of_twice_the_speed_takes_half_as_long():
    """Asking about another device, or finding that it is faster, asks about kernels."""
    whole, half = TABLE.seconds(TAPS, PEAK), TABLE.seconds(TAPS, 2 * PEAK)
    assert half == pytest.approx((whole[0] / 2, whole[1] / 2))


def test_a_kind_of_which_none_was_timed_has_no_seconds():
    products = replace(TABLE, timed=TABLE.timed[:2])
    assert products.seconds(TAPS, PEAK) is None
    assert products.seconds(FEW, PEAK) is not None


def test_what_is_timed_again_replaces_what_it_took():
    again = KernelTimings(
        origin="measured: later", peak=PEAK, timed=(kernel(FEW, 2e9, 1e9),)
    )
    both = TABLE.with_more(again)
    assert len(both.timed) == 3
    assert both.origin == "measured: later"
    assert both.seconds(FEW, PEAK)[0] == pytest.approx(FEW.flops / 2e9)


def test_of_equal_shapes_the_last_counts():
    """Also in a file that somebody wrote."""
    twice = replace(TABLE, timed=(*TABLE.timed, kernel(FEW, 4e9, 2e9)))
    assert twice.seconds(FEW, PEAK)[0] == pytest.approx(FEW.flops / 4e9)


def test_kernels_that_are_added_at_another_peak_leave_the_others_as_they_were():
    """A cluster that was recalibrated has another peak than its kernels."""
    peak = PEAK / 3
    again = KernelTimings(origin=ORIGIN, peak=peak, timed=(kernel(FEW, 2e9, 1e9),))
    both = TABLE.with_more(again)
    assert both.seconds(TAPS, peak) == pytest.approx(TABLE.seconds(TAPS, peak))
    assert both.seconds(FEW, peak)[0] == pytest.approx(FEW.flops / 2e9)


def test_kernels_without_a_peak_are_refused():
    with pytest.raises(BadInput, match="computes nothing"):
        replace(TABLE, peak=0.0)


def test_a_cluster_file_keeps_them():
    plain = load_cluster("testbed")
    cluster = replace(plain, device=replace(plain.device, kernels=TABLE))
    assert Cluster.from_json(cluster.to_json()) == cluster


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (["product", 1, 16, 64, 64, 1e-6], "no row of a kernel"),
        (["sum", 1, 16, 64, 64, 1e-6, 3e-6], "product or convolution"),
        (["product", 1, 16, 64, 64, 0.0, 3e-6], "takes no time"),
        (["product", 1, 16, 64, 64, "fast", 3e-6], "words in it"),
        (["product", 1, 0, 64, 64, 1e-6, 3e-6], "takes no time"),
    ],
)
def test_rows_that_are_no_kernels_are_refused(row, says):
    with pytest.raises(BadInput) as caught:
        KernelTiming.of_row(row)
    assert says in str(caught.value)


def test_a_table_that_is_asked_reads_features_and_writes_rows():
    """Its weights are [rows, features]; a dense layer's [inputs, outputs]."""
    asked = LayerProfile(
        name="t", kind="Embed", weights=(256, 64), flops_forward=2 * 8 * 256 * 64
    )
    dense = replace(asked, kind="Linear", weights=(64, 256))
    assert asked.kernel == dense.kernel
    assert (asked.kernel.inputs, asked.kernel.outputs, asked.kernel.uses) == (
        64,
        256,
        8,
    )


def test_bound_by_memory_it_takes_as_many_times_the_bytes():
    """A roofline: where memory is counted, a kernel far from all others goes by it."""
    few = KernelShape(kind="product", uses=4, inputs=64, outputs=64)
    numbers = few.uses * (few.inputs + few.outputs) + few.inputs * few.outputs
    rate, peak = 1e9, 1e15
    timed = KernelTiming(
        shape=few, forward_s=2 * numbers / rate, backward_s=5 * numbers / rate
    )
    table = KernelTimings(origin=ORIGIN, peak=peak, timed=(timed,), memory_rate=rate)
    many = replace(few, uses=4096)
    moved = many.uses * (many.inputs + many.outputs) + many.inputs * many.outputs
    assert table.seconds(few, peak) == pytest.approx(
        (timed.forward_s, timed.backward_s)
    )
    assert table.seconds(many, peak) == pytest.approx(
        (2 * moved / rate, 5 * moved / rate)
    )


def test_features_are_filled_up_to_the_tiles_of_matrix_units():
    table = replace(TABLE, tile=128)
    whole = replace(MANY, outputs=128)
    alone = replace(table, timed=table.timed[1:2])
    # 64 outputs fill half of a tile, and take as long as 128.
    assert alone.seconds(whole, PEAK) == pytest.approx(alone.seconds(MANY, PEAK))


def test_what_a_stride_skips_counts_where_memory_does():
    wide = replace(TAPS, reads=4.0)
    assert TABLE.seconds(wide, PEAK) == TABLE.seconds(TAPS, PEAK)
    counted = replace(TABLE, memory_rate=1e6)
    assert counted.seconds(wide, PEAK)[0] > counted.seconds(TAPS, PEAK)[0]
    kept = KernelTiming(shape=wide, forward_s=1.0, backward_s=2.0)
    assert KernelTiming.of_row(kept.row) == kept
    assert len(KernelTiming(shape=TAPS, forward_s=1.0, backward_s=2.0).row) == 7


@pytest.mark.parametrize("wrong", [{"tile": 0}, {"memory_rate": 0.0}])
def test_matrix_units_and_memory_of_nothing_are_refused(wrong):
    with pytest.raises(BadInput):
        replace(TABLE, **wrong)
