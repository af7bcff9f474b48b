"""Law 1 for evaluation by windows: any layout, and the whole where margins allow it."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.layers import Conv, ConvTranspose, InstanceNorm, MaxPool, bind
from jaxdist.models.config import ModelConfig
from jaxdist.train.count_words import count_true
from jaxdist.train.evaluate import metrics_of_sums
from jaxdist.train.segmentation import Segmentation
from jaxdist.train.sliding_window import SlidingWindow
from jaxdist.train.window_evaluate import WindowEvaluator

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

ROWS, COLUMNS = 72, 16
LOSS = Segmentation(loss="dice_cross_entropy", class_weights=(0.5, 1.0, 2.0, 4.0))


class Net(nnx.Module):
    """Two scales and no norm over an image: what it says of a pixel sees few others."""

    norm = None

    def __init__(self, config, *, rngs, dtype=None):
        how = {"rngs": rngs, "dtype": dtype}
        self.high = Conv(1, 4, (3, 3), **how)
        self.pool = MaxPool(2, 2)
        self.low = Conv(4, 4, (3, 3), **how)
        self.up = ConvTranspose(4, 4, (2, 2), (2, 2), **how)
        self.last = Conv(8, 4, (3, 3), **how)

    def __call__(self, x):
        high = jax.nn.relu(self.high(x))
        high = self.norm(high) if self.norm else high
        low = jax.nn.relu(self.low(self.pool(high)))
        return self.last(jnp.concatenate([high, self.up(low)], -1))


class NormNet(Net):
    """The same with a norm over the image that is seen."""

    def __init__(self, config, *, rngs, dtype=None):
        super().__init__(config, rngs=rngs, dtype=dtype)
        self.norm = InstanceNorm(4, rngs=rngs, dtype=dtype)


MARGIN = 6
"""Rows beside a pixel on which what `Net` says of it may depend: 1 of the last
convolution, 2 of the one below and 1 of the pair that is pooled, 1 of the first, and 1
where the pixel is the other of its pair."""


def images(sides=(ROWS, COLUMNS), samples=2):
    draw = np.random.default_rng(3)
    image = draw.random((samples, *sides, 1))
    mask = draw.integers(0, 4, (samples, *sides)).astype(np.int32)
    mask[draw.random(mask.shape) < 0.2] = -100
    return {"image": image, "mask": mask}


def network(parts, make=Net):
    config = ModelConfig(name="unet2d", size="tiny", classes=4)
    task = parts.make_task(config, jnp.float64, make)
    return replace(task, objective=LOSS)


def by_windows(parts, task, axes, window, arrays, size=4):
    """Evaluate samples by windows on a layout; its state is that of one device."""
    sides = window.sides
    batch = {
        "image": np.zeros((size, *sides, 1)),
        "mask": np.zeros((size, *sides), np.int32),
        "id": np.zeros(size, np.int32),
    }
    layout = parts.layout_of(task, axes, batch)
    shapes = parts.shapes_of({k: batch[k] for k in ("image", "id")})
    shardings = layout.batch_shardings(shapes)

    def place(cut):
        laid = parts.padded({**batch, **cut(np.arange(size))}, layout)
        return {k: jax.device_put(laid[k], shardings[k]) for k in shardings}

    evaluate = WindowEvaluator(
        layout=layout,
        batch_shapes=shapes,
        window=window,
        samples=len(arrays["image"]),
        image=arrays["mask"].shape[1:],
        read=lambda n, key, planes: arrays[key][n, planes],
        place=place,
    )
    places = jax.tree.map(lambda x: x.sharding, layout.state)
    state = jax.jit(layout.state_layout.to_device, out_shardings=places)(
        parts.make_state(task)
    )
    return evaluate(state), evaluate


def whole(parts, task, arrays):
    """Evaluate images whole, as anyone would."""
    state = parts.make_state(task)
    model = nnx.merge(task.graph, state.params, state.stats)
    model.eval()
    bind(model)
    outputs = jax.jit(model)(jnp.asarray(arrays["image"]))
    batch = {"mask": jnp.asarray(arrays["mask"])}
    sums = {
        **LOSS.answer_sums(outputs, batch, jnp.ones(len(outputs), bool)),
        "loss": LOSS.losses(outputs, batch).sum(),
        "samples": count_true(jnp.ones(len(outputs), bool)),
    }
    return metrics_of_sums(SimpleNamespace(objective=LOSS), [sums])


def assert_equal(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-9, err_msg=name)


def test_the_margin_is_what_the_network_sees(parts):
    with jax.enable_x64(True):
        task = network(parts)
        state = parts.make_state(task)
        model = nnx.merge(task.graph, state.params, state.stats)
        model.eval()
        bind(model)

        def of(row):
            return lambda x: model(x)[0, row].sum()

        x, seen = jnp.asarray(images((24, 8), 1)["image"]), []
        for row in (12, 13):
            moved = np.abs(jax.jit(jax.grad(of(row)))(x)[0]).sum((1, 2)) > 0
            seen += [np.flatnonzero(moved) - row]
        far = np.abs(np.concatenate(seen)).max()
    assert far <= MARGIN


@pytest.mark.parametrize("sides", [(24, 16), (32, 16)])
def test_windows_say_what_the_whole_says_where_margins_are_wide(sides, parts):
    # Each row is that of a window in which it is 6 rows or more from a cut.
    overlap = 2 * MARGIN / sides[0]
    window = SlidingWindow(sides=sides, overlap=overlap, blend="center")
    starts = window.starts(ROWS, 0)
    assert (sides[0] - np.diff(starts) >= 2 * MARGIN).all()
    assert all(start % 2 == 0 for start in starts)
    with jax.enable_x64(True):
        task, arrays = network(parts), images()
        got, evaluate = by_windows(parts, task, {}, window, arrays)
        assert_equal(got, whole(parts, task, arrays))
    assert evaluate.windows == 2 * len(starts)


@pytest.mark.parametrize(
    ("make", "how"),
    [
        # Too narrow a margin, windows that see other rows, a norm over what is seen.
        (Net, dict(overlap=0.0, blend="center")),
        (Net, dict(overlap=0.5, blend="constant")),
        (NormNet, dict(overlap=0.5, blend="center")),
    ],
    ids=["no margin", "borders are blended", "a norm over the image"],
)
def test_the_condition_is_needed(make, how, parts):
    window = SlidingWindow(sides=(24, 16), **how)
    with jax.enable_x64(True):
        task, arrays = network(parts, make), images()
        got, _ = by_windows(parts, task, {}, window, arrays)
        want = whole(parts, task, arrays)
    assert abs(got["loss"] / want["loss"] - 1) > 1e-6


CASES = {
    "data 2 x spatial_h 2": (dict(data=2, spatial_h=2), (24, 16), "gaussian"),
    "uneven rows, filters": (
        dict(spatial_h=4, tensor=2, tensor_strategy="filter"),
        (20, 16),
        "constant",
    ),
    "fsdp 2 x spatial_w 2": (dict(fsdp=2, spatial_w=2), (80, 8), "center"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_layout_changes_nothing(name, parts):
    axes, sides, blend = CASES[name]
    window = SlidingWindow(sides=sides, overlap=0.5, blend=blend)
    with jax.enable_x64(True):
        task, arrays = network(parts), images()
        one, _ = by_windows(parts, task, {}, window, arrays)
        got, _ = by_windows(parts, task, axes, window, arrays)
    assert_equal(got, one)


STAGES = {
    # Two microbatches; and of three stages one, since four windows are no three.
    "pipe 2 x spatial_h 2": dict(pipe=2, spatial_h=2),
    "pipe 3 x data 2": dict(pipe=3, data=2),
    "gpipe, pipe 2 x fsdp 2": dict(
        pipe=2, fsdp=2, order=PipelineConfig(schedule="gpipe")
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_change_nothing(name, parts):
    window = SlidingWindow(sides=(24, 16), overlap=0.5)
    with jax.enable_x64(True):
        task, arrays = network(parts, None), images()
        one, _ = by_windows(parts, task, {}, window, arrays)
        got, _ = by_windows(parts, task, STAGES[name], window, arrays)
    assert_equal(got, one)


@pytest.mark.slow
def test_the_network_of_volumes_is_equal_too(parts):
    # Batch norm in evaluation is a function of one voxel.
    config = ModelConfig(name="unet3d", size="tiny", classes=4, channels=1)
    window = SlidingWindow(sides=(64, 8, 8), overlap=0.75, blend="center")
    with jax.enable_x64(True):
        task = replace(parts.make_task(config, jnp.float64), objective=LOSS)
        arrays = images((96, 8, 8), 1)
        want = whole(parts, task, arrays)
        for axes in ({}, dict(data=2, spatial_d=2, spatial_h=2)):
            got, _ = by_windows(parts, task, axes, window, arrays)
            assert_equal(got, want)


def test_memory_is_that_of_a_window(parts):
    window = SlidingWindow(sides=(16, 16), overlap=0.5)
    task, used = network(parts), []
    with jax.enable_x64(True):
        for rows in (32, 128):
            arrays = images((rows, 16), 1)
            _, evaluate = by_windows(parts, task, {}, window, arrays, size=1)
            used.append((evaluate.device_bytes, evaluate.plane_bytes))
    assert used[0] == used[1]
    # The rows of one window: of its image, and of what the network says of 4 classes.
    assert used[0][1] == 16 * 16 * (1 + 4) * 8
