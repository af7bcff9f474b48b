"""Blocks with padding equal the whole image, whatever numbers lie in the padding."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.layers import (
    AvgPool,
    BatchNorm,
    Conv,
    Dropout,
    GlobalMean,
    GridMean,
    LocalResponseNorm,
    MaxPool,
    bind,
)
from jaxdist.layers.halo import Split

AXES = ("spatial_d", "spatial_h", "spatial_w")
KEY, IDS = jax.random.key(3), jnp.arange(2, dtype=jnp.int32)


def conv(kernel, stride=1, padding="SAME", **how):
    return Conv(4, 6, kernel, stride, padding=padding, rngs=nnx.Rngs(0), **how)


def laid_out(layer, rows, devices):
    """Rows of a block of the input, and of the output; and the output's real rows."""
    if not hasattr(layer, "windows"):
        blocks = [-(-n // count) for n, count in zip(rows, devices)]
        return blocks, blocks, rows
    whole = layer.windows(rows)
    each = [
        max(-(-w.rows // (n * w.stride)), -(-w.outputs // n))
        for w, n in zip(whole, devices)
    ]
    before = [
        k * w.stride if n > 1 else w.rows for k, w, n in zip(each, whole, devices)
    ]
    behind = [k if n > 1 else w.outputs for k, w, n in zip(each, whole, devices)]
    return before, behind, tuple(w.outputs for w in whole)


def spread(x, blocks, devices, rng):
    """A padded array; random numbers of a thousand where there is no x."""
    shape = (x.shape[0], *(b * n for b, n in zip(blocks, devices)), x.shape[-1])
    wide = rng.normal(size=shape) * 1000
    wide[tuple(slice(n) for n in x.shape)] = x
    return jnp.asarray(wide)


def real(x, rows):
    return np.asarray(x)[(slice(None), *(slice(n) for n in rows))]


def beyond(x, rows):
    """What lies in the padding."""
    outside = np.ones(x.shape, bool)
    outside[(slice(None), *(slice(n) for n in rows))] = False
    return np.asarray(x)[outside]


def pulled_back(layer, rows, share):
    """Output, statistics, and gradients of the output's product with `ct`."""
    graph, params, stats = nnx.split(layer, nnx.Param, ...)

    def run(params, x, ct):
        def score(params, x):
            own = nnx.merge(graph, params, stats, copy=True)
            bind(own, KEY, IDS)
            if rows is not None and hasattr(own, "split"):
                own.split = Split(rows=rows)
            y = own(x)
            return (y * ct).sum() / share, (y, nnx.state(own, nnx.BatchStat))

        grads, (y, after) = jax.grad(score, (0, 1), has_aux=True)(params, x)
        return y, grads[1], (grads[0], after)

    return run, params


def assert_equal(layer, rows, devices, channels=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, *rows, channels)) - 1
    params = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(size=p.shape)), nnx.state(layer, nnx.Param)
    )
    nnx.update(layer, params)
    before, behind, outputs = laid_out(layer, rows, devices)
    whole, params = pulled_back(layer, None, 1)
    y = jax.eval_shape(whole, params, jnp.asarray(x), jnp.asarray(0.0))[0]
    ct = rng.normal(size=y.shape)
    gathers = isinstance(layer, GlobalMean | GridMean)
    names = AXES[-len(rows) :]
    positions = P(None, *names)
    out = P() if gathers else positions
    wide_ct = ct
    if not gathers:
        wide_ct = np.array(spread(ct, behind, devices, rng))
        # No layer reads padding, so none hands a gradient to it.
        mask = np.zeros(wide_ct.shape)
        mask[tuple(slice(n) for n in ct.shape)] = 1
        wide_ct = wide_ct * mask
    mesh = jax.make_mesh(
        (*devices, 2),
        (*names, "tensor"),
        axis_types=(AxisType.Auto,) * (len(names) + 1),
        devices=jax.devices()[: 2 * math.prod(devices)],
    )
    run, _ = pulled_back(layer, rows, math.prod(devices) if gathers else 1)

    def local(params, x, ct):
        y, dx, (grads, after) = run(params, x, ct)
        return y, dx, (jax.lax.psum(grads, names), after)

    step = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(), positions, out),
        out_specs=(out, positions, P()),
        check_vma=False,
    )
    wide = spread(x, before, devices, rng)
    got = jax.jit(step)(params, wide, jnp.asarray(wide_ct))
    want = jax.jit(whole)(params, jnp.asarray(x), jnp.asarray(ct))
    assert not beyond(got[1], rows).any()
    assert np.isfinite(got[0]).all()
    pairs = [
        (got[0] if gathers else real(got[0], outputs), want[0]),
        (real(got[1], rows), want[1]),
        *zip(jax.tree.leaves(got[2]), jax.tree.leaves(want[2]), strict=True),
    ]
    for a, b in pairs:
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * max(np.abs(b).max(), 1))


