"""Segmentation: a class for each pixel or voxel of samples that may be split."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from jaxdist.core.axes import spatial_axes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers.halo import Split
from jaxdist.layers.valid_rows import zero_padding
from jaxdist.partition.traffic import (
    LOSS_LAYER,
    PlannedCollective,
    nontrivial_axes,
)
from jaxdist.train.objective import Batch, BatchKeys, Objective, describe_samples

SegmentationLoss = Literal["cross_entropy", "dice", "both"]

_SMOOTH: Final = 1e-5
"""Added above and below in a Dice score: a class that is nowhere scores 1."""


@dataclass(frozen=True, kw_only=True)
class Segmentation(Objective):
    """One class a pixel or voxel, from logits [B, ..., classes].

    Of a sample's pixels that count, with p the softmax of the logits, t the one-hot
    mask and w the weight of a class:

        cross entropy   sum_x w[t(x)] (-log p[t(x)](x)) / sum_x w[t(x)]
        dice            1 - sum_k w[k] D[k] / sum_k w[k],
                        D[k] = 2 sum_x p[k] t[k] / (sum_x p[k] + sum_x t[k])
        both            their sum

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
    split: Split = field(default_factory=Split)
    """How masks are cut; a layout says it."""

    @property
    def is_dense(self) -> bool:
        """Logits are cut as the image is."""
        return True

    @property
    def score_names(self) -> tuple[str, ...]:
        """Scores of an evaluation besides the accuracy of pixels."""
        return ("mean_iou", "mean_dice")

    def dim_axes(self, key: str, rank: int) -> tuple[str | None, ...]:
        """Name the axes: a mask [B, ...] is cut as its image [B, ..., C]."""
        return spatial_axes(rank + 1 if key == "mask" else rank)

    def on_blocks(self, plan: Plan, shapes: Mapping[str, Any]) -> Self:
        """Return the objective of masks that a plan cuts.

        Raises:
            BadInput: the plan ends the split before the masks.
        """
        axes = nontrivial_axes(plan, spatial_axes(len(shapes["mask"].shape) + 1))
        if axes and plan.spatial_end:
            raise BadInput(
                "masks are cut, and what the network returns is not cut as they are",
                rule="each device scores the pixels that it holds, so images are cut "
                "up to the last layer",
                values=f"plan.spatial_end = {plan.spatial_end}, "
                f"{' and '.join(axes)} cut the images",
                remedy=("plan.spatial_end=", f"plan.mesh.{axes[0]}=1"),
            )
        rows = tuple(shapes["mask"].shape[1:])
        return replace(self, split=Split(rows=rows)) if axes else self

    def loss_traffic(
        self, plan: Plan, outputs: Any, parts: int
    ) -> Iterator[PlannedCollective]:
        """Yield the all-reduce of the sums over pixels, forward and backward.

        Args:
            plan: the layout.
            outputs: shape and dtype of what the network returns, of the samples that a
                device group takes at once.
            parts: how often a step does.
        """
        if axes := nontrivial_axes(plan, spatial_axes(len(outputs.shape))):
            samples = outputs.shape[0] // plan.mesh.batch_shards
            numbers = samples * self._sum_count(outputs.shape[-1])
            width = accumulation_dtype(outputs.dtype).itemsize
            yield PlannedCollective(
                what="loss",
                kind="all-reduce",
                axes=axes,
                payload=2 * parts * numbers * width,
                layer=LOSS_LAYER,
                arrays=2 * parts,
            )

    def check_outputs(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Hold what a network returns against the masks; nothing is computed.

        Raises:
            BadInput: logits, masks and images of different sizes, or weights for other
                classes.
        """
        image, mask = (batch[key] for key in ("image", "mask"))
        shape: tuple[int, ...] = getattr(outputs, "shape", ())
        if shape[:-1] != mask.shape or image.shape[1:-1] != mask.shape[1:]:
            raise BadInput(
                "images, masks and what the network returns have different sizes",
                rule="a mask [...] has a class for each pixel of its image [..., C], "
                "and the network returns logits [..., classes] for each",
                values=f"an image is {describe_samples(image)}, its mask "
                f"{describe_samples(mask)}, the network returns "
                f"{describe_samples(outputs)}",
                remedy="masks of their images' size, and a network that goes up as "
                "often as it goes down",
            )
        if self.class_weights and len(self.class_weights) != shape[-1]:
            raise BadInput(
                "there is not one weight for each class",
                rule="class_weights has a number for each class, or none at all",
                values=f"{len(self.class_weights)} weights, {shape[-1]} classes",
                remedy="class_weights=()",
            )

    def losses(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return the loss of each sample, [B], in float32 or wider."""
        sums = self._add_devices(self.pixel_sums(outputs, batch), outputs)
        return self.losses_of_sums(sums, outputs.shape[-1])

    def pixel_sums(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Return what the loss sums over pixels, [B, n], in float32 or wider."""
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
        pixels = tuple(range(mask.ndim))
        pairs = is_answer & is_mask, is_answer, is_mask
        found = jnp.stack([x.astype(jnp.int32).sum(pixels) for x in pairs])
        found = self._add_devices(found, outputs)
        return {
            "correct": found[0].sum(),
            "answers": found[2].sum(),
            "class_counts": found,
        }

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

    def _sum_count(self, classes: int) -> int:
        """Return how many numbers of a sample are summed over its pixels."""
        return 2 * (self.loss != "dice") + 3 * classes * (self.loss != "cross_entropy")

    def _mask(self, outputs: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return which pixels count, bool [B, ...], and masks with 0 for others."""
        mask = batch["mask"]
        # Rows behind the last real one of an uneven block count for nothing.
        real = zero_padding(jnp.ones((*mask.shape, 1), bool), self.split)[..., 0]
        counts = (mask != self.ignore_value) & real
        return counts, jnp.where(counts, mask, jnp.zeros_like(mask))

    def _add_devices(self, sums: jax.Array, outputs: jax.Array) -> jax.Array:
        """Add the sums over the pixels of all devices that hold parts of a sample."""
        axes = tuple(self.split.dims(outputs).values())
        return lax.psum(sums, axes) if axes else sums
