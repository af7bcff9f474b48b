"""Auto chooses what a measured link makes the fastest, and never more than allowed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.primitives import psum
from jaxdist.collectives.registry import (
    ALL_REDUCE_ALGORITHMS,
    AlgorithmTiming,
    AutoAlgorithm,
    bytes_of,
    fit_link,
    select_fastest,
)
from jaxdist.core.errors import BadInput

FLOAT, SIZES = np.dtype("float32"), {"data": 4}
SHAPES = [(160, 160), (1024, 1024)]
COSTS = {"exact": (1e-4, 0.0), "ring": (2e-3, 0.0), "int8": (1e-3, 4e-9)}
"""Seconds of a sum of nothing, and a number."""


def seconds(via, rate, shape):
    start, each = COSTS[via]
    sent = bytes_of(ALL_REDUCE_ALGORITHMS[via], [shape], FLOAT, SIZES)
    return start + sent / rate + each * np.prod(shape)


def link(rate, shapes=SHAPES):
    timed = [
        AlgorithmTiming(
            algorithm=ALL_REDUCE_ALGORITHMS[via],
            seconds=tuple(seconds(via, rate, shape) for shape in shapes),
        )
        for via in COSTS
    ]
    return fit_link(timed, shapes, FLOAT, SIZES)


def chosen(rate, shape, among=tuple(COSTS)):
    ways = [ALL_REDUCE_ALGORITHMS[via] for via in among]
    return select_fastest(ways, [[shape]], FLOAT, SIZES, link(rate)).name


@pytest.mark.parametrize("via", COSTS)
@pytest.mark.parametrize("shape", [(160, 160), (512, 512), (4096, 4096)])
def test_a_link_predicts_the_times_of_what_it_was_fitted_to(via, shape):
    found = link(12.5e6).estimate_seconds(
        ALL_REDUCE_ALGORITHMS[via], [shape], FLOAT, SIZES
    )
    # Scales of blocks make the bytes of int8 not quite proportional.
    assert found == pytest.approx(seconds(via, 12.5e6, shape), rel=2e-3, abs=1e-5)


def test_slow_links_are_worth_packing_and_fast_ones_are_not():
    assert chosen(12.5e6, (1024, 1024)) == "int8"
    assert chosen(10e9, (1024, 1024)) == "exact"
    assert chosen(12.5e6, (8, 8)) == "exact"


def test_what_is_quick_is_predicted_by_the_largest_array_it_was_timed_on():
    """A line through small arrays draws a start that does not grow out to large ones."""
    shapes = [*SHAPES, (2896, 2896)]
    slow = AlgorithmTiming(
        algorithm=ALL_REDUCE_ALGORITHMS["exact"], seconds=(0.02, 0.5)
    )
    quick = AlgorithmTiming(
        algorithm=ALL_REDUCE_ALGORITHMS["power"], seconds=(0.001, 0.02, 0.03)
    )
    both = fit_link([slow, quick], shapes, FLOAT, SIZES)
    for shape, s in zip(shapes, quick.seconds, strict=True):
        found = both.estimate_seconds(
            ALL_REDUCE_ALGORITHMS["power"], [shape], FLOAT, SIZES
        )
        assert found == pytest.approx(s)
    larger = both.estimate_seconds(
        ALL_REDUCE_ALGORITHMS["power"], [(4096, 4096)], FLOAT, SIZES
    )
    assert 0.03 < larger < 0.05


def test_what_is_not_allowed_is_not_chosen():
    assert chosen(12.5e6, (1024, 1024), among=("exact", "ring")) == "exact"


def test_of_ways_that_are_as_fast_the_first_is_chosen():
    alike = [
        AlgorithmTiming(algorithm=ALL_REDUCE_ALGORITHMS[v], seconds=(1e-3, 1e-1))
        for v in ("exact", "ring")
    ]
    both = fit_link(alike, SHAPES, FLOAT, SIZES)
    for names in (("exact", "ring"), ("ring", "exact")):
        ways = [ALL_REDUCE_ALGORITHMS[name] for name in names]
        assert select_fastest(ways, [[(512, 512)]], FLOAT, SIZES, both).name == names[0]


def test_ways_that_were_not_measured_are_refused():
    with pytest.raises(BadInput, match="nobody measured int4 over 4"):
        chosen(1e6, (8, 8), among=("exact", "int4"))
    with pytest.raises(BadInput, match="nobody measured exact over 8"):
        link(1e6).estimate_seconds(
            ALL_REDUCE_ALGORITHMS["exact"], [(8, 8)], FLOAT, {"data": 8}
        )


def traced(via, dtype="float32"):
    mesh = jax.make_mesh(
        (4,), ("data",), devices=jax.devices()[:4], axis_types=(AxisType.Auto,)
    )
    mapped = jax.shard_map(
        lambda x: psum(x, "data", via), mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    return str(jax.make_jaxpr(mapped)(jax.ShapeDtypeStruct((4096, 64), dtype)))


def test_a_program_shows_what_was_chosen():
    among = tuple(ALL_REDUCE_ALGORITHMS[via] for via in COSTS)
    assert "psum_int8[" in traced(AutoAlgorithm(candidates=among, link=link(1e6)))
    assert "psum_int8[" not in traced(AutoAlgorithm(candidates=among, link=link(10e9)))


def test_integers_are_summed_exactly_whatever_is_measured():
    way = AutoAlgorithm(
        candidates=tuple(ALL_REDUCE_ALGORITHMS[via] for via in COSTS), link=link(1e6)
    )
    assert "psum_" not in traced(way, jnp.int32).replace("psum_invariant", "")


def test_without_a_measurement_the_sum_is_exact():
    assert traced("auto") == traced("exact")
