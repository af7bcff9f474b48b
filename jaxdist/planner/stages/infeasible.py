"""Infeasible: why no stages fit, and the least that would lift it."""

import math
from dataclasses import replace
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_size
from jaxdist.planner.stages.memory import MemoryBudget
from jaxdist.planner.stages.search import PipeDreamSolver

_BISECTION_STEPS: Final = 12
"""Halvings of the range in which the least memory lies."""


def infeasible_error(solver: PipeDreamSolver, source: str) -> BadInput:
    """Return the refusal of a search that found nothing.

    Args:
        solver: whose answer is infinite.
        source: what was to be cut.
    """
    devices = math.prod(tier.size for tier in solver.levels)
    room = len(solver.cut_points) - 1
    if solver.straight_pipeline and devices > room:
        return BadInput(
            "there are more devices than stages",
            rule="--straight has a stage of at least a node on each device",
            values=f"--workers {devices}, {source} can be cut into {room}",
            remedy=(f"--workers {room}", "no --straight: stages with replicas"),
        )
    least = _min_memory(solver)
    limit = solver.memory_budget.limit
    return BadInput(
        f"out of memory by {format_size(least - limit)} on every plan",
        rule=f"a device holds what is in flight ({solver.memory_budget.model} model)",
        values=f"--memory {limit:g}, {devices} devices, {source}",
        remedy=(
            f"--memory {least:.3g}",
            "a profile of a smaller minibatch",
        ),
    )


def _min_memory(solver: PipeDreamSolver) -> float:
    """Return memory that is enough, hardly more than the least that is.

    The limit is not enough; all of everything for each device is.
    """
    places = solver.cut_points
    most = sum(float(sums[-1]) for sums in (places.output_bytes, places.parameters))
    devices = math.prod(tier.size for tier in solver.levels)
    low, high = solver.memory_budget.limit, most * (devices + 1)
    for _ in range(_BISECTION_STEPS):
        middle = math.sqrt(max(low, high / 1e6) * high)
        if math.isfinite(_seconds_under_limit(solver, middle)):
            high = middle
        else:
            low = middle
    return _round_up(high)


def _seconds_under_limit(solver: PipeDreamSolver, limit: float) -> float:
    memory: MemoryBudget = replace(solver.memory_budget, limit=limit)
    return PipeDreamSolver(
        solver.cut_points,
        solver.levels,
        solver.cost_convention,
        memory,
        straight_pipeline=solver.straight_pipeline,
    ).seconds


def _round_up(value: float) -> float:
    """Round up to three digits, as the remedy is written."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / step) * step
