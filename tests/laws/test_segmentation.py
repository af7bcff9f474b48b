"""Law 1 for losses of pixels, and evaluations of split samples: equal to one device."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.layers import bind
from jaxdist.models.config import ModelConfig
from jaxdist.train.program import compile_eval_step
from jaxdist.train.segmentation import Segmentation

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

MODEL = ModelConfig(name="unet2d", size="tiny", dropout=0.3)
SOLID = ModelConfig(name="unet3d", size="tiny", dropout=0.3)
LOSSES = {
    "dice": dict(loss="dice"),
    "both, weights": dict(loss="both", class_weights=(0.5, 1.0, 2.0, 4.0)),
}
CASES = {
    "data 2 x spatial_h 2": (MODEL, (16, 8, 1), dict(data=2, spatial_h=2)),
    "12 rows on 2, filters": (
        MODEL,
        (12, 8, 1),
        dict(spatial_h=2, tensor=2, tensor_strategy="filter"),
    ),
    "12 x 8 x 4 on 2 x 2": (SOLID, (12, 8, 4, 2), dict(spatial_d=2, spatial_h=2)),
}

STAGES = {"pipe 2 x spatial_h 2": (MODEL, (16, 8, 1), dict(pipe=2, spatial_h=2))}
"""The last stage scores; steps in stages are in test_unet_stages.py."""


def case(parts, name, **how):
    config, image, axes = (CASES | STAGES)[name]
    task = parts.make_task(config, jnp.float64)
    task = replace(task, objective=Segmentation(**how))
    batch = parts.make_batch(config, jnp.float64, 4, image)
    return task, parts.make_state(task), batch, axes


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CASES)
def test_float64(name, loss, parts):
    with jax.enable_x64(True):
        task, state, batch, axes = case(parts, name, **LOSSES[loss])
        layout = parts.layout_of(task, axes, batch)
        want = jax.jit(lambda *args: parts.one_device(task, *args))(state, batch)
        got = parts.run_layout(layout, state, parts.padded(batch, layout))
        parts.assert_leaves_equal(got, jax.tree.map(np.asarray, want), 1e-9)


@pytest.mark.parametrize("name", ["data 2 x spatial_h 2", "12 rows on 2, filters"])
def test_accumulated_microbatches(name, parts):
    # Not the network with batch norms, whose statistics are of a microbatch.
    with jax.enable_x64(True):
        task, state, batch, axes = case(parts, name, loss="both")
        layout = parts.layout_of(task.in_parts(2), axes, batch)
        want = jax.jit(lambda *args: parts.one_device(task, *args))(state, batch)
        got = parts.run_layout(layout, state, parts.padded(batch, layout))
        parts.assert_leaves_equal(got, jax.tree.map(np.asarray, want), 1e-9)


@pytest.mark.parametrize("name", CASES | STAGES)
def test_an_evaluation_counts_every_pixel_once(name, parts):
    with jax.enable_x64(True):
        task, state, batch, axes = case(parts, name)
        # The last sample is padding of the batch.
        batch = {**batch, "weight": np.array([1, 1, 1, 0], np.float32)}
        layout = parts.layout_of(
            task, axes, {k: batch[k] for k in batch if k != "weight"}
        )
        step = compile_eval_step(layout, parts.shapes_of(batch))
        laid = jax.device_put(
            parts.padded(batch, layout),
            layout.batch_shardings(parts.shapes_of(batch)),
        )
        places = jax.tree.map(lambda x: x.sharding, layout.state)
        held = jax.jit(layout.state_layout.to_device, out_shardings=places)(state)
        found = jax.tree.map(np.asarray, step(held.params, held.stats, laid))

        model = nnx.merge(task.graph, state.params, state.stats)
        model.eval()
        bind(model)
        logits = np.asarray(model(jnp.asarray(batch["image"])))[:3]
        losses = task.objective.losses(jnp.asarray(logits), {"mask": batch["mask"][:3]})
    mask = batch["mask"][:3]
    counted = mask != -100
    answer, true = logits.argmax(-1)[counted], mask[counted]
    want = [
        [((answer == k) & (true == k)).sum() for k in range(4)],
        [(answer == k).sum() for k in range(4)],
        [(true == k).sum() for k in range(4)],
    ]
    np.testing.assert_array_equal(found["class_counts"], want)
    assert (found["correct"], found["answers"]) == ((answer == true).sum(), len(true))
    np.testing.assert_allclose(found["loss"], np.asarray(losses).sum(), rtol=1e-12)
