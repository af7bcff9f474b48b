"""The shuffle: how far samples travel between hosts each epoch, as plain data."""

import math
from dataclasses import dataclass

from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class ShuffleConfig:
    """How far samples travel between hosts."""

    exchange_fraction: float | None = None
    """Part of its samples that a partition exchanges an epoch: 0 keeps every sample
    where it is, none draws each epoch's order from all samples."""
    partitions: int | None = None
    """Parts of the data set that keep and exchange samples; none: as many as fit the
    batch, at most 4,096. Hosts hold equally many of them each."""

    def __post_init__(self) -> None:
        fraction = self.exchange_fraction
        if fraction is not None and not 0 <= fraction <= 1:
            # What is no number is near to none.
            nearest = 0.1 if math.isnan(fraction) else min(max(fraction, 0.0), 1.0)
            raise BadInput(
                "no such part of the samples can be exchanged",
                rule="plan.shuffle.exchange_fraction is from 0, nothing, to 1, every "
                "sample",
                values=f"plan.shuffle.exchange_fraction = {fraction}",
                remedy=f"plan.shuffle.exchange_fraction={nearest:g}",
            )
        if self.partitions is not None and self.partitions < 1:
            raise BadInput(
                "there is no partition to hold samples",
                rule="plan.shuffle.partitions is at least 1",
                values=f"plan.shuffle.partitions = {self.partitions}",
                remedy="plan.shuffle.partitions=none",
            )


@dataclass(frozen=True, kw_only=True)
class Global(ShuffleConfig):
    """Each epoch's order is drawn from all samples."""


@dataclass(frozen=True, kw_only=True)
class Local(ShuffleConfig):
    """Samples never leave their partition."""

    exchange_fraction: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class Partial(ShuffleConfig):
    """Partitions exchange a part of their samples every epoch.

    >>> Partial(exchange_fraction=0.3).exchange_fraction
    0.3
    """

    exchange_fraction: float | None = 0.1
