"""Layers in stages: seconds and cuts of a pipeline in the manner of GPipe."""

from collections.abc import Sequence

from jaxdist.oracle.published.paradl.case import ParadlCase
from jaxdist.oracle.published.paradl.slices import (
    LayerSplit,
    compute_by_layer,
    update_seconds,
)
from jaxdist.oracle.published.paradl.system import ParadlSystem


def balance_stages(seconds: Sequence[float], stages: int) -> list[range]:
    """Return contiguous stages of which the slowest is as fast as can be.

    >>> balance_stages([3.0, 1.0, 1.0, 3.0, 2.0], 3)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    best = {(0, 0): (0.0, 0)}
    for stage in range(1, stages + 1):
        for end in range(stage, len(seconds) + 1):
            ways = (
                (max(best[stage - 1, start][0], sum(seconds[start:end])), start)
                for start in range(stage - 1, end)
                if (stage - 1, start) in best
            )
            best[stage, end] = min(ways)
    found, end = list[range](), len(seconds)
    for stage in range(stages, 0, -1):
        start = best[stage, end][1]
        found.append(range(start, end))
        end = start
    return found[::-1]


def pipeline_terms(case: ParadlCase, system: ParadlSystem) -> dict[str, float]:
    """Return the seconds of a step by term; ParaDL's `layer` row with real stages."""
    layers, parts = case.layers, case.segments
    serial = case.workload.seconds_per_sample.value
    each = compute_by_layer(layers, serial, case.group_batch, system)
    stages = balance_stages(each, case.group)
    slowest = max(sum(each[stage.start : stage.stop]) for stage in stages)
    reach = system.ring_link(case.group)
    ends = [layers[stage.stop - 1].outputs for stage in stages[:-1]]
    size = system.element_bytes * case.group_batch / parts * max(ends, default=0)
    hop = reach.alpha.value + size / reach.bandwidth.value
    most = max(
        update_seconds(layers[stage.start : stage.stop], LayerSplit(), system)
        for stage in stages
    )
    return {
        "compute, stages": slowest,
        "bubble": slowest * (case.group - 1) / parts,
        "messages": 2 * (case.group + parts - 2) * hop,
        "update": most,
    }
