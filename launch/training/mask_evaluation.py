"""Held-out masks one by one: how well each is met, and where the worst are wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from jaxdist.input.augmentation import Augmentation
from jaxdist.input.sources import Source
from jaxdist.launch.config import Experiment
from jaxdist.launch.run_folder.sample_evaluation import (
    ClassOverlap,
    SampleEvaluation,
    ScoredMask,
)
from jaxdist.launch.training.pictures import (
    encode_classes,
    encode_errors,
    encode_picture,
)
from jaxdist.train.load import load
from jaxdist.train.segmentation import Segmentation
from jaxdist.train.sliding_window import BlendedPlanes, SlidingWindow

_MAX_SAMPLES: Final = 64
"""Samples that are looked at: one may be a large volume, on one device."""
_MAX_WORST: Final = 6
"""Samples of the lowest Dice that are kept."""

Predict = Callable[[NDArray[Any]], NDArray[Any]]
"""Maps an image [..., C] of a window's size to logits [..., classes]."""


def evaluate_masks(
    config: Experiment,
    run: Path,
    objective: Segmentation,
    test: Source,
    *,
    samples: int,
    step: int,
    trust: bool,
) -> SampleEvaluation:
    """Compare what a checkpoint says of held-out images with their masks.

    Args:
        config: of the run; images are seen by its windows, if it has any.
        run: folder of the run.
        objective: says which pixels count.
        test: held-out samples.
        samples: most samples to look at.
        step: of the checkpoint.
        trust: whether any module that the files of the run name is imported.
    """
    # Evenly, since held-out samples may lie sorted.
    count = min(samples, _MAX_SAMPLES, len(test))
    ids = np.unique(np.linspace(0, len(test) - 1, count).astype(np.int64))
    rows: list[tuple[float, ScoredMask]] = []
    totals: Any = 0
    with jax.enable_x64(config.precision == "float64"):
        network, _ = load(run, step, trust=trust)
        predict = _predict(network)
        for sample in ids:
            read = test.get(np.array([sample]))
            image, mask = np.asarray(read["image"][0]), np.asarray(read["mask"][0])
            window = _window(config, image.shape[:-1])
            answer = np.stack(list(_answers(predict, window, image)))
            counted = mask != objective.ignore_value
            counts = _count_classes(answer[counted], mask[counted])
            # A mask may have a class that none before it had.
            width = max(counts.shape[1], np.shape(totals)[-1] if np.ndim(totals) else 0)
            totals = _widen(totals, width) + _widen(counts, width)
            dice = _mean_dice(counts)
            rows.append((dice, _draw(int(sample), dice, image, mask, answer, counted)))
    both, said, true = totals
    return SampleEvaluation(
        checkpoint=step,
        asked=samples,
        samples=len(ids),
        held_out=len(test),
        class_names=list(getattr(test, "class_names", ())),
        overlaps=[
            ClassOverlap(
                label=int(label),
                mask=int(true[label]),
                answer=int(said[label]),
                both=int(both[label]),
            )
            for label in np.flatnonzero(said + true)
        ],
        masks=[row for _, row in sorted(rows, key=lambda x: x[0])[:_MAX_WORST]],
    )


def _window(config: Experiment, image: tuple[int, ...]) -> SlidingWindow:
    """Return the windows of a run; one of the whole image where it has none."""
    data = config.data
    # As an evaluation sees it: by its windows, else in the size of training's crops.
    asked = data.eval_window or Augmentation.parse(data.augment).crop or image
    sides = asked * len(image) if len(asked) == 1 else asked
    return SlidingWindow(sides=sides, overlap=data.eval_overlap, blend=data.eval_blend)


def _predict(network: nnx.Module) -> Predict:
    """Return a network of one image as a compiled function."""
    # Weights as an argument: closed over they would be constants of the program.
    graph, state = nnx.split(network)
    dtype = jnp.result_type(float)

    @jax.jit
    def run(state: Any, image: jax.Array) -> jax.Array:
        return nnx.merge(graph, state)(image[None])[0]

    return lambda image: np.asarray(run(state, jnp.asarray(image, dtype)))


def _answers(
    predict: Predict, window: SlidingWindow, image: NDArray[Any]
) -> Iterator[NDArray[np.int64]]:
    """Yield the class of each pixel, plane by plane."""
    whole = image.shape[:-1]
    # A window that is larger than the image sees zeros behind it.
    behind = [(0, max(n - rows, 0)) for n, rows in zip(window.sides, whole)]
    padded = np.pad(image, [*behind, (0, 0)])
    planes, places = BlendedPlanes(window, whole), window.places(whole)
    for place, after in zip(places, [*places[1:], whole]):
        part = tuple(slice(p, p + n) for p, n in zip(place, window.sides))
        planes.add(place, predict(padded[part]))
        # Planes in front of the next window are done.
        for plane in planes.take(after[0]):
            yield plane.argmax(-1)


def _count_classes(
    answer: NDArray[np.integer[Any]], mask: NDArray[np.integer[Any]]
) -> NDArray[np.int64]:
    """Count pixels by class, [3, classes]: in both, of the answer, of the mask."""
    size = 1 + int(max(answer.max(initial=0), mask.max(initial=0)))
    both = answer[answer == mask]
    return np.stack([np.bincount(x, minlength=size) for x in (both, answer, mask)])


def _widen(counts: Any, classes: int) -> NDArray[np.int64]:
    """Return counts [3, n] as [3, classes], zeros behind them."""
    known = np.zeros((3, classes), np.int64)
    if np.ndim(counts):
        known[:, : counts.shape[1]] = counts
    return known


def _mean_dice(counts: NDArray[np.int64]) -> float:
    """Return the mean Dice over the classes of a sample, its background left out."""
    both, answer, mask = counts[:, 1:]
    seen = answer + mask > 0
    return (
        float((2 * both / np.maximum(answer + mask, 1))[seen].mean())
        if any(seen)
        else 1.0
    )


def _draw(
    sample: int,
    dice: float,
    image: NDArray[Any],
    mask: NDArray[np.integer[Any]],
    answer: NDArray[np.int64],
    counted: NDArray[np.bool_],
) -> ScoredMask:
    """Draw the plane of a sample in which most pixels are wrong."""
    wrong, planes, plane = (answer != mask) & counted, mask.shape[0], 0
    if mask.ndim == 3:
        # Without an error, where most of the mask is.
        most = wrong if wrong.any() else (mask > 0) & counted
        plane = int(most.sum((1, 2)).argmax())
        image, mask, answer, counted = (
            x[plane] for x in (image, mask, answer, counted)
        )
    # -1 is a pixel that does not count.
    shown = np.where(counted, mask, -1)
    return ScoredMask(
        id=sample,
        dice=dice,
        wrong=int(wrong.sum()),
        pixels=wrong.size,
        plane=plane,
        planes=planes if wrong.ndim == 3 else 1,
        picture=encode_picture(image),
        mask=encode_classes(shown),
        answer=encode_classes(answer),
        errors=encode_errors(image, shown, answer, -1),
    )