SPLITS = list(itertools.product((7, 13, 27), (2, 4)))
PADDINGS = ["SAME", "VALID", [(2, 1), (1, 1)]]
WINDOWS = [
    (taps, stride, padding)
    for taps, stride, padding in itertools.product(
        (1, 3, 5, 7, 11), (1, 2, 4), PADDINGS
    )
]


@pytest.mark.parametrize(("taps", "stride", "padding"), WINDOWS)
def test_convolution(taps, stride, padding):
    """Each window meets one of the six splits; each padding and stride all of them."""
    turn = WINDOWS.index((taps, stride, padding))
    least = 1 if padding == "SAME" else taps  # else the smallest image gives no row
    fits = [(n, d) for n, d in SPLITS if n >= least]
    rows, devices = fits[(turn + turn // 3 + turn // 9) % len(fits)]
    layer = conv((taps, 3), (stride, 1), padding)
    assert_equal(layer, (rows, 3), (devices, 1))


LAYERS = {
    "two groups": lambda: conv((3, 3), feature_group_count=2),
    "dilated": lambda: conv((3, 3), kernel_dilation=2),
    "11x11 stride 4, padding 2": lambda: conv((11, 11), 4, 2),
    "7x7 stride 2, padding 3": lambda: conv((7, 7), 2, 3),
    "1x1 with padding": lambda: conv((1, 1), 1, 1),
    "3x3 stride 4, a row before": lambda: conv((3, 3), 4, ((1, 0), (1, 0))),
    "max 3x3 stride 2": lambda: MaxPool(3, 2),
    "max 3x3 stride 2, padding 1": lambda: MaxPool(3, 2, padding=1),
    "max 3x3 stride 2, a row behind": lambda: MaxPool(3, 2, padding=((0, 1), (0, 1))),
    "max 2x2 stride 2": lambda: MaxPool(2, 2),
    "max 5x5 stride 1, padding 2": lambda: MaxPool(5, 1, padding="SAME"),
    "average 3x3, padding 1": lambda: AvgPool(3, 1, padding=1),
    "average 3x3 stride 2": lambda: AvgPool(3, 2),
    "norm": lambda: BatchNorm(4, rngs=nnx.Rngs(0)),
    "dropout": lambda: Dropout(0.4),
    "response": lambda: LocalResponseNorm(alpha=0.1),
    "global mean": GlobalMean,
    "grid of 3 x 5": lambda: GridMean((3, 5)),
    "grid of 7 x 7": lambda: GridMean((7, 7)),
}
PLANES = {
    "7 x 13 on 2 x 2": ((7, 13), (2, 2)),
    "13 x 7 on 4 x 1": ((13, 7), (4, 1)),
    "27 x 13 on 1 x 4": ((27, 13), (1, 4)),
}


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, plane):
    rows, devices = PLANES[plane]
    if name.startswith("11x11"):  # needs seven rows with its padding
        rows = tuple(max(n, 13) for n in rows)
    assert_equal(LAYERS[name](), rows, devices)


SOLIDS = {
    "2x2x2": lambda: conv((2, 2, 2)),
    "3x3x3 stride 2": lambda: conv((3, 3, 3), 2),
    "max 2x2x2 stride 2": lambda: MaxPool(2, 2),
    "grid": lambda: GridMean((2, 2, 2)),
    "norm": lambda: BatchNorm(4, rngs=nnx.Rngs(0)),
    "dropout": lambda: Dropout(0.4),
}


@pytest.mark.parametrize("name", SOLIDS)
def test_three_dims(name):
    assert_equal(SOLIDS[name](), (7, 5, 3), (2, 2, 1))
