"""Timed blocks: what they take on other numbers of samples, and their rows in a file."""

from dataclasses import replace

import pytest

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.kernel_timings import (
    BlockTiming,
    BlockTimings,
    block_signature,
)
from jaxdist.core.errors import BadInput
from jaxdist.core.profile import BlockProfile, LayerProfile, Profile
from jaxdist.meshes.clusters.load import load_cluster

PEAK = 1e11
TWO = BlockTiming(key="a", samples=2, forward_s=1.0, backward_s=2.0, kept=100)
EIGHT = replace(TWO, samples=8, forward_s=2.0, backward_s=8.0, kept=300)
OTHER = replace(TWO, key="b", forward_s=5.0)
TABLE = BlockTimings(origin="measured: a test", peak=PEAK, timed=(EIGHT, OTHER, TWO))


@pytest.mark.parametrize("timed", TABLE.timed)
def test_a_block_that_was_timed_takes_what_it_took(timed):
    found = TABLE.at(timed.key, timed.samples, PEAK)
    assert found.forward_s == pytest.approx(timed.forward_s)
    assert found.backward_s == pytest.approx(timed.backward_s)
    assert found.kept == timed.kept


@pytest.mark.parametrize(
    ("samples", "forward", "backward", "kept"),
    [
        (4, 2**0.5, 4.0, 200),  # halfway over the logarithm of samples
        (1, 0.5**0.5, 1.0, 50),  # as steep below
        (16, 4.0, 16.0, 600),  # above it takes its part
    ],
)
def test_other_numbers_of_samples(samples, forward, backward, kept):
    found = TABLE.at("a", samples, PEAK)
    assert found.forward_s == pytest.approx(forward)
    assert found.backward_s == pytest.approx(backward)
    assert found.kept == pytest.approx(kept, rel=0.5)
    assert found.samples == samples


def test_one_number_of_samples_tells_what_a_sample_takes():
    assert TABLE.at("b", 1, PEAK).forward_s == pytest.approx(2.5)


def test_more_samples_never_take_less():
    """Noise makes a part slower than the whole at times."""
    noisy = replace(TABLE, timed=(TWO, replace(EIGHT, forward_s=0.5)))
    assert noisy.at("a", 1, PEAK).forward_s == pytest.approx(1.0)


def test_blocks_that_nobody_timed_have_no_seconds():
    assert TABLE.at("c", 2, PEAK) is None


def test_a_device_of_twice_the_speed_takes_half_as_long():
    found = TABLE.at("a", 2, 2 * PEAK)
    assert (found.forward_s, found.backward_s) == pytest.approx((0.5, 1.0))
    assert found.kept == 100


def test_what_is_timed_again_replaces_what_it_took():
    """At another peak the others stay as they were."""
    again = BlockTimings(
        origin="measured: later", peak=PEAK / 2, timed=(replace(TWO, forward_s=9.0),)
    )
    both = TABLE.with_more(again)
    assert len(both.timed) == 3
    assert both.origin == "measured: later"
    assert both.at("a", 2, PEAK / 2).forward_s == pytest.approx(9.0)
    assert both.at("b", 2, PEAK / 2).forward_s == pytest.approx(10.0)


def test_a_cluster_file_keeps_them(tmp_path):
    plain = load_cluster("testbed")
    cluster = replace(plain, device=replace(plain.device, blocks=TABLE))
    assert Cluster.from_json(cluster.to_json()) == cluster
    path = tmp_path / "cluster.json"
    path.write_text(cluster.to_json())
    assert load_cluster(str(path)).device.blocks == TABLE


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (["a", 2, 1.0, 2.0], "no row of a block"),
        ([1, 2, 1.0, 2.0, 0], "no row of a block"),
        (["a", 2, 1.0, "slow", 0], "no row of a block"),
        (["a", 0, 1.0, 2.0, 0], "takes no time"),
        (["a", 2, 1.0, 2.0, -1], "takes no time"),
    ],
)
def test_rows_that_are_no_blocks_are_refused(row, says):
    with pytest.raises(BadInput) as caught:
        BlockTiming.of_row(row)
    assert says in str(caught.value)


def test_blocks_without_a_peak_are_refused():
    with pytest.raises(BadInput, match="computes nothing"):
        replace(TABLE, peak=0.0)


def layer(name, block, **more):
    return LayerProfile(name=name, kind="Linear", block=block, **more)


def test_blocks_of_equal_layers_have_one_name_on_any_batch():
    """But for the last, which has the loss; a wider layer is another."""

    def profile(batch, width=64):
        sizes = {"weights": (width, 64), "output_bytes": 256 * batch}
        names = ("one", "two", "three", "end")
        return Profile(
            model="a",
            inputs=(),
            batch=batch,
            layers=tuple(
                layer(f"{name}.{part}", name, **sizes)
                for name in names
                for part in "xy"
            ),
            blocks=tuple(BlockProfile(name=name, kind="Pair") for name in names),
        )

    few, many, wide = profile(4), profile(32), profile(4, width=65)
    assert (
        block_signature(few, "one")
        == block_signature(few, "two")
        == block_signature(many, "three")
    )
    assert block_signature(few, "one").startswith("Pair-")
    assert block_signature(few, "one") != block_signature(few, "end")
    assert block_signature(few, "one") != block_signature(wide, "one")
