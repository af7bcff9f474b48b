"""Ticks: how often stages work and exchange in a step, of every plan of a space.

long    m chunks + P - 1 passes of one direction follow one another
ahead   of them without a backward pass: all for gpipe and eager-1f1b, P chunks of
        1f1b
beats   exchanges: one a tick, or of eager-1f1b one for a forward and a backward one
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.pipeline.sync_schedule import EAGER_1F1B
from jaxdist.planner.layouts.space import Column, PlanSpace

_SINGLE_STAGE_EXCHANGES: Final = 2
"""Beats of a direction in which one stage alone works: the first and the last."""


@dataclass(frozen=True, kw_only=True)
class ScheduleCounts:
    """The schedules of a space's plans."""

    space: PlanSpace
    """The plans."""
    core_contention: float
    """As of a device."""

    @cached_property
    def schedule_names(self) -> Column:
        """The order of each plan's stages."""
        names = np.array([name for name, _ in self.space.choices.orders])
        found: Column = names[self.space.order]
        return found

    @cached_property
    def ticks_per_direction(self) -> Column:
        """Passes of one direction that follow one another in a step."""
        long: Column = self.space.micro * self.space.chunks
        return long + self.space.sizes("pipe") - 1

    @cached_property
    def forward_ticks(self) -> Column:
        """Ticks of forward passes alone."""
        pipe, long = self.space.sizes("pipe"), self.ticks_per_direction
        apart = np.isin(self.schedule_names, ("gpipe", EAGER_1F1B)) | (pipe == 1)
        return np.where(apart, long, np.minimum(pipe * self.space.chunks, long))

    @cached_property
    def backward_ticks(self) -> Column:
        """Ticks with backward passes."""
        back: Column = 2 * self.ticks_per_direction - self.forward_ticks
        return back

    @cached_property
    def exchanges(self) -> Column:
        """Times that stages exchange what they made."""
        pipe, chunks = self.space.sizes("pipe"), self.space.chunks
        both = self.space.micro * chunks + pipe - pipe * chunks
        return np.where(
            self.schedule_names == EAGER_1F1B,
            2 * self.ticks_per_direction - both,
            2 * self.ticks_per_direction,
        )

    @cached_property
    def multi_stage_exchanges(self) -> Column:
        """Exchanges before which several stages worked: not the first and the last."""
        several = (self.space.micro > 1) & (self.space.sizes("pipe") > 1)
        return np.where(
            several, np.maximum(self.exchanges - 2 * _SINGLE_STAGE_EXCHANGES, 0), 0
        )

    @cached_property
    def contention_savings(self) -> Column:
        """Ticks of a direction by which a step is shorter, as some devices rest."""
        pairs, place = np.unique(
            np.stack([self.space.sizes("pipe"), self.ticks_per_direction]),
            axis=1,
            return_inverse=True,
        )
        found = np.array(
            [
                _contention_savings(self.core_contention, *map(int, pair))
                for pair in pairs.T
            ]
        )
        rested: Column = found[place.ravel()]
        return rested


def _contention_savings(core_contention: float, stages: int, ticks: int) -> float:
    """Return by how many ticks so many are shorter, of stages one behind the other."""
    tick = np.arange(ticks)
    working = np.minimum(np.minimum(tick + 1, ticks - tick), stages)
    working = np.minimum(working, ticks - stages + 1)
    return float((1 - np.maximum(1 / core_contention, working / stages)).sum())
