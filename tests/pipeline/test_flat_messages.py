"""Forms: a tree goes into vectors and comes back, random keys among its leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.dtypes import MAX_VECTOR_ELEMENTS
from jaxdist.pipeline.flat_messages import (
    buffer_bytes,
    buffer_shapes,
    flat_tree_spec,
    max_lengths,
    overwrite_row,
    zero_buffers,
)


def test_a_tree_comes_back_from_vectors_that_are_longer_than_it_needs():
    tree = {
        "x": jnp.arange(6.0).reshape(2, 3),
        "keys": jax.random.split(jax.random.key(3), 2),
        "mask": jnp.array([True, False]),
    }
    form = flat_tree_spec(tree)
    larger = flat_tree_spec({**tree, "x": jnp.zeros((5, 5))})
    lengths, row = max_lengths([form, larger]), jnp.int32(1)
    ring = larger.write(zero_buffers(lengths, 3), {**tree, "x": jnp.ones((5, 5))}, row)
    ring = form.write(ring, tree, row)
    assert not any(np.asarray(x)[[0, 2]].any() for (x,) in ring.values())
    # What a larger tree left behind stays, and is nobody's.
    assert (ring["float32"][0][1, 6:] == 1).all()
    back = form.read(ring, row)
    two = {"a": jnp.arange(3.0), "b": jnp.arange(4.0, 6.0)}
    both = flat_tree_spec(two)
    side = both.read(both.write(zero_buffers(both.lengths), two))
    assert all(np.array_equal(side[name], x) for name, x in two.items())
    alone = form.read(form.write(zero_buffers(lengths), tree))
    assert np.array_equal(alone["x"], tree["x"])
    assert np.array_equal(back["x"], tree["x"])
    assert np.array_equal(back["mask"], tree["mask"])
    draws = [jax.random.uniform(each["keys"][1], (3,)) for each in (back, tree)]
    assert np.array_equal(*draws)
    shaped = {name: (x.shape, x.dtype) for name, x in form.abstract_tree.items()}
    assert shaped == {name: (x.shape, x.dtype) for name, x in tree.items()}
    assert flat_tree_spec(form.abstract_tree) == form


def test_a_row_is_dropped_also_where_a_dtype_has_no_numbers():
    ring = {**zero_buffers({"float32": 4}, 3), **zero_buffers({"int32": 0}, 3)}
    left = overwrite_row(ring, jnp.int32(2), [jnp.array([5.0, 6.0]), jnp.ones((2, 2))])
    assert left["int32"][0].shape == (3, 0)
    want = np.zeros((3, 4), np.float32)
    want[2, 0] = 6.0
    assert np.array_equal(left["float32"][0], want)


@pytest.mark.parametrize("most", [1, 4, 6, 7, 100])
def test_a_tree_comes_back_from_several_vectors(most):
    """Arrays begin in one vector and end in the next, or have vectors of their own."""
    tree = {
        "a": jnp.arange(1.0, 7.0).reshape(2, 3),
        "b": jnp.zeros((0, 4)),
        "c": jnp.arange(7.0, 14.0),
        "d": jnp.float32(14.0),
        "e": jnp.zeros(0),
        "keys": jax.random.split(jax.random.key(3), 2),
    }
    form, row = flat_tree_spec(tree), jnp.int32(1)
    ring = zero_buffers(form.lengths, 2, max_elements=most)
    alone = zero_buffers(form.lengths, max_elements=most)
    assert [len(x) for x in ring.values()] == [-(-14 // most), -(-4 // most)]
    ring, alone = form.write(ring, tree, row), form.write(alone, tree)
    flat = np.concatenate(ring["float32"], -1)
    assert np.array_equal(flat, [np.zeros(14), np.arange(1.0, 15.0)])
    for back in (form.read(ring, row), form.read(alone)):
        assert jax.tree.structure(back) == jax.tree.structure(tree)
        keys = [jax.random.key_data(x.pop("keys")) for x in (back, {**tree})]
        assert np.array_equal(*keys)
        assert all(np.array_equal(x, tree[name]) for name, x in back.items())
    left = overwrite_row(ring, row, [jnp.array([5.0])])
    assert all((x[1, 0] == 5).all() for x in left["float32"])


def abstract(**shapes):
    return {name: jax.ShapeDtypeStruct(x, "bfloat16") for name, x in shapes.items()}


@pytest.mark.parametrize(
    ("tree", "want"),
    [
        (abstract(a=(2**20, 2**11 - 1)), [2**31 - 2**20]),
        (abstract(a=(2**31 - 2,), b=()), [2**31 - 1]),
        (abstract(a=(2**31 - 2,), b=(2,)), [2**31 - 1, 1]),
        (abstract(a=(3, 2**31), b=(8,)), [2**31 - 1] * 3 + [11]),
        (abstract(a=(0,)), [0]),
    ],
)
def test_no_vector_has_more_elements_than_int32_can_address(tree, want):
    """By shapes alone; an array may have more, and then lies in several."""
    form = flat_tree_spec(tree)
    (shapes,) = buffer_shapes(form.lengths).values()
    assert [x.size for x in shapes] == want
    assert max(want) <= MAX_VECTOR_ELEMENTS
    ring = buffer_shapes(form.lengths, 3)
    after = jax.eval_shape(
        lambda ring: form.write(ring, tree_of(form), jnp.int32(2)), ring
    )
    assert after == ring
    assert jax.eval_shape(form.read, buffer_shapes(form.lengths)) == tree
    assert buffer_bytes(form.lengths) == 2 * sum(want)


def tree_of(form):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form.abstract_tree)


def test_small_messages_have_the_program_of_one_vector():
    """A slice, or an update, for each array, and nothing else."""
    tree = {"a": jnp.ones((2, 3)), "b": jnp.ones(4)}
    form = flat_tree_spec(tree)
    ring = zero_buffers(form.lengths, 2)
    for run, named in (
        (lambda ring: form.read(ring, jnp.int32(1)), "dynamic_slice"),
        (lambda ring: form.write(ring, tree, jnp.int32(1)), "dynamic_update_slice"),
    ):
        names = [e.primitive.name for e in jax.make_jaxpr(run)(ring).eqns]
        assert names.count(named) == names.count("reshape") == 2
        assert not {"slice", "concatenate"} & {*names}
