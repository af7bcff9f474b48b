"""A convolution of blocks equals the convolution of the whole, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.core.errors import BadInput
from jaxdist.layers import Conv, ConvTranspose, halo
from jaxdist.layers.halo import Split
from jaxdist.layers.window import Window
from jaxdist.profile.flops import walk_jaxpr

CASES = {
    "3x3": dict(kernel=(3, 3), strides=1),
    "3x3 stride 2": dict(kernel=(3, 3), strides=2),
    "1x1 stride 2": dict(kernel=(1, 1), strides=2),
    "7x7 stride 2": dict(kernel=(7, 7), strides=2),
    "5x5": dict(kernel=(5, 5), strides=1),
    "11x11, wider than a block": dict(kernel=(11, 11), strides=1),
    "2x2 even": dict(kernel=(2, 2), strides=1),
    "3x3 dilated": dict(kernel=(3, 3), strides=1, kernel_dilation=2),
    "3x3 stride 4": dict(kernel=(3, 3), strides=4),
    "7x7 stride 2 padding 3": dict(kernel=(7, 7), strides=2, padding=3),
    "3x3 padding 2 before": dict(kernel=(3, 3), strides=1, padding=[(2, 0), (0, 2)]),
    "3x3 in 2 groups": dict(kernel=(3, 3), strides=1, feature_group_count=2),
    "3x3 transposed": dict(layer=ConvTranspose, kernel=(3, 3), strides=1),
    "2x2 stride 2 transposed": dict(layer=ConvTranspose, kernel=(2, 2), strides=2),
}
SPLITS = {"H": (4, 1), "W": (1, 4), "HxW": (2, 2), "none": (1, 1)}


def mesh_of(h, w):
    """A mesh with an idle axis, where XLA's own split would go wrong."""
    return jax.make_mesh(
        (h, w, 2),
        ("spatial_h", "spatial_w", "tensor"),
        axis_types=(AxisType.Auto,) * 3,
        devices=jax.devices()[: h * w * 2],
    )


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("case", CASES)
def test_blocks_equal_the_whole(case, split, platform, monkeypatch):
    """In the form that a platform has them in, run on CPUs."""
    how = dict(CASES[case])
    kernel, layer = how.pop("kernel"), how.pop("layer", Conv)
    conv = layer(4, 6, kernel, **how, use_bias=True, rngs=nnx.Rngs(0))
    graph, params = nnx.split(conv)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 16, 32, 4)))
    params = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params)

    def apply(params, x):
        return nnx.merge(graph, params)(x)

    weight = jnp.asarray(rng.normal(size=apply(params, x).shape))
    mesh, spec = mesh_of(*SPLITS[split]), P(None, "spatial_h", "spatial_w")

    def score(params, x, weight):
        return (apply(params, x) * weight).sum()

    def local(params, x, weight):
        value, grads = jax.value_and_grad(score, (0, 1))(params, x, weight)
        axes = ("spatial_h", "spatial_w")
        return jax.lax.psum((value, grads[0]), axes), grads[1]

    want = jax.value_and_grad(score, (0, 1))(params, x, weight)
    # Behind the whole, which is never cut.
    monkeypatch.setattr(halo, "manual_platform", lambda: platform)
    got = jax.jit(
        jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(), spec, spec),
            out_specs=(P(), spec),
            check_vma=False,
        )
    )(params, x, weight)
    pairs = zip(
        jax.tree.leaves(got),
        jax.tree.leaves(((want[0], want[1][0]), want[1][1])),
        strict=True,
    )
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * np.abs(b).max())


WIDE = dict(param_dtype=jnp.float64, rngs=nnx.Rngs(0))


def on_two(layer, rows):
    """Shape of what a layer makes of blocks on two devices, without being told rows."""
    mesh, spec = mesh_of(2, 1), P(None, "spatial_h")
    split = jax.shard_map(
        layer, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    return jax.eval_shape(split, jnp.ones((1, rows, 8, 1))).shape


def test_a_block_without_whole_strides_is_refused():
    conv = Conv(1, 1, (3, 3), 2, **WIDE)
    assert on_two(conv, 8) == (1, 4, 4, 1)
    with pytest.raises(BadInput, match="blocks with padding") as caught:
        on_two(conv, 6)
    assert "6 rows over 2 devices" in caught.value.values


def test_outputs_that_do_not_divide_are_refused():
    with pytest.raises(BadInput, match="along spatial_h") as caught:
        on_two(Conv(1, 1, (3, 3), padding="VALID", **WIDE), 8)
    assert "8 rows over 2 devices give 6" in caught.value.values


def test_blocks_of_rows_that_were_told_still_hold_whole_strides():
    conv = Conv(1, 1, (3, 3), 2, **WIDE)
    conv.split = Split(rows=(5, 8))
    with pytest.raises(BadInput, match="a block of 3 rows does not hold whole strides"):
        on_two(conv, 6)


@pytest.mark.parametrize("padding", [(1, 1), (0, 0)])
def test_a_crop_behind_leaves_the_halo_before(padding):
    """With stride 4 a block's last rows are not its own, but its neighbour's halo."""
    conv = Conv(1, 1, (3, 1), (4, 1), padding=[padding, (0, 0)], **WIDE)
    mesh, spec = mesh_of(2, 1), P(None, "spatial_h")
    split = jax.shard_map(
        conv, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 16, 2, 1)))
    np.testing.assert_allclose(jax.jit(split)(x), conv(x), atol=1e-12)


@pytest.mark.parametrize(("platform", "rows"), [("tpu", 4), ("gpu", 32)])
def test_the_mesh_says_the_platform(platform, rows):
    """Of a mesh that is only described too, as plans for other machines have it."""
    device = jax.sharding.AbstractDevice("", None, platform)
    mesh = jax.sharding.AbstractMesh((2,), ("data",), abstract_device=device)
    conv = Conv(4, 6, (3, 3), **WIDE)
    split = jax.shard_map(
        conv, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.make_jaxpr(split)(jnp.ones((2, 8, 32, 4)))
    ops = (op.eqn for op in walk_jaxpr(traced.jaxpr))
    convolved = [e for e in ops if e.primitive.name == "conv_general_dilated"]
    outputs = {e.outvars[0].aval.shape for e in convolved}
    assert outputs == {(32 // rows, 8, rows, 6)}


def test_a_tpu_cuts_rows_into_samples_where_it_has_few(monkeypatch):
    over = (Window(128, 3, pads=(1, 1)),) * 3
    assert halo._tile_count(1, over) == 1
    monkeypatch.setattr(halo, "manual_platform", lambda: "tpu")
    counts = {n: halo._tile_count(n, over) for n in (1, 2, 3, 4, 6, 8, 12)}
    assert counts == {1: 8, 2: 4, 3: 8, 4: 2, 6: 4, 8: 1, 12: 1}
    others = {
        "a product that skips rows": Window(128, 1, stride=2, pads=(0, -1)),
        "rows that do not divide": Window(132, 3, pads=(1, 1)),
        "a tile of one row": Window(8, 3, pads=(1, 1)),
        "fewer outputs than rows": Window(128, 3, pads=(1, 0)),
        "rows that no window reads": Window(128, 3, stride=4, pads=(0, -1)),
    }
    for why, last in others.items():
        assert halo._tile_count(1, (*over[:-1], last)) == 1, why
    strided = Window(128, 3, stride=2, pads=(0, 1))
    assert halo._tile_count(1, (*over[:-1], strided)) == 8
