"""Forms: a tree goes into vectors and comes back, random keys among its leaves."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdist.pipeline.flat_messages import (
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
    assert not any(np.asarray(x)[[0, 2]].any() for x in ring.values())
    # What a larger tree left behind stays, and is nobody's.
    assert (ring["float32"][1, 6:] == 1).all()
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
    assert left["int32"].shape == (3, 0)
    want = np.zeros((3, 4), np.float32)
    want[2, 0] = 6.0
    assert np.array_equal(left["float32"], want)
