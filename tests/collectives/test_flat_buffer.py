"""Joined arrays lie behind each other, and nothing is concatenated."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdist.collectives.compress.method import concatenate_flat

SHAPES = ((3, 4), (), (5,), (0,), (2, 1, 3))


def arrays():
    draw = np.random.default_rng(0)
    return [jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in SHAPES]


def test_equal_to_their_concatenation():
    want = np.concatenate([np.ravel(x) for x in arrays()])
    np.testing.assert_array_equal(jax.jit(concatenate_flat)(arrays()), want)


def test_gradients_go_back_to_where_numbers_came_from():
    def score(parts):
        vector = concatenate_flat(parts)
        return (vector * jnp.arange(vector.size, dtype=vector.dtype)).sum()

    found = jax.grad(score)(arrays())
    places = np.concatenate([np.ravel(x) for x in found])
    np.testing.assert_array_equal(places, np.arange(places.size))
    assert [x.shape for x in found] == list(SHAPES)


def test_a_compiled_program_writes_each_part_to_its_place():
    """What a concatenation fuses with is read under masks: slow, or very slow."""

    def halves(parts):
        return concatenate_flat([x.T / 2 for x in parts])

    text = jax.jit(halves).lower(arrays()).compile().as_text()
    assert "dynamic-update-slice(" in text
    assert "concatenate(" not in text
    assert " pad(" not in text
