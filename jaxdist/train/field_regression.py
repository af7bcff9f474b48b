"""Regression of fields: numbers for each pixel of samples that may be split."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.train.count_words import count_words
from jaxdist.train.dense_objective import DenseObjective
from jaxdist.train.objective import Batch, BatchKeys

FieldLoss = Literal["l1", "l2", "relative_l2"]


@dataclass(frozen=True, kw_only=True)
class FieldRegression(DenseObjective):
    """Several numbers a pixel or voxel, from predictions [B, ..., C].

    Of a sample's channel c, with e the prediction less the target t, over the pixels
    x whose target is a number:

        l1            mean_x |e[x, c]|
        l2            mean_x e[x, c]^2
        relative_l2   sqrt(sum_x e[x, c]^2) / sqrt(sum_x t[x, c]^2)

    The loss of a sample is the mean over its channels by their weights. A target that
    is NaN counts for nothing, and a channel without one that counts is left out; so is,
    of `relative_l2`, a channel that is zero throughout. Relative errors of fields: Li
    et al. 2021, arXiv:2010.08895, section 5. Where samples are split, the sums over
    pixels are those of all devices.
    """

    inputs: BatchKeys = (("image", "float32"),)
    targets: BatchKeys = (("target", "float32"),)
    loss: FieldLoss = "l2"
    """What is minimised."""
    channel_weights: tuple[float, ...] = ()
    """Weight of each channel; empty: 1 each."""

    @property
    def ignore_value(self) -> float:
        """The target that counts for nothing."""
        return math.nan

    @property
    def has_answers(self) -> bool:
        """Whether there is an accuracy: a number is near its target, never right."""
        return False

    @property
    def score_names(self) -> tuple[str, ...]:
        """Errors of an evaluation, each the mean over channels."""
        return ("mae", "rmse", "relative_l2")

    def check_outputs(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Hold what a network returns against the targets; nothing is computed.

        Raises:
            BadInput: predictions, targets and images of different sizes, or weights for
                other channels.
        """
        self.check_sizes(
            outputs,
            batch,
            rule="a target [..., C] has numbers for each pixel of its image, and the "
            "network returns as many [..., C]",
            numbers=getattr(outputs, "shape", ())[-1:],
        )
        self.check_weights(self.channel_weights, outputs.shape[-1])

    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the loss of each sample, [B], in float32 or wider."""
        error, target, counts = self._errors(outputs, batch)
        pixels, is_relative = self._pixels(error), self.loss == "relative_l2"
        size = abs(error) if self.loss == "l1" else error**2
        scale = target**2 if is_relative else counts.astype(error.dtype)
        # [B, 2 C], so that devices add both in one all-reduce.
        sums = jnp.concatenate([size.sum(pixels), scale.sum(pixels)], -1)
        size, scale = jnp.split(self.add_devices(sums, outputs), 2, -1)
        each = _divide(size, scale)
        if is_relative:
            each = _sqrt(each)
        given = self.channel_weights or (1.0,) * each.shape[-1]
        # A channel without a target that counts takes no weight from the others.
        weights = jnp.where(scale > 0, jnp.asarray(given, each.dtype), 0.0)
        return _divide((each * weights).sum(-1), weights.sum(-1))

    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return whether predictions are their targets, bool [B, ..., C]."""
        return outputs == batch["target"].astype(outputs.dtype)

    def answer_sums(
        self, outputs: jax.Array, batch: Batch, is_real: jax.Array
    ) -> dict[str, jax.Array]:
        """Add errors by channel, and count what they are of.

        Args:
            outputs: predictions.
            batch: the targets.
            is_real: which samples count, bool [B].

        Returns:
            `channel_sums` [3, C]: |e|, e^2, and relative errors of samples;
            `channel_counts` in two words [2, 2, C]: numbers that count, and samples
            with a relative error.
        """
        error, target, counts = self._errors(outputs, batch)
        pixels = self._pixels(error)
        each = [x.sum(pixels) for x in (abs(error), error**2, target**2)]
        sums = self.add_devices(jnp.stack(each, 1), outputs)
        real = is_real.reshape(-1, *(1,) * (counts.ndim - 1))
        number = count_words((counts & real).sum(pixels, dtype=jnp.int32))
        absolute, square, scale = sums.swapaxes(0, 1)
        found = jnp.stack([absolute, square, _sqrt(_divide(square, scale))])
        # What is not finite for the padding of a batch must not count.
        found = jnp.where(is_real[:, None], found, jnp.zeros_like(found))
        has_scale = (scale > 0) & is_real[:, None]
        return {
            "channel_sums": found.sum(1),
            "channel_counts": jnp.stack(
                [
                    self.add_devices(number, outputs),
                    # Made of sums over all devices already, so not added once more.
                    count_words(has_scale.astype(jnp.int32)),
                ],
                1,
            ),
        }

    def scores(self, sums: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return the errors of each channel, over all held-out samples.

            mae = sum |e| / n    rmse = sqrt(sum e^2 / n)    over all n numbers
            relative_l2          the mean over samples

        Args:
            sums: `channel_sums` and `channel_counts`, as of `answer_sums`.
        """
        absolute, square, relative = sums["channel_sums"]
        numbers, samples = sums["channel_counts"]
        each = {
            "mae": (absolute, numbers),
            "rmse": (square, numbers),
            "relative_l2": (relative, samples),
        }
        scores, channels = dict[str, float](), dict[str, float]()
        for name, (total, count) in each.items():
            # Channels of which nothing was held out have no error, and are not in the
            # mean.
            found = np.flatnonzero(count)
            errors = total[found] / count[found]
            errors = np.sqrt(errors) if name == "rmse" else errors
            scores[name] = math.fsum(errors) / max(len(found), 1)
            channels |= {f"{name}_{k}": float(e) for k, e in zip(found, errors)}
        return scores | channels

    def sum_count(self, channels: int) -> int:
        """Return how many numbers of a sample are summed over its pixels."""
        return 2 * channels

    def _errors(
        self, outputs: jax.Array, batch: Batch
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return errors, targets, both 0 where nothing counts, and what counts."""
        # The difference of two bfloat16 numbers has hardly a digit.
        dtype = accumulation_dtype(outputs.dtype)
        given = batch["target"].astype(dtype)
        counts = ~jnp.isnan(given) & self.real_pixels(outputs)[..., None]
        target = jnp.where(counts, given, jnp.zeros_like(given))
        # Before the difference: a gradient that meets NaN is NaN, whatever hides it.
        found = jnp.where(counts, outputs.astype(dtype), jnp.zeros_like(given))
        return found - target, target, counts

    @staticmethod
    def _pixels(field: jax.Array) -> tuple[int, ...]:
        """Return the dims of a field [B, ..., C] that are cut or could be."""
        return tuple(range(1, field.ndim - 1))


def _divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return x / y; 0, with a gradient of 0, where y is 0."""
    has = y > 0
    return jnp.where(has, x / jnp.where(has, y, jnp.ones_like(y)), jnp.zeros_like(x))


def _sqrt(x: jax.Array) -> jax.Array:
    """Return the square root, with a gradient of 0 at 0, where it has none."""
    has = x > 0
    return jnp.where(has, jnp.sqrt(jnp.where(has, x, jnp.ones_like(x))), x)
