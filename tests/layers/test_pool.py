"""Pooling of blocks equals the pooling of the whole, forward and backward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.core.errors import BadInput
from jaxdist.layers import AvgPool, GlobalMean, GridMean, LocalResponseNorm, MaxPool

LAYERS = {
    "max 2x2 stride 2": MaxPool(2, 2),
    "max 3x3 stride 2, padding 1": MaxPool(3, 2, padding=1),
    "max 3x3 stride 2, a row behind": MaxPool(3, 2, padding=((0, 1), (0, 1))),
    "max 3x3 stride 1, padding 1": MaxPool(3, 1, padding=1),
    "max 11x11, wider than a block": MaxPool(11, 1, padding="SAME"),
    "max 1x1 stride 2": MaxPool(1, 2),
    "average 3x3 stride 1, padding 1": AvgPool(3, 1, padding=1),
    "average 5x5 stride 2, padding 2": AvgPool((5, 5), (2, 2), padding=(2, 2)),
    "average 2x2 stride 2": AvgPool(2, 2),
    "global mean": GlobalMean(),
    "grid of 3 x 5": GridMean((3, 5)),
    "grid that is the image": GridMean((16, 16)),
    "response": LocalResponseNorm(alpha=0.1),
}
SPLITS = {"H": (4, 1), "W": (1, 4), "HxW": (2, 2)}
POSITIONS = P(None, "spatial_h", "spatial_w")


def mesh_of(h, w):
    return jax.make_mesh(
        (h, w, 2),
        ("spatial_h", "spatial_w", "tensor"),
        axis_types=(AxisType.Auto,) * 3,
        devices=jax.devices()[: h * w * 2],
    )


def pulled_back(layer, devices, x, ct):
    """Output, and gradient of its product with `ct`, summed over devices."""

    def score(x):
        y = layer(x)
        # What every device repeats counts once.
        return (y * ct).sum() / devices, y

    (_, y), dx = jax.value_and_grad(score, has_aux=True)(x)
    return y, dx


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("case", LAYERS)
def test_blocks_equal_the_whole(case, split):
    layer, rng = LAYERS[case], np.random.default_rng(0)
    # Below zero everywhere: padding with zeros would win every maximum.
    x = jnp.asarray(-1 - rng.random((2, 16, 16, 3)))
    ct = jnp.asarray(rng.normal(size=jax.eval_shape(layer, x).shape))
    h, w = SPLITS[split]
    gathers = isinstance(layer, GlobalMean | GridMean)
    out = P() if gathers else POSITIONS
    got = jax.jit(
        jax.shard_map(
            functools.partial(pulled_back, layer, h * w if gathers else 1),
            mesh=mesh_of(h, w),
            in_specs=(POSITIONS, out),
            out_specs=(out, POSITIONS),
            check_vma=False,
        )
    )(x, ct)
    want = pulled_back(layer, 1, x, ct)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


def test_three_dims():
    layer, rng = MaxPool(3, 1, padding=1), np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 4, 4, 4, 3)))
    axes = ("spatial_d", "spatial_h", "spatial_w")
    mesh = jax.make_mesh(
        (2, 2, 2), axes, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8]
    )
    spec = P(None, *axes)
    got = jax.jit(
        jax.shard_map(
            functools.partial(pulled_back, layer, 1),
            mesh=mesh,
            in_specs=(spec, spec),
            out_specs=(spec, spec),
            check_vma=False,
        )
    )(x, x)
    for a, b in zip(got, pulled_back(layer, 1, x, x)):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


def test_padding_counts_as_zeros():
    ones = jnp.ones((1, 3, 3, 1))
    got = AvgPool(3, 1, padding=1)(ones)[0, :, :, 0] * 9
    np.testing.assert_allclose(got, [[4, 6, 4], [6, 9, 6], [4, 6, 4]])


def test_a_grid_is_that_of_adaptive_pooling():
    x = jnp.arange(7.0).reshape(1, 7, 1, 1)
    got = GridMean((3, 1))(x).reshape(-1)
    np.testing.assert_allclose(got, [1, 3, 5])  # rows 0-2, 2-4, 4-6


def test_outputs_that_do_not_divide_are_refused():
    split = jax.shard_map(
        MaxPool(3, 2),
        mesh=mesh_of(2, 1),
        in_specs=POSITIONS,
        out_specs=POSITIONS,
        check_vma=False,
    )
    with pytest.raises(BadInput, match="along spatial_h into blocks with padding"):
        jax.eval_shape(split, jnp.ones((1, 8, 8, 1)))


def test_narrow_floats_keep_their_dtype():
    x = jnp.ones((1, 8, 8, 3), jnp.bfloat16)
    for layer in LAYERS.values():
        if layer is not LAYERS["grid that is the image"]:
            assert layer(x).dtype == jnp.bfloat16
