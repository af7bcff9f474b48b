"""PipeDream's recurrences over places, level by level of the devices, as arrays.

    T_k(i, j, m) = form(Q_{k-1}(i, j, all), W(i, j), m, B_k)           Q_0 = C
    Q_k(i, j, m) = min(T_k(i, j, m),
                       min over s, m' of max(Q_k(i, s, m - m'), cut(s), T_k(s, j, m')))

i, j and s are places, m and m' components of level k. All components are used. Where
memory is limited, a stage needs to know what is behind it: Q_k(i, j, m) then stands on
the first m components of its level, and `behind` are the devices behind the level for
each of its copies. (Narayanan et al. 2019, SOSP, arXiv 1806.03377, section 3.1.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_duration
from jaxdist.planner.stages.cost_conventions import CostConvention, FloatArray
from jaxdist.planner.stages.cut_points import CutPoints
from jaxdist.planner.stages.link_hierarchy import LinkLevel
from jaxdist.planner.stages.memory import MemoryBudget

_NO_DEVICES: Final = Fraction(0)
MAX_SEARCH_SECONDS: Final = 1_000.0
"""Seconds of a search at most, on the core that the two numbers below are of."""
_CALL_SECONDS: Final = 11e-6
"""Seconds for each split of components in two, measured."""
_CELL_SECONDS: Final = 1.5e-9
"""Seconds for each stage or pair of stages that is looked at then, measured."""


@dataclass(frozen=True, kw_only=True)
class LevelAllocation:
    """Some nodes on some components of a level, replicated on each."""

    start: int
    """The place before its nodes."""
    end: int
    """The place behind them."""
    replicas: int
    """Components of the level that take minibatches in turn."""
    downstream_per_replica: Fraction
    """Devices behind it for each of its copies."""
    inner: tuple["LevelAllocation", ...]
    """Its parts on the level below; none where a copy is a device."""


@dataclass(eq=False)
class PipeDreamSolver:
    """The tables of the dynamic program for one graph on some devices."""

    cut_points: CutPoints
    """Where the graph may be cut."""
    levels: tuple[LinkLevel, ...]
    """Devices, innermost first."""
    cost_convention: CostConvention
    """The cost of stages and cuts."""
    memory_budget: MemoryBudget
    """The memory of a device."""
    straight_pipeline: bool = field(default=False, kw_only=True)
    """Whether each stage is on one device."""
    _tables: dict[tuple[int, Fraction], list[FloatArray]] = field(
        default_factory=dict, init=False, repr=False
    )
    """Q for 1, 2, ... components, by level and the devices behind it."""
    _costs: dict[tuple[int, int, Fraction], FloatArray] = field(
        default_factory=dict, init=False, repr=False
    )
    """T by level, copies and the devices behind them."""

    @property
    def seconds(self) -> float:
        """Seconds of a minibatch in the best plan; infinite where there is none."""
        return float(self._table(len(self.levels), _NO_DEVICES)[-1][0, -1])

    @property
    def allocations(self) -> tuple[LevelAllocation, ...]:
        """Stages of the best plan on the outermost tier; there is one."""
        return self._backtrack(
            len(self.levels), 0, len(self.cut_points) - 1, _NO_DEVICES
        )

    @property
    def seconds_by_size(self) -> FloatArray:
        """Seconds with 1, 2, ... components of the outermost tier, the rest idle.

        Only where memory is not limited: else each is of a plan with others behind it.
        """
        table = self._table(len(self.levels), _NO_DEVICES)
        return np.array([row[0, -1] for row in table])

    @cached_property
    def _seconds(self) -> FloatArray:
        return self.cut_points.pairwise_difference(self.cut_points.seconds, math.inf)

    @cached_property
    def _parameters(self) -> FloatArray:
        return self.cut_points.pairwise_difference(self.cut_points.parameters, 0.0)

    @cached_property
    def _saved_bytes(self) -> FloatArray:
        return self.cut_points.stage_saved_bytes()

    @cached_property
    def _output_bytes(self) -> FloatArray:
        return self.cut_points.pairwise_difference(self.cut_points.output_bytes, 0.0)

    def _stage_seconds(self, tier: int, copies: int, behind: Fraction) -> FloatArray:
        """Return T, [i, j], of stages with some devices behind each of their copies."""
        budget = self.memory_budget
        # Without a limit nothing depends on what is behind, so one table serves all.
        known = behind if budget.is_limited else _NO_DEVICES
        key = tier, copies, known
        if key not in self._costs:
            if tier > 1:
                one = self._table(tier - 1, known)[-1]
            else:
                # A copy of the innermost level is a device, which has no links inside.
                one = self._seconds
                if budget.is_limited:
                    taken = budget.stage_bytes(
                        self._saved_bytes, self._output_bytes, self._parameters, known
                    )
                    one = np.where(taken <= budget.limit, one, math.inf)
            rate = self.levels[tier - 1].bandwidth
            self._costs[key] = self.cost_convention.stage_seconds(
                one, self._parameters, copies, rate
            )
        return self._costs[key]

    def _downstream_per_replica(
        self, tier: int, after: int, copies: int, behind: Fraction
    ) -> Fraction:
        """Return the devices behind each copy of a stage with `after` components."""
        devices = math.prod(one.size for one in self.levels[: tier - 1])
        return (after * devices + behind) / copies

    def _table(self, tier: int, behind: Fraction) -> list[FloatArray]:
        """Return Q for 1, 2, ... components of a tier, [i, j] each.

        Of the outermost tier only stages from the start on are asked for: [1, j].
        """
        behind = behind if self.memory_budget.is_limited else _NO_DEVICES
        key = tier, behind
        if key not in self._tables:
            found: list[FloatArray] = []
            places, size = len(self.cut_points), self.levels[tier - 1].size
            # A plan begins at the first place; only levels below need stages between
            # any two.
            rows = 1 if tier == len(self.levels) else places
            room = np.empty(rows * places)
            for used in range(1, size + 1):
                # Q stands on the first `used` components of the level, so the rest is
                # behind it.
                after, best = size - used, np.full((rows, places), math.inf)
                if used == 1 or not self.straight_pipeline:
                    own = self._downstream_per_replica(tier, after, used, behind)
                    best = self._stage_seconds(tier, used, own)[:rows].copy()
                for copies in self._last_replicas(used):
                    last = self._last_stage_seconds(tier, copies, after, behind)
                    # Q of what is in front of the last stage, on the components that it
                    # leaves.
                    before = found[used - copies - 1]
                    if rows == 1:
                        # [s, 1] and [s, j]: the place s of the last cut is minimized
                        # over.
                        ways = np.maximum(before.T, last).min(axis=0)
                        np.minimum(best, ways, out=best)
                        continue
                    # best[i, j] = min over s of max(before[i, s], last[s, j]), in one
                    # buffer for all s: allocating it anew takes longer than the rest.
                    for s in range(1, places - 1):
                        ways = room[: s * (places - s - 1)].reshape(s, -1)
                        np.maximum(before[:s, s, None], last[s, s + 1 :], out=ways)
                        block = best[:s, s + 1 :]
                        np.minimum(block, ways, out=block)
                found.append(best)
            self._tables[key] = found
        return self._tables[key]

    def _last_replicas(self, used: int) -> range:
        """Return the copies that a last stage may have behind others."""
        return range(1, min(2, used) if self.straight_pipeline else used)

    def _last_stage_seconds(
        self, tier: int, copies: int, after: int, behind: Fraction
    ) -> FloatArray:
        """Return [s, j]: the slower of the last stage and the cut in front of it."""
        # The replica count that divides a cut is that of the stage behind it, m'.
        own = self._downstream_per_replica(tier, after, copies, behind)
        rate = self.levels[tier - 1].bandwidth
        cut = self.cost_convention.cut_seconds(
            self.cut_points.crossing_bytes, copies, rate
        )
        return np.maximum(self._stage_seconds(tier, copies, own), cut[:, None])

    def _backtrack(
        self, tier: int, start: int, end: int, behind: Fraction
    ) -> tuple[LevelAllocation, ...]:
        """Read the stages of a cell of the last table, the last one first."""
        if not tier:
            return ()
        table, size = self._table(tier, behind), self.levels[tier - 1].size
        used, found = size, list[LevelAllocation]()
        while used:
            # Comparisons with `best` are exact: the table has the same sums of the same
            # arrays.
            best, after = table[used - 1][start, end], size - used
            # (place, copies) of the last stage: all of the cell, or behind others. Of
            # equally fast ones the first place counts.
            ways: list[tuple[int, int]] = []
            if used == 1 or not self.straight_pipeline:
                own = self._downstream_per_replica(tier, after, used, behind)
                if self._stage_seconds(tier, used, own)[start, end] <= best:
                    ways.append((start, used))
            if not ways:
                for copies in self._last_replicas(used):
                    last = self._last_stage_seconds(tier, copies, after, behind)
                    first = table[used - copies - 1][start]
                    hits = np.flatnonzero(np.maximum(first, last[:, end]) <= best)
                    ways += [(int(hit), copies) for hit in hits[:1]]
            cut, copies = min(ways)
            # Devices behind a copy decide how many minibatches it has in flight.
            own = self._downstream_per_replica(tier, size - used, copies, behind)
            inner = self._backtrack(tier - 1, cut, end, own)
            found.append(
                LevelAllocation(
                    start=cut,
                    end=end,
                    replicas=copies,
                    downstream_per_replica=own,
                    inner=inner,
                )
            )
            used, end = used - copies, cut
        return tuple(found[::-1])


def check_search_cost(cut_points: int, levels: Sequence[LinkLevel]) -> None:
    """Refuse a search that would take too long, before it begins.

    Args:
        cut_points: places to cut at.
        levels: devices, innermost first.

    Raises:
        BadInput: it would take longer than `MAX_SEARCH_SECONDS` without a memory limit.
    """
    # The outermost level is asked for stages from the start on, the others for stages
    # between any two places.
    *inner, outer = (tier.size**2 / 2 for tier in levels)
    cells = outer * cut_points**2 + sum(inner) * cut_points**3 / 6
    calls = outer + sum(inner) * cut_points
    found = cells * _CELL_SECONDS + calls * _CALL_SECONDS
    if found > MAX_SEARCH_SECONDS:
        shown = ",".join(str(tier.size) for tier in levels)
        raise BadInput(
            "the search would take too long",
            rule=f"a search takes at most {format_duration(MAX_SEARCH_SECONDS)}; it "
            "grows with the square of the components of a level",
            values=f"--levels {shown}, {cut_points} places to cut: "
            f"{format_duration(found)}",
            remedy="--levels 8,64,... with a bandwidth for each, innermost first",
        )
