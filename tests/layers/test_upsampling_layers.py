"""Layers of U-Nets on whole images are those of flax and jax, gradients too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist import layers
from jaxdist.core.errors import BadInput

ROWS = {2: (5, 4), 3: (3, 4, 2)}


def image(dims, channels=6):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(2, *ROWS[dims], channels)))


def assert_same(ours, theirs, x):
    """Outputs and all gradients, on the same random parameters."""
    graph, state = nnx.split(ours)
    other, same = nnx.split(theirs)
    assert jax.tree.structure(state) == jax.tree.structure(same)
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), state)

    def run(graph, state, x):
        y = nnx.merge(graph, state)(x)
        weight = jnp.arange(1, y.size + 1, dtype=y.dtype).reshape(y.shape)
        return jnp.sin(y * weight).sum(), y

    with jax.numpy_dtype_promotion("standard"):  # flax's own promotion
        found, want = (
            jax.value_and_grad(run, argnums=(1, 2), has_aux=True)(each, state, x)
            for each in (graph, other)
        )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("taps", "stride", "dilation"),
    [(2, 2, 1), (3, 2, 1), (4, 2, 1), (1, 2, 1), (2, 3, 1), (5, 3, 1), (3, 1, 2)],
)
def test_transposed_convolutions_are_those_of_flax(
    dims, padding, taps, stride, dilation
):
    how = dict(
        kernel_size=(taps,) * dims,
        strides=(stride,) * dims,
        kernel_dilation=(dilation,) * dims,
        padding=padding,
        param_dtype=jnp.float64,
        rngs=nnx.Rngs(0),
    )
    ours = layers.ConvTranspose(6, 4, **how)
    assert_same(ours, nnx.ConvTranspose(6, 4, **how), image(dims))
    rows = tuple(window.rows for window in ours.windows(ROWS[dims]))
    assert ours(image(dims)).shape[1:-1] == rows


def test_other_forms_of_a_transposed_convolution_are_refused():
    how = dict(param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    with pytest.raises(BadInput, match="padding of a transposed") as refused:
        layers.ConvTranspose(6, 4, (3, 3), 2, padding="CIRCULAR", **how)(image(2))
    assert "SAME or VALID" in refused.value.rule
    with pytest.raises(TypeError, match="transpose_kernel=False"):
        layers.ConvTranspose(6, 4, (3, 3), 2, transpose_kernel=True, **how)(image(2))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("method", ["nearest", "linear"])
@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_upsampling_is_that_of_jax(dims, method, factor):
    x = image(dims)
    shape = (2, *(factor * n for n in ROWS[dims]), 6)
    ours = layers.Upsample(factor, method)

    def theirs(x):
        return jax.image.resize(x, shape, method)

    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-9)
    weight = jnp.cos(jnp.arange(np.prod(shape), dtype=x.dtype)).reshape(shape)
    found, want = (
        jax.grad(lambda x, up=up: (up(x) * weight).sum())(x) for up in (ours, theirs)
    )
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("factor", [2, 3])
def test_a_shuffle_gives_each_channel_its_place(dims, factor):
    rows = ROWS.get(dims, (5,))
    x = np.random.default_rng(0).random((2, *rows, 3 * factor**dims))
    found = np.asarray(layers.PixelShuffle(factor)(jnp.asarray(x)))
    assert found.shape == (2, *(factor * n for n in rows), 3)
    # torch's order: the channel, then the place along each dim.
    for place in np.ndindex(*rows):
        for phase in np.ndindex(*(factor,) * dims):
            out = tuple(i * factor + p for i, p in zip(place, phase))
            for c in range(3):
                at = np.ravel_multi_index((c, *phase), (3, *(factor,) * dims))
                assert found[0][(*out, c)] == x[0][(*place, at)]
    last = tuple(n * factor - 1 for n in rows)
    assert found[1][(*last, 2)] == x[1][(*(n - 1 for n in rows), -1)]
    np.testing.assert_array_equal(layers.PixelUnshuffle(factor)(found), x)


def test_shuffles_take_whole_channels_and_rows():
    with pytest.raises(BadInput, match="no whole channels") as refused:
        layers.PixelShuffle(2)(jnp.zeros((1, 4, 4, 6)))
    assert refused.value.remedy == ("8 channels in front of it",)
    with pytest.raises(BadInput, match="no whole rows") as refused:
        layers.PixelUnshuffle((2, 3))(jnp.zeros((1, 4, 4, 6)))
    assert "4 x 4" in refused.value.values
    assert layers.PixelShuffle((1, 3))(jnp.zeros((1, 4, 4, 6))).shape == (1, 4, 12, 2)


def test_each_dim_has_its_own_factor():
    assert layers.Upsample((2, 3))(image(2)).shape == (2, 10, 12, 6)
    with pytest.raises(ValueError, match="nearest or linear"):
        layers.Upsample(2, "cubic")


@pytest.mark.parametrize("dims", [2, 3])
def test_group_and_instance_norms_are_those_of_flax(dims):
    how = dict(dtype=jnp.float64, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    for groups in (1, 2, 6):
        ours = layers.GroupNorm(6, groups, **how)
        assert_same(ours, nnx.GroupNorm(6, groups, **how), image(dims))
    ours = layers.InstanceNorm(6, **how)
    assert_same(ours, nnx.InstanceNorm(6, **how), image(dims))
    assert layers.InstanceNorm(6, use_scale=False, **how).scale is None


def test_a_group_norm_takes_whole_groups():
    norm = layers.GroupNorm(6, 2, rngs=nnx.Rngs(0))
    with pytest.raises(BadInput, match="no whole groups"):
        norm(image(2, channels=4))
    with pytest.raises(TypeError, match="takes no mask"):
        norm(image(2), mask=jnp.ones(1))
