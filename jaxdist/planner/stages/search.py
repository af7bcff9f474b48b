"""The search: PipeDream's recurrences over places, tier by tier, as arrays.

    T_k(i, j, m) = form(Q_{k-1}(i, j, all), W(i, j), m, B_k)           Q_0 = C
    Q_k(i, j, m) = min(T_k(i, j, m),
                       min over s, m' of max(Q_k(i, s, m - m'), cut(s), T_k(s, j, m')))

i, j and s are places, m and m' components of tier k. All components are used. Where
memory is limited, a stage needs to know what is behind it: Q_k(i, j, m) then stands on
the first m components of its tier, and `behind` are the devices behind the tier for
each of its copies. (Narayanan et al. 2019, SOSP, arXiv 1806.03377, section 3.1.)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.planner.stages.cost_conventions import CostConvention
from jaxdist.planner.stages.cut_points import CutPoints, FloatArray
from jaxdist.planner.stages.link_hierarchy import LinkLevel
from jaxdist.planner.stages.memory import MemoryBudget

_NO_DEVICES: Final = Fraction(0)


@dataclass(frozen=True, kw_only=True)
class LevelAllocation:
    """Some nodes on some components of a tier, alike on each."""

    start: int
    """The place before it."""
    end: int
    """The place behind it."""
    copies: int
    """Components of the tier that take minibatches in turn."""
    behind: Fraction
    """Devices behind it for each of its copies."""
    inner: tuple["LevelAllocation", ...]
    """Its parts on the tier below; none where a copy is a device."""


class PipeDreamSolver:
    """One question, and the tables that answer it.

    Args:
        places: where the graph may be cut.
        tiers: devices, innermost first.
        form: what stages and cuts cost.
        memory: what a device has.
        straight: whether each stage is on one device.
    """

    def __init__(
        self,
        places: CutPoints,
        tiers: tuple[LinkLevel, ...],
        form: CostConvention,
        memory: MemoryBudget,
        *,
        straight: bool = False,
    ) -> None:
        self.places, self.tiers, self.form = places, tiers, form
        self.memory, self.straight = memory, straight
        self._tables: dict[tuple[int, Fraction], list[FloatArray]] = {}
        self._costs: dict[tuple[int, int, Fraction], FloatArray] = {}

    @property
    def seconds(self) -> float:
        """Seconds of a minibatch in the best plan; infinite where there is none."""
        return float(self._table(len(self.tiers), _NO_DEVICES)[-1][0, -1])

    @property
    def parts(self) -> tuple[LevelAllocation, ...]:
        """Stages of the best plan on the outermost tier; there is one."""
        return self._unfold(len(self.tiers), 0, len(self.places) - 1, _NO_DEVICES)

    @property
    def of_fewer(self) -> FloatArray:
        """Seconds with 1, 2, ... components of the outermost tier, the rest idle.

        Only where memory is not limited: else each is of a plan with others behind it.
        """
        table = self._table(len(self.tiers), _NO_DEVICES)
        return np.array([row[0, -1] for row in table])

    @cached_property
    def _seconds(self) -> FloatArray:
        return self.places.between(self.places.seconds, math.inf)

    @cached_property
    def _parameters(self) -> FloatArray:
        return self.places.between(self.places.parameters, 0.0)

    @cached_property
    def _kept(self) -> FloatArray:
        return self.places.between(self.places.kept, 0.0)

    @cached_property
    def _made(self) -> FloatArray:
        return self.places.between(self.places.made, 0.0)

    def _whole(self, tier: int, behind: Fraction) -> FloatArray:
        """Return Q of a whole tier, [i, j]; of no tier, a device."""
        if tier:
            return self._table(tier, behind)[-1]
        if not self.memory.counts:
            return self._seconds
        taken = self.memory.bytes(self._kept, self._made, self._parameters, behind)
        return np.where(taken <= self.memory.limit, self._seconds, math.inf)

    def _copied(self, tier: int, copies: int, behind: Fraction) -> FloatArray:
        """Return T, [i, j], of stages with some devices behind each of their copies."""
        known = behind if self.memory.counts else _NO_DEVICES
        key = tier, copies, known
        if key not in self._costs:
            one = self._whole(tier - 1, known)
            rate = self.tiers[tier - 1].bandwidth
            self._costs[key] = self.form.stage(one, self._parameters, copies, rate)
        return self._costs[key]

    def _behind(self, tier: int, after: int, copies: int, behind: Fraction) -> Fraction:
        """Return the devices behind each copy of a stage with `after` components."""
        devices = math.prod(one.size for one in self.tiers[: tier - 1])
        return (after * devices + behind) / copies

    def _table(self, tier: int, behind: Fraction) -> list[FloatArray]:
        """Return Q for 1, 2, ... components of a tier, [i, j] each.

        Of the outermost tier only stages from the start on are asked for: [1, j].
        """
        behind = behind if self.memory.counts else _NO_DEVICES
        key = tier, behind
        if key not in self._tables:
            found: list[FloatArray] = []
            for used in range(1, self.tiers[tier - 1].size + 1):
                found.append(self._row(tier, used, behind, found))
            self._tables[key] = found
        return self._tables[key]

    def _row(
        self, tier: int, used: int, behind: Fraction, before: list[FloatArray]
    ) -> FloatArray:
        rows = 1 if tier == len(self.tiers) else len(self.places)
        after = self.tiers[tier - 1].size - used
        best = np.full((rows, len(self.places)), math.inf)
        if used == 1 or not self.straight:
            own = self._behind(tier, after, used, behind)
            best = self._copied(tier, used, own)[:rows].copy()
        for copies in self._last(used):
            last = self._last_stage(tier, copies, after, behind)
            _relax_split(best, before[used - copies - 1], last)
        return best

    def _last(self, used: int) -> Iterator[int]:
        """Yield the copies that a last stage may have behind others."""
        return iter(range(1, min(2, used) if self.straight else used))

    def _last_stage(
        self, tier: int, copies: int, after: int, behind: Fraction
    ) -> FloatArray:
        """Return [s, j]: the slower of the last stage and the cut in front of it."""
        own = self._behind(tier, after, copies, behind)
        rate = self.tiers[tier - 1].bandwidth
        cut = self.form.cut(self.places.crossing, copies, rate)
        return np.maximum(self._copied(tier, copies, own), cut[:, None])

    def _unfold(
        self, tier: int, start: int, end: int, behind: Fraction
    ) -> tuple[LevelAllocation, ...]:
        """Read the stages of a cell of the last table, the last one first."""
        if not tier:
            return ()
        table, size = self._table(tier, behind), self.tiers[tier - 1].size
        used, found = size, list[LevelAllocation]()
        while used:
            cut, copies = self._step(tier, start, end, used, behind, table)
            own = self._behind(tier, size - used, copies, behind)
            inner = self._unfold(tier - 1, cut, end, own)
            found.append(
                LevelAllocation(
                    start=cut, end=end, copies=copies, behind=own, inner=inner
                )
            )
            used, end = used - copies, cut
        return tuple(found[::-1])

    def _step(
        self,
        tier: int,
        start: int,
        end: int,
        used: int,
        behind: Fraction,
        table: list[FloatArray],
    ) -> tuple[int, int]:
        """Return where the last stage of a cell begins, and its copies."""
        best, after = table[used - 1][start, end], self.tiers[tier - 1].size - used
        if used == 1 or not self.straight:
            own = self._behind(tier, after, used, behind)
            if self._copied(tier, used, own)[start, end] <= best:
                return start, used
        ways = []
        for copies in self._last(used):
            last = self._last_stage(tier, copies, after, behind)[:, end]
            first = table[used - copies - 1][start]
            hits = np.flatnonzero(np.maximum(first, last) <= best)
            ways += [(int(hit), copies) for hit in hits[:1]]
        return min(ways)


def _relax_split(best: FloatArray, before: FloatArray, last: FloatArray) -> None:
    """Lower best[i, j] to the least over s of max(before[i, s], last[s, j])."""
    if len(best) == 1:
        np.minimum(best, np.maximum(before.T, last).min(axis=0), out=best)
        return
    places = best.shape[1]
    room = np.empty(best.size)
    for s in range(1, places - 1):
        own = room[: s * (places - s - 1)].reshape(s, -1)
        np.maximum(before[:s, s, None], last[s, s + 1 :], out=own)
        block = best[:s, s + 1 :]
        np.minimum(block, own, out=block)
