"""Law 1 for losses of pixels, and evaluations of split samples: equal to one device."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.layers import bind
from jaxdist.models.config import ModelConfig
from jaxdist.train.count_words import words_total
from jaxdist.train.program import compile_eval_step

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

MODEL = ModelConfig(name="unet2d", size="tiny", dropout=0.3)
SOLID = ModelConfig(name="unet3d", size="tiny", dropout=0.3)
WEIGHTS = (0.5, 1.0, 2.0, 4.0)
LOSSES = {
    "dice and cross entropy": dict(loss="dice_cross_entropy", loss_weights=WEIGHTS),
    "relative l2": dict(loss="relative_l2", loss_weights=WEIGHTS),
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
    config = replace(config, **how)
    task = parts.make_task(config, jnp.float64)
    batch = parts.make_batch(config, jnp.float64, 4, image)
    return task, parts.make_state(task), batch, axes


def check_step(parts, name, **how):
    with jax.enable_x64(True):
        task, state, batch, axes = case(parts, name, **how)
        layout = parts.layout_of(task, axes, batch)
        want = jax.jit(lambda *args: parts.one_device(task, *args))(state, batch)
        got = parts.run_layout(layout, state, parts.padded(batch, layout))
        parts.assert_leaves_equal(got, jax.tree.map(np.asarray, want), 1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CASES)
def test_float64(name, loss, parts):
    check_step(parts, name, **LOSSES[loss])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["dice", "l1", "l2"])
@pytest.mark.parametrize("name", CASES)
def test_losses_of_one_term(name, loss, parts):
    check_step(parts, name, loss=loss)


@pytest.mark.parametrize("name", ["data 2 x spatial_h 2", "12 rows on 2, filters"])
def test_accumulated_microbatches(name, parts):
    # Not the network with batch norms, whose statistics are of a microbatch.
    with jax.enable_x64(True):
        task, state, batch, axes = case(parts, name, loss="dice_cross_entropy")
        layout = parts.layout_of(task.in_parts(2), axes, batch)
        want = jax.jit(lambda *args: parts.one_device(task, *args))(state, batch)
        got = parts.run_layout(layout, state, parts.padded(batch, layout))
        parts.assert_leaves_equal(got, jax.tree.map(np.asarray, want), 1e-9)


def evaluate(parts, name, **how):
    """Sums of an evaluation, and what the network returns on one device.

    The last sample of four is padding of the batch.
    """
    with jax.enable_x64(True):
        task, state, batch, axes = case(parts, name, **how)
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
        found |= {k: words_total(x) for k, x in found.items() if x.dtype == np.int32}

        model = nnx.merge(task.graph, state.params, state.stats)
        model.eval()
        bind(model)
        outputs = model(jnp.asarray(batch["image"]))[:3]
        batch = {key: array[:3] for key, array in batch.items()}
        loss = np.asarray(task.objective.losses(outputs, batch)).sum()
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-12)
    assert found["samples"] == 3
    return found, np.asarray(outputs), batch, task.objective


@pytest.mark.parametrize("name", CASES | STAGES)
def test_an_evaluation_counts_every_pixel_once(name, parts):
    found, logits, batch, _ = evaluate(parts, name)
    mask = batch["mask"]
    counted = mask != -100
    answer, true = logits.argmax(-1)[counted], mask[counted]
    want = [
        [((answer == k) & (true == k)).sum() for k in range(4)],
        [(answer == k).sum() for k in range(4)],
        [(true == k).sum() for k in range(4)],
    ]
    np.testing.assert_array_equal(found["class_counts"], want)
    assert (found["correct"], found["answers"]) == ((answer == true).sum(), len(true))


@pytest.mark.parametrize("name", ["data 2 x spatial_h 2", "12 x 8 x 4 on 2 x 2"])
def test_an_evaluation_adds_every_error_once(name, parts):
    found, outputs, batch, objective = evaluate(parts, name, loss="l1")
    target = batch["target"]
    error = (outputs - target).reshape(-1, 4)
    counts = (~np.isnan(error)).sum(0)
    np.testing.assert_array_equal(found["channel_counts"], [counts, [3] * 4])
    scores = objective.scores(found)
    want = {
        "mae": np.nanmean(abs(error), 0),
        "rmse": np.nanmean(error**2, 0) ** 0.5,
        "relative_l2": np.mean(
            [
                (np.nansum(e**2, 0) / np.nansum(t**2, 0)) ** 0.5
                for e, t in zip(
                    (outputs - target).reshape(3, -1, 4), target.reshape(3, -1, 4)
                )
            ],
            0,
        ),
    }
    for key, errors in want.items():
        each = [scores[f"{key}_{c}"] for c in range(4)]
        np.testing.assert_allclose(each, errors, rtol=1e-12)
        np.testing.assert_allclose(scores[key], errors.mean(), rtol=1e-12)
