"""Law 1 where blocks are computed again until one of a network, and kept behind it.

The audit is part of it: no collective runs twice.
"""

import jax
import jax.numpy as jnp
import pytest
from covers import covering
from flax import nnx

from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.train.step import make_train_step

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

MODELS = {
    "resnet8": ModelConfig(name="resnet8", size="tiny", width=4, dropout=0.3),
    "googlenet": ModelConfig(name="googlenet", size="tiny", aux=True, dropout=0.3),
    "gpt2_small": ModelConfig(name="gpt2_small", size="tiny", depth=2, dropout=0.3),
    "s2vt": ModelConfig(name="s2vt", size="tiny", dropout=0.3),
}
BESIDE = {
    "fsdp": dict(fsdp=2),
    "tensor": dict(tensor=2),
    "columns": dict(data=2, spatial_w=2),
}
PLACES = {"second": 1, "last": -1}
"""Places of blocks in a chain."""
NO_IMAGES = ("gpt2_small", "s2vt")
EVERY = [
    (model, beside, place)
    for model in MODELS
    for beside in BESIDE
    for place in PLACES
    if not (model in NO_IMAGES and beside == "columns")
]

COVER = covering(EVERY)


def blocks_of(config):
    network = nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))
    return [name for name, _ in network.chain()]


def layout(cell):
    model, beside, place = cell
    return BESIDE[beside] | until(model, PLACES[place])


def until(model, place):
    return {"remat": True, "remat_end": blocks_of(MODELS[model])[place]}


@pytest.mark.parametrize("cell", COVER, ids=", ".join)
def test_cover(cell, assert_equal_one_device):
    assert_equal_one_device(MODELS[cell[0]], layout(cell), size=8)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [c for c in EVERY if c not in COVER], ids=", ".join)
def test_rest(cell, assert_equal_one_device):
    assert_equal_one_device(MODELS[cell[0]], layout(cell), size=8)


@pytest.mark.parametrize(
    "axes",
    [
        # Where images are gathered before what is computed again ends.
        dict(data=2, spatial_h=2, spatial_end="block1", remat_end="block3"),
        pytest.param(
            dict(spatial_h=2, tensor=2, spatial_end="block3", remat_end="block1"),
            marks=pytest.mark.slow,
        ),
        pytest.param(dict(fsdp=2, zero=1, remat_end="block2"), marks=pytest.mark.slow),
    ],
    ids=["behind the gather", "before it", "zero 1"],
)
def test_beside_other_settings(axes, assert_equal_one_device):
    assert_equal_one_device(MODELS["resnet8"], axes | {"remat": True}, size=8)


@pytest.mark.parametrize(
    ("name", "image", "axes"),
    [
        # Skips of levels that are computed again, and of one that is kept.
        ("unet2d", (16, 8, 1), dict(data=2, spatial_w=2, remat_end="up1")),
        pytest.param(
            *("unet2d", (12, 8, 1), dict(spatial_h=2, tensor=2)),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("unet3d", (8, 8, 4, 2), dict(fsdp=2, spatial_d=2, remat_end="down2")),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["until up1", "all, 12 rows on 2", "volumes"],
)
def test_skips_across_blocks(name, image, axes, assert_equal_one_device):
    config = ModelConfig(name=name, size="tiny", dropout=0.3)
    axes = axes | {"remat": True}
    assert_equal_one_device(config, axes, size=4, image=image)


@pytest.mark.parametrize(
    ("model", "beside"),
    [("googlenet", "tensor"), ("gpt2_small", "tensor"), ("resnet8", "columns")],
)
def test_the_ledger_is_that_of_a_step_that_keeps_all(model, beside, parts):
    task = parts.make_task(MODELS[model], jnp.float32)
    batch = parts.make_batch(MODELS[model], jnp.float32, 8)
    again = BESIDE[beside] | until(model, -2)
    found = parts.layout_of(task, again, batch).ledgers
    want = parts.layout_of(task, BESIDE[beside], batch).ledgers
    assert [one.rows for one in found] == [one.rows for one in want]


@pytest.mark.parametrize("place", [1, 2, 4])
def test_only_blocks_before_the_end_are_computed_again(place, parts):
    """What the gradient's program computes again has the names of those blocks."""
    task = parts.make_task(MODELS["resnet8"], jnp.float32)
    batch = parts.make_batch(MODELS["resnet8"], jnp.float32, 8)
    axes = {"data": 2, **until("resnet8", place)}
    found = parts.layout_of(task, axes, batch)
    assert blocks_again(found) == set(blocks_of(MODELS["resnet8"])[:place])


def blocks_again(layout):
    step = jax.jit(make_train_step(layout))
    lowered = step.lower(layout.state, layout.padded_shapes(layout.batch_shapes))
    names = lowered.as_text(debug_info=True).split('"')
    found = (name.split("rematted_computation/", 1) for name in names)
    return {parts[1].split("/")[0] for parts in found if len(parts) > 1}
