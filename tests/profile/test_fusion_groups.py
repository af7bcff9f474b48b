"""Kernels: what is written to memory, and what is computed where it is read."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxdist.profile.flat_jaxpr import flatten_jaxpr
from jaxdist.profile.xla_cpu.fusion_groups import (
    find_fusion_groups,
    op_users,
    remove_views,
)

X = jnp.ones((8, 16))


def written(function, *inputs):
    """Return the names of what a program writes."""
    flat = flatten_jaxpr(jax.make_jaxpr(function)(*inputs).jaxpr)
    remove_views(flat)
    made = find_fusion_groups(flat)
    read = [v for values in made.values() for v in values]
    assert {v[0] for v in read} <= set(op_users(flat))
    given = ("arg", "const", "lit")
    names = [flat.ops[n].name for n in made]
    return sorted(name for name in names if name not in given)


def test_a_mask_of_two_arrays_that_meets_a_slope_from_behind_a_product_is_written():
    def step(x, y, w):
        most = jnp.where(x > y, x, y) @ w
        return jnp.where(x > y, most, 0.0)

    square = jnp.ones((16, 16))
    assert written(step, X, X, square) == ["dot_general", "gt", "select_n", "select_n"]


def test_a_mask_of_one_array_is_made_where_it_is_read():
    def step(x, w):
        return jnp.where(x > 0.0, jnp.where(x > 0.0, x, 1.0) @ w, 0.0)

    square = jnp.ones((16, 16))
    assert written(step, X, square) == ["dot_general", "select_n", "select_n"]


def test_a_sum_of_two_arrays_goes_into_all_that_read_it():
    def step(x, y):
        z = x + y
        return z * 2.0, z * 3.0

    assert written(step, X, X) == ["mul", "mul"]


def test_a_sum_of_two_arrays_that_is_returned_is_read_by_the_others():
    def step(x, y):
        z = x + y
        return z, z * 3.0

    flat = flatten_jaxpr(jax.make_jaxpr(step)(X, X).jaxpr)
    reads = find_fusion_groups(flat)
    (times,) = (n for n in reads if flat.ops[n].name == "mul")
    assert [flat.ops[v[0]].name for v in reads[times] if v[0] in reads] == ["add"]


@pytest.mark.parametrize(("taps", "name"), [(1, []), (2, ["pad"])])
def test_padding_that_is_asked_for_twice_is_written(taps, name):
    def step(x):
        wide = lax.pad(x * 2.0, 0.0, [(0, 0, 0), (1, 1, 0)])
        parts = [lax.slice_in_dim(wide, k, k + 16, 1, 1) for k in range(taps)]
        return jnp.sin(sum(parts[1:], parts[0]) + 1.0)

    assert written(step, X) == sorted(["sin", *name])


def test_what_is_cheap_is_not_computed_more_than_15_times():
    """Each of the sums asks for the next array at two places: 2, 4, 8, 16 of the last."""

    def step(x):
        y = x * 2.0
        for _ in range(5):
            y = y[1:] + y[:-1]
        return y * 2.0

    assert written(step, jnp.ones(64)) == ["add", "mul"]


def test_all_of_an_array_and_a_stack_of_one_are_not_written():
    def step(x, w, start):
        whole = lax.slice(x, (0, 0), (8, 16))
        moved = lax.dynamic_slice(w, (start, start), (16, 16))
        (made,) = jnp.unstack(jnp.stack([whole @ moved]))
        return made

    assert written(step, X, jnp.ones((16, 16)), 0) == ["dot_general"]


def test_a_stack_of_two_is_written():
    def step(x, w):
        return jnp.stack([x * 2.0, x @ w])

    assert written(step, X, jnp.ones((16, 16))) == ["dot_general", "stack"]
