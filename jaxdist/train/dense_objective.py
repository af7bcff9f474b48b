"""Dense objectives: something for each pixel or voxel of samples that may be split.

The sums of a sample over its pixels, [B, n], are added over the devices that hold parts
of it before the loss is made of them, in one all-reduce: so a loss need not be a sum.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

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
from jaxdist.train.objective import Objective, describe_samples


@dataclass(frozen=True, kw_only=True)
class DenseObjective(Objective):
    """An objective of outputs [B, ..., n] that are cut as their image [B, ..., C] is.

    A loss of one's own subclasses it: `losses` hands what it sums over pixels to
    `add_devices`, and `sum_count` says how many numbers of a sample those are.
    """

    split: Split = field(default_factory=Split)
    """How images are cut; a layout says it."""

    @property
    def is_dense(self) -> bool:
        """Outputs are cut as the image is."""
        return True

    def on_blocks(self, plan: Plan, shapes: Mapping[str, Any]) -> Self:
        """Return the objective of images that a plan cuts.

        Raises:
            BadInput: the plan ends the split before the outputs.
        """
        image = shapes[self.inputs[0][0]].shape
        axes = nontrivial_axes(plan, spatial_axes(len(image)))
        target, _ = self.targets[0]
        if axes and plan.spatial_end:
            raise BadInput(
                f"{target}s are cut, and what the network returns is not cut as they "
                "are",
                rule="each device scores the pixels that it holds, so images are cut "
                "up to the last layer",
                values=f"plan.spatial_end = {plan.spatial_end}, "
                f"{' and '.join(axes)} cut the images",
                remedy=("plan.spatial_end=", f"plan.mesh.{axes[0]}=1"),
            )
        # The rows of the whole image: blocks of an uneven split are padded behind them.
        return replace(self, split=Split(rows=tuple(image[1:-1]))) if axes else self

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
            # The same samples on all devices that share an image: each adds `sum_count`
            # numbers of every one.
            samples = outputs.shape[0] // plan.mesh.batch_shards
            numbers = samples * self.sum_count(outputs.shape[-1])
            width = accumulation_dtype(outputs.dtype).itemsize
            yield PlannedCollective(
                what="loss",
                kind="all-reduce",
                axes=axes,
                # Twice: the all-reduce of the forward pass transposes to another
                # (docs/adr/0090).
                payload=2 * parts * numbers * width,
                layer=LOSS_LAYER,
                arrays=2 * parts,
            )

    @abstractmethod
    def sum_count(self, channels: int) -> int:
        """Return how many numbers of a sample a loss sums over its pixels.

        Args:
            channels: those of the outputs.
        """

    def add_devices(self, sums: jax.Array, outputs: jax.Array) -> jax.Array:
        """Add sums over the pixels of all devices that hold parts of a sample.

        Args:
            sums: of this device's pixels.
            outputs: what the network returned, its block of them.
        """
        # One all-reduce over all spatial axes, none where images are whole.
        axes = tuple(self.split.dims(outputs).values())
        return lax.psum(sums, axes) if axes else sums

    def real_pixels(self, outputs: jax.Array) -> jax.Array:
        """Return which pixels of a block are of its image, bool [B, ...].

        Rows behind the last real one of an uneven block are not.
        """
        ones = jnp.ones((*outputs.shape[:-1], 1), bool)
        # With one channel, since `zero_padding` takes images [B, ..., C].
        return zero_padding(ones, self.split)[..., 0]

    def check_sizes(
        self,
        outputs: Any,
        batch: Mapping[str, Any],
        *,
        rule: str,
        numbers: tuple[int, ...],
    ) -> None:
        """Refuse outputs and targets that have not the pixels of their images.

        Args:
            outputs: shapes of what the network returns.
            batch: shapes of the batch.
            rule: what a target and an output are.
            numbers: shape of a target at one pixel.

        Raises:
            BadInput: with all three sizes.
        """
        key, _ = self.targets[0]
        image, target = batch[self.inputs[0][0]], batch[key]
        shape: tuple[int, ...] = getattr(outputs, "shape", ())
        pixels = image.shape[:-1]
        if shape[:-1] != pixels or target.shape != (*pixels, *numbers):
            raise BadInput(
                f"images, {key}s and what the network returns have different sizes",
                rule=rule,
                values=f"an image is {describe_samples(image)}, its {key} "
                f"{describe_samples(target)}, the network returns "
                f"{describe_samples(outputs)}",
                remedy=f"{key}s of their images' size, and a network that goes up as "
                "often as it goes down",
            )

    def check_weights(self, weights: tuple[float, ...], channels: int) -> None:
        """Refuse weights of another number of classes or channels.

        Raises:
            BadInput: with both numbers, or a weight below 0.
        """
        if weights and len(weights) != channels:
            raise BadInput(
                "there is not one weight for each output",
                rule="a loss has a weight for each class or channel, or none at all",
                values=f"{len(weights)} weights, {channels} outputs a pixel",
                remedy="model.loss_weights=, or as many numbers as outputs",
            )
        if weights and (min(weights) < 0 or not sum(weights)):
            raise BadInput(
                "these weights leave no loss",
                rule="weights are 0 or more, and one of them is more",
                values=f"weights {', '.join(f'{x:g}' for x in weights)}",
                remedy="model.loss_weights=, which weighs all alike",
            )
