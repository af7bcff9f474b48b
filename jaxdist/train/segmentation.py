"""Segmentation: a class for each pixel or voxel of samples that may be split."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxdist.core.axes import spatial_axes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.train.count_words import count_words
from jaxdist.train.dense_objective import DenseObjective
from jaxdist.train.objective import Batch, BatchKeys

SegmentationLoss = Literal["cross_entropy", "dice", "dice_cross_entropy"]

_SMOOTH: Final = 1e-5
"""Added above and below in a Dice score: a class that is nowhere scores 1."""


@dataclass(frozen=True, kw_only=True)
class Segmentation(DenseObjective):
    """One class a pixel or voxel, from logits [B, ..., classes].

    Of a sample's pixels that count, with p the softmax of the logits, t the one-hot
    mask and w the weight of a class:

        cross_entropy       sum_x w[t(x)] (-log p[t(x)](x)) / sum_x w[t(x)]
        dice                1 - sum_k w[k] D[k] / sum_k w[k],
                            D[k] = 2 sum_x p[k] t[k] / (sum_x p[k] + sum_x t[k])
        dice_cross_entropy  their sum

    Ronneberger et al. 2015, arXiv:1505.04597, equation 1; soft Dice and the sum:
    Isensee et al. 2021, doi:10.1038/s41592-020-01008-z. Where samples are split, the
    sums over pixels are those of all devices.
    """

    inputs: BatchKeys = (("image", "float32"),)
    targets: BatchKeys = (("mask", "int32"),)
    loss: SegmentationLoss = "cross_entropy"
    """What is minimised."""
    class_weights: tuple[float, ...] = ()
    """Weight of each class; empty: 1 each."""
    ignore_value: int = -100
    """A pixel whose mask has this number counts for nothing."""

    @property
    def score_names(self) -> tuple[str, ...]:
        """Scores of an evaluation besides the accuracy of pixels."""
        return ("mean_iou", "mean_dice")

    def dim_axes(self, key: str, rank: int) -> tuple[str | None, ...]:
        """Name the axes: a mask [B, ...] is cut as its image [B, ..., C]."""
        return spatial_axes(rank + 1 if key == "mask" else rank)

    def check_outputs(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Hold what a network returns against the masks; nothing is computed.

        Raises:
            BadInput: logits, masks and images of different sizes, or weights for other
                classes.
        """
        self.check_sizes(
            outputs,
            batch,
            rule="a mask [...] has a class for each pixel of its image [..., C], and "
            "the network returns logits [..., classes] for each",
            numbers=(),
        )
        self.check_weights(self.class_weights, outputs.shape[-1])

    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the loss of each sample, [B], in float32 or wider."""
        sums = self.add_devices(self.pixel_sums(outputs, batch), outputs)
        return self.losses_of_sums(sums, outputs.shape[-1])

    def pixel_sums(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return what the loss sums over pixels, [B, n], in float32 or wider."""
        # A sum of 10^8 pixels would stand still in 16 bits.
        logits = outputs.astype(accumulation_dtype(outputs.dtype))
        counts, mask = self._mask(logits, batch)
        real = counts.astype(logits.dtype)
        classes, dtype = logits.shape[-1], logits.dtype
        hot = jax.nn.one_hot(mask, classes, dtype=dtype) * real[..., None]
        weights = jnp.asarray(self.class_weights or (1.0,) * classes, dtype)
        pixels = tuple(range(1, mask.ndim))

        # All at once, so that devices add it in one all-reduce.
        sums = []
        if self.loss != "dice":
            each = hot * weights
            # Not the logarithm of a softmax, which is -inf where a share underflows.
            likelihood = jax.nn.log_softmax(logits)
            sums += [-(each * likelihood).sum((*pixels, -1))[:, None]]
            sums += [each.sum((*pixels, -1))[:, None]]
        if self.loss != "cross_entropy":
            share = jax.nn.softmax(logits) * real[..., None]
            sums += [x.sum(pixels) for x in (share * hot, share, hot)]
        return jnp.concatenate(sums, -1)

    def losses_of_sums(self, totals: jax.Array, classes: int) -> jax.Array:
        """Return the loss of each sample, [B], from sums over all of its pixels."""
        dtype = totals.dtype
        weights = jnp.asarray(self.class_weights or (1.0,) * classes, dtype)
        loss = jnp.zeros(len(totals), dtype)
        if self.loss != "dice":
            # A sample that has nothing to score has no weight to divide by.
            weight = totals[:, 1]
            loss += totals[:, 0] / jnp.where(weight > 0, weight, jnp.ones_like(weight))
        if self.loss != "cross_entropy":
            both, share, hot = jnp.split(totals[:, -3 * classes :], 3, -1)
            # [B, classes]: of each sample and not of the batch, so that the loss stays
            # a mean over samples however they are cut.
            dice = (2 * both + _SMOOTH) / (share + hot + _SMOOTH)
            loss += 1 - (dice * weights).sum(-1) / weights.sum()
        return loss

    def correct(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return whether each pixel's largest logit is its class, bool [B, ...]."""
        return outputs.argmax(-1) == batch["mask"]

    def target_mask(self, correct: jax.Array, batch: Batch) -> jax.Array:
        """Return which pixels count, bool [B, ...]."""
        return batch["mask"] != self.ignore_value

    def answer_sums(
        self, outputs: jax.Array, batch: Batch, is_real: jax.Array
    ) -> dict[str, jax.Array]:
        """Count pixels of the batch by class: right ones, of the answer, of the mask.

        Args:
            outputs: logits.
            batch: the masks.
            is_real: which samples count, bool [B].
        """
        counts, mask = self._mask(outputs, batch)
        counts &= is_real.reshape(-1, *(1,) * (mask.ndim - 1))
        answer, classes = outputs.argmax(-1), jnp.arange(outputs.shape[-1])
        is_answer, is_mask = (
            (x[..., None] == classes.astype(x.dtype)) & counts[..., None]
            for x in (answer, mask)
        )
        pixels = tuple(range(1, mask.ndim))
        pairs = is_answer & is_mask, is_answer, is_mask
        # [B, 3, classes]; each sample has fewer than 2^31 pixels on a device.
        each = jnp.stack([x.sum(pixels, dtype=jnp.int32) for x in pairs], 1)
        found = self.add_devices(count_words(each), outputs)
        # Over classes, word by word: [2, 3] becomes three counts of two words.
        right, _, true = found.sum(-1, dtype=jnp.int32).swapaxes(0, 1)
        return {"correct": right, "answers": true, "class_counts": found}

    def scores(self, sums: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return IoU and Dice of each class, over all held-out pixels.

            IoU = both / (answer + mask - both)      Dice = 2 both / (answer + mask)

        A class that is neither in a mask nor in an answer has none, and is left out of
        the means.

        Args:
            sums: `class_counts` [3, classes]: both, answer, mask.
        """
        both, answer, mask = sums["class_counts"]
        found = np.flatnonzero(answer + mask)
        iou = {f"iou_{k}": both[k] / (answer + mask - both)[k] for k in found}
        dice = {f"dice_{k}": 2 * both[k] / (answer + mask)[k] for k in found}
        means = [math.fsum(x.values()) / max(len(x), 1) for x in (iou, dice)]
        named = dict(zip(self.score_names, means)) | iou | dice
        return {name: float(value) for name, value in named.items()}

    def sum_count(self, channels: int) -> int:
        """Return how many numbers of a sample are summed over its pixels."""
        return 2 * (self.loss != "dice") + 3 * channels * (self.loss != "cross_entropy")

    def _mask(self, outputs: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return which pixels count, bool [B, ...], and masks with 0 for others."""
        mask = batch["mask"]
        counts = (mask != self.ignore_value) & self.real_pixels(outputs)
        return counts, jnp.where(counts, mask, jnp.zeros_like(mask))
