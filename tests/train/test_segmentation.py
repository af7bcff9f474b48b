"""Segmentation: losses and scores of pixels are those of their formulas."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.train.segmentation import Segmentation

RNG = np.random.default_rng(0)
IGNORED = 255
WEIGHTS = (0.5, 1.0, 2.0)


@pytest.fixture(params=[(4, 6), (2, 4, 3)], ids=["image", "volume"])
def pixels(request):
    """Logits and masks of three samples; the last has no pixel that counts."""
    logits = RNG.normal(size=(3, *request.param, 3))
    mask = RNG.integers(0, 3, (3, *request.param)).astype(np.int32)
    mask[RNG.random(mask.shape) < 0.2] = IGNORED
    mask[2] = IGNORED
    return logits, mask


def softmax(logits):
    powers = np.exp(logits)
    return powers / powers.sum(-1, keepdims=True)


def by_hand(kind, logits, mask):
    """The losses, pixel by pixel."""
    losses = []
    for sample, classes in zip(softmax(logits), mask):
        counted = classes != IGNORED
        share, true = sample[counted], classes[counted]
        weights = np.array([WEIGHTS[k] for k in true])
        found = -np.log(share[np.arange(len(true)), true])
        entropy = (found * weights).sum() / weights.sum() if len(true) else 0.0
        dice = 0.0
        for k, weight in enumerate(WEIGHTS):
            both = share[true == k, k].sum()
            total = share[:, k].sum() + (true == k).sum()
            dice += weight * (2 * both + 1e-5) / (total + 1e-5)
        dice = 1 - dice / sum(WEIGHTS)
        losses.append(
            {"cross_entropy": entropy, "dice": dice, "both": entropy + dice}[kind]
        )
    return losses


@pytest.mark.parametrize("kind", ["cross_entropy", "dice", "both"])
def test_losses_are_those_of_the_formulas(kind, pixels):
    objective = Segmentation(loss=kind, class_weights=WEIGHTS, ignore_value=IGNORED)
    with jax.enable_x64(True):
        logits, mask = map(jnp.asarray, pixels)
        found = objective.losses(logits, {"mask": mask})
        gradient = jax.grad(lambda x: objective.losses(x, {"mask": mask}).sum())(logits)
    np.testing.assert_allclose(found, by_hand(kind, *pixels), rtol=1e-12)
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[pixels[1] == IGNORED].any()


def test_scores_are_those_of_all_pixels(pixels):
    logits, mask = pixels
    objective = Segmentation(ignore_value=IGNORED)
    batch = {"mask": jnp.asarray(mask)}
    real = np.array([True, True, False])
    sums = objective.answer_sums(jnp.asarray(logits), batch, jnp.asarray(real))
    counted = (mask != IGNORED) & real.reshape(-1, *(1,) * (mask.ndim - 1))
    answer, true = logits.argmax(-1)[counted], mask[counted]
    assert int(sums["correct"]) == (answer == true).sum()
    assert int(sums["answers"]) == len(true)
    scores = objective.scores({"class_counts": np.asarray(sums["class_counts"])})
    iou = [
        ((answer == k) & (true == k)).sum() / ((answer == k) | (true == k)).sum()
        for k in range(3)
    ]
    assert [scores[f"iou_{k}"] for k in range(3)] == pytest.approx(iou)
    assert scores["mean_iou"] == pytest.approx(np.mean(iou))
    assert scores["dice_1"] == pytest.approx(2 * iou[1] / (1 + iou[1]))
    assert tuple(scores)[:2] == objective.score_names


def test_a_class_that_is_nowhere_has_no_score():
    scores = Segmentation().scores({"class_counts": np.array([[2, 0], [2, 0], [4, 0]])})
    assert scores == {
        **{"mean_iou": 0.5, "mean_dice": 2 / 3},
        **{"iou_0": 0.5, "dice_0": 2 / 3},
    }


def shapes(**sizes):
    return {key: jax.ShapeDtypeStruct(size, "float32") for key, size in sizes.items()}


@pytest.mark.parametrize(
    ("image", "mask", "logits"),
    [
        ((2, 8, 8, 1), (2, 8, 4), (2, 8, 4, 3)),
        ((2, 8, 8, 1), (2, 8, 8), (2, 4, 4, 3)),
        ((2, 8, 8, 1), (2, 8, 8), (2, 3)),
    ],
)
def test_other_sizes_are_refused(image, mask, logits):
    outputs = shapes(logits=logits)["logits"]
    with pytest.raises(BadInput, match="different sizes") as refused:
        Segmentation().check_outputs(outputs, shapes(image=image, mask=mask))
    assert str(list(logits[1:])) in refused.value.values


def test_weights_are_of_the_classes():
    batch, outputs = shapes(image=(2, 8, 8, 1), mask=(2, 8, 8)), (2, 8, 8, 3)
    with pytest.raises(BadInput, match="one weight for each class") as refused:
        Segmentation(class_weights=(1.0, 2.0)).check_outputs(
            shapes(x=outputs)["x"], batch
        )
    assert refused.value.values == "2 weights, 3 classes"


def test_a_split_that_ends_before_the_masks_is_refused():
    plan = Plan(mesh=MeshShape(spatial_h=2), spatial_end="head")
    batch = shapes(image=(2, 8, 8, 1), mask=(2, 8, 8))
    with pytest.raises(BadInput, match="not cut as they are") as refused:
        Segmentation().on_blocks(plan, batch)
    assert "plan.spatial_end = head" in refused.value.values
    staged = replace(plan, mesh=MeshShape(spatial_h=2, pipe=2), spatial_end="")
    assert Segmentation().on_blocks(staged, batch).split.rows == (8, 8)
    whole = Plan(mesh=MeshShape(data=2))
    assert Segmentation().on_blocks(whole, batch) == Segmentation()
