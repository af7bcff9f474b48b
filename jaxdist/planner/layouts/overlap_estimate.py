"""Beside: a first estimate of what plans hide behind their passes, all of them at once.

As the oracle has it (`jaxdist.oracle.overlap`), with one part for each layer of the
seconds of a pass, that of a device with some part of the samples. Then

    hidden = o min(A, B) h(B / A)

and h is read off a table of ratios, so a network's layers are looked at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.oracle.overlap import bucket_bytes, concurrent_time
from jaxdist.partition.gradient_buckets import UNCOMPRESSED
from jaxdist.planner.layouts.block_costs import BlockCosts, LongestStage
from jaxdist.planner.layouts.space import Column, PlanSpace
from jaxdist.planner.layouts.traffic_probes import TrafficProbes

_RATIOS: Final = np.logspace(-4, 4, 161)
_MIN_SECONDS: Final = 1e-12
"""Seconds at least, so that nothing has a ratio to something."""

_OverlapFunction = Callable[[Column, Column], Column]


@dataclass(frozen=True, kw_only=True)
class OverlapEstimate:
    """What plans let collectives do while they compute."""

    space: PlanSpace
    """The plans."""
    block_costs: BlockCosts
    """What their layers take."""
    traffic: TrafficProbes
    """What is moved of parameters."""
    overlap: float
    """As of a cluster."""

    def overlapped_seconds(
        self,
        pass_times: LongestStage,
        all_reduce_seconds: Column,
        gather_seconds: Column,
    ) -> Column:
        """Return the seconds that each plan hides; none in stages.

        Args:
            pass_times: seconds of a microbatch.
            all_reduce_seconds: of gradients, seconds of a step.
            gather_seconds: of parameters that fsdp shares out, the same.
        """
        found = np.zeros(len(self.space))
        (rows,) = np.nonzero(self.space.sizes("pipe") == 1)
        if not self.overlap or not len(rows):
            return found
        micro = self.space.micro[rows]
        steps = micro * pass_times.forward[rows], micro * pass_times.backward[rows]
        behind, backward = self._gather_overlap(*steps, gather_seconds[rows], rows)
        after = self._reduction_overlap(
            backward, all_reduce_seconds[rows] * (micro == 1), rows
        )
        found[rows] = self.overlap * (behind + after)
        return found

    def _gather_overlap(
        self, forward: Column, backward: Column, gather_seconds: Column, rows: Column
    ) -> tuple[Column, Column]:
        """Return how long gathers go on beside passes, and what these leave."""
        space, whole = self.space, self.traffic.parameter_all_gather.payload
        joined = np.array([m.fsdp > 1 and space.zero(m) == 3 for m in space.meshes])
        fetched = gather_seconds * joined[space.mesh[rows]]
        # Of what a microbatch gathers, the first time is for its forward pass.
        used = self.traffic.gathered_ratio * self.traffic.parameter_bytes
        first = min(1.0, used / whole) if whole else 1.0
        own, back, shares = self._layer_times
        ahead = _overlap_table(shares, own)(first * fetched, forward)
        again = _overlap_table(shares[::-1], back[::-1])(
            (1 - first) * fetched, backward
        )
        return ahead + again, backward - self.overlap * again

    def _reduction_overlap(
        self, backward: Column, all_reduce_seconds: Column, rows: Column
    ) -> Column:
        """Return how long sums go on beside what is left of backward passes."""
        _, back, shares = self._layer_times
        full, total = self._bucket_fraction[rows], np.zeros(len(rows))
        for size in np.unique(full):
            ready = bucket_bytes(shares[::-1], float(size))
            after = _overlap_table(back[::-1], ready)(backward, all_reduce_seconds)
            total = np.where(full == size, after, total)
        return total

    @cached_property
    def _bucket_fraction(self) -> Column:
        """The part of the parameters that is summed together; 0: an array alone."""
        plain = np.array([way in UNCOMPRESSED for way in self.space.choices.ways])
        bucket = self.space.base.reduce.bucket_mib * 2**20
        full = bucket * self.space.sizes("fsdp") / self.traffic.parameter_bytes
        return np.where(plain[self.space.way], 0.0, np.minimum(1.0, full))

    @cached_property
    def _layer_times(self) -> tuple[Column, Column, Column]:
        """Seconds of layers forward and backward, and their parts of parameters."""
        forward, backward = self.block_costs.layer_seconds(self.space.meshes[0].devices)
        own = np.array(
            [x.parameter_bytes for x in self.block_costs.profile.layers], float
        )
        return forward, backward, own / max(1.0, own.sum())


def _overlap_table(first: Column, second: Column) -> _OverlapFunction:
    """Return how long both go on at once, by the seconds of what is first and then.

    Args:
        first: of each layer, in any unit.
        second: the same of what needs it.
    """
    first = first / max(_MIN_SECONDS, first.sum())
    second = second / max(_MIN_SECONDS, second.sum())
    both = concurrent_time(first[None], _RATIOS[:, None] * second[None])
    part = both / np.minimum(1.0, _RATIOS)

    def seconds(before: Column, after: Column) -> Column:
        ratio = np.maximum(after, _MIN_SECONDS) / np.maximum(before, _MIN_SECONDS)
        found: Column = np.interp(np.log(ratio), np.log(_RATIOS), part)
        return np.minimum(before, after) * found

    return seconds
