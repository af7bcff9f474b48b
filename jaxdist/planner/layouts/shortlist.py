"""The shortlist: which plans of an estimated space are described in full."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from jaxdist.core.plan import Plan
from jaxdist.core.plan.reduction import AlgorithmName
from jaxdist.oracle.stage_times import permutes_are_serialized
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.space import Column, PlanSpace
from jaxdist.planner.layouts.stage_cuts import stage_cut_variants

FEASIBLE_LAYOUTS: Final = 12
"""Layouts that fit whose best settings are described."""
MAX_LAYOUT_ATTEMPTS: Final = 24
"""Layouts that are described until as many of them fit."""
SETTINGS_PER_LAYOUT: Final = 4
"""Settings of a layout that came out well, which are described beside its best."""
EXACT_ALGORITHMS: Final[tuple[AlgorithmName, ...]] = (
    "ring",
    "halving_doubling",
    "recursive_doubling",
)
"""All-reduce algorithms without loss, built of our own steps."""
_MEMORY_TOLERANCE: Final = 1.1
"""A plan is left to the last if it seems to need so many times the memory there is."""


def order_by_estimate(
    estimate: CostEstimate, memory_capacity: float | Column
) -> Column:
    """Return the rows of a space by their estimate; what seems too large comes last.

    Args:
        estimate: the space, estimated.
        memory_capacity: bytes of a device, or those of each row's.
    """
    if not len(estimate.space):
        return np.zeros(0, int)
    over = np.maximum(estimate.memory_bytes / memory_capacity / _MEMORY_TOLERANCE, 1.0)
    # Of equally fast plans the one with fewer microbatches and without remat is first.
    tidy = estimate.space.micro + 1000 * estimate.space.remat
    # The last key of lexsort counts first: memory, then seconds, then tidiness.
    return np.lexsort((tidy, estimate.seconds, np.where(over > 1, over, 0)))


def best_row_per_mesh(order: Column, space: PlanSpace) -> list[int]:
    """Return the best row of each of the best layouts, the best first."""
    # unique returns the first place of each mesh in the order, sorted by mesh.
    _, first = np.unique(space.mesh[order], return_index=True)
    return [int(order[place]) for place in np.sort(first)[:MAX_LAYOUT_ATTEMPTS]]


def best_settings(plan: Plan, order: Column, estimate: CostEstimate) -> Plan:
    """Return a plan with the best settings of its mesh, as it is where there are none.

    Args:
        plan: a layout.
        order: rows of the space, the best first.
        estimate: the space, estimated.
    """
    space = estimate.space
    if plan.mesh not in space.meshes:
        return plan
    # The order is over all meshes; its rows of this one keep theirs.
    own = order[space.mesh[order] == space.meshes.index(plan.mesh)]
    return space.plan(int(own[0])) if len(own) else plan


def best_fitting_row(
    row: int,
    needed_bytes: float,
    memory_capacity: float,
    order: Column,
    estimate: CostEstimate,
) -> int:
    """Return the best row of a layout that should fit; the same where there is none.

    Args:
        row: one that does not fit.
        needed_bytes: bytes that it needs; others are off their estimate by as much.
        memory_capacity: bytes of a device.
        order: rows of the space, the best first.
        estimate: the space, estimated.
    """
    own = order[estimate.space.mesh[order] == estimate.space.mesh[row]]
    fits = (
        estimate.memory_bytes[own] * needed_bytes / estimate.memory_bytes[row]
        <= memory_capacity
    )
    return int(own[fits][0]) if fits.any() else row


def setting_variants(
    plan: Plan, order: Column, estimate: CostEstimate
) -> Iterator[Plan]:
    """Yield other settings of a plan's layout, the best first.

    Beside those of the space: other cuts, other ways to split weights and to attend to
    split tokens, and parameters that fsdp does not shard.

    Args:
        plan: one that came out well.
        order: rows of the space, the best first.
        estimate: the space, estimated.
    """
    space = estimate.space
    place = space.meshes.index(plan.mesh)
    own = order[space.mesh[order] == place]
    for row in own[:SETTINGS_PER_LAYOUT]:
        yield replace(
            space.plan(int(row)),
            placement=plan.placement,
            host_order=plan.host_order,
        )
    yield from stage_cut_variants(plan, estimate)
    if plan.mesh.tensor > 1:
        yield from (replace(plan, tensor_strategy=how) for how in space.choices.weights)
    if plan.mesh.context > 1:
        yield from (replace(plan, context=how) for how in space.choices.contexts)
    if plan.mesh.fsdp > 1:
        yield from (replace(plan, zero=zero) for zero in space.choices.zeros)
    # Their steps go both ways at once, which the price of permutations that were timed
    # one way at a time does not tell.
    if plan.mesh.data > 1 and plan.reduce.algorithm == "exact" and not plan.pipe.flows:
        priced = space.choices.ways[0] == "exact" and not permutes_are_serialized(
            estimate.cluster
        )
        for way in EXACT_ALGORITHMS if priced else ():
            yield replace(plan, reduce=plan.reduce.by(way))


def microbatch_neighbours(plan: Plan, estimate: CostEstimate) -> Iterator[Plan]:
    """Yield a plan in stages with the next smaller and larger numbers of microbatches.

    The efficiency of kernels by their size decides how many are best, and where the
    network is best cut for them: each comes with equal FLOPs, with cuts of its own, and
    with those of the plan, whose cuts were predicted to be good ones.

    Args:
        plan: one that came out first.
        estimate: the space, estimated.
    """
    space = estimate.space
    if plan.stages == 1 or plan.pipe.flows:
        return
    alike = space.mesh == space.meshes.index(plan.mesh)
    # Interleaved schedules need a multiple of the devices, zero bubble that many.
    alike &= space.schedule_names == plan.pipe.schedule
    known = np.unique(space.micro[alike & (space.chunks == plan.pipe.chunks)])
    fewer, more = known < plan.microbatches, known > plan.microbatches
    given = space.base.pipe.cuts
    for micro in (*known[fewer][-1:], *known[more][:1]):
        pipe = replace(plan.pipe, cuts=given)
        one = replace(plan, microbatches=int(micro), pipe=pipe)
        yield one
        yield from stage_cut_variants(one, estimate)
        if plan.pipe.cuts not in ((), given):
            yield replace(plan, microbatches=int(micro))
