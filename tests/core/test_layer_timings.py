"""Layers without products that were timed, and what others are taken for."""

from dataclasses import replace

import pytest

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.layer_timings import LayerTiming, LayerTimings
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster

PEAK = 1e12
NORM = LayerTiming(kind="BatchNorm", size=1e9, forward_s=1e-3, backward_s=3e-3)
LARGE = replace(NORM, size=16e9, forward_s=48e-3, backward_s=80e-3)
FUSED = LayerTiming(kind="Relu", size=1e9, forward_s=0.0, backward_s=0.0)
TABLE = LayerTimings(
    origin="fitted: a test", peak=PEAK, bandwidth=1e12, timed=(NORM, LARGE, FUSED)
)
NO_FLOPS = (0.0, 0.0)


@pytest.mark.parametrize("timed", [NORM, LARGE])
def test_a_layer_that_was_timed_takes_what_it_took(timed):
    found = TABLE.seconds(timed.kind, timed.size, NO_FLOPS, PEAK)
    assert found == pytest.approx((timed.forward_s, timed.backward_s), rel=1e-6)


def test_between_two_it_passes_through_memory_as_often_as_both_on_average():
    forward, backward = TABLE.seconds("BatchNorm", 4e9, NO_FLOPS, PEAK)
    assert forward == pytest.approx(4e-3 * (1 + 3) / 2)
    assert backward == pytest.approx(4e-3 * (3 + 5) / 2)


def test_what_neighbours_do_takes_no_time():
    assert TABLE.seconds("Relu", 8e9, NO_FLOPS, PEAK) == (0, 0)


def test_a_kind_that_was_not_timed_has_no_seconds():
    assert TABLE.seconds("LSTM", 1e9, NO_FLOPS, PEAK) is None


def test_work_at_the_peak_counts_beside_the_bytes():
    """Attention of four times the tokens takes more than by its bytes."""
    attention = LayerTiming(
        kind="Attention",
        size=1e9,
        flops_forward=1e9,
        flops_backward=2e9,
        forward_s=2e-3,
        backward_s=3e-3,
    )
    table = replace(TABLE, timed=(attention,))
    forward, backward = table.seconds("Attention", 4e9, (16e9, 32e9), PEAK)
    assert (forward, backward) == pytest.approx((20e-3, 36e-3))


def test_equal_layers_are_averaged():
    table = replace(TABLE, timed=(NORM, replace(NORM, forward_s=3e-3)))
    assert table.seconds("BatchNorm", 1e9, NO_FLOPS, PEAK)[0] == pytest.approx(2e-3)


def test_a_faster_device_takes_less():
    half = TABLE.seconds("BatchNorm", 1e9, NO_FLOPS, 2 * PEAK)
    assert half == pytest.approx((0.5e-3, 1.5e-3), rel=1e-6)


def test_a_cluster_keeps_them(tmp_path):
    cluster = load_cluster("tpu-v5p")
    cluster = replace(cluster, device=replace(cluster.device, layers=TABLE))
    assert Cluster.from_json(cluster.to_json()) == cluster
    path = tmp_path / "mine.json"
    path.write_text(cluster.to_json())
    assert load_cluster(str(path)).device.layers == TABLE


@pytest.mark.parametrize(
    "row",
    [
        ["BatchNorm", 1e9, 0, 0, 1e-3],
        ["BatchNorm", 1e9, 0, 0, "1 ms", 3e-3],
        ["BatchNorm", 0, 0, 0, 1e-3, 3e-3],
        ["BatchNorm", 1e9, 0, 0, -1e-3, 3e-3],
        [True, 1e9, 0, 0, 1e-3, 3e-3],
    ],
)
def test_rows_that_are_none_are_refused(row):
    with pytest.raises(BadInput, match="layer"):
        LayerTiming.of_row(row)


def test_memory_that_passes_nothing_is_refused():
    with pytest.raises(BadInput):
        replace(TABLE, bandwidth=0.0)
