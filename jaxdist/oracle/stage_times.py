"""Passes: the seconds of a microbatch's way through each stage, and back.

    pass(s) = compute(s) (1 + jitter) + talk(s) / 2

Talk is what layers say to other devices while a microbatch passes through them: sums
along tensor, edges of images, statistics of norms. Stages wait for each other behind
every beat, so those whose neighbour talks wait as they do where it computes. Half of it
is said forward. A backward pass that makes activations anew says no more: what was
brought is kept. What a step moves once (gradients, parameters) and what stages hand on
is no part of a pass, and neither is anything where the network is not cut.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from jaxdist.core.cluster import Cluster
from jaxdist.oracle.collective_times import traffic_seconds
from jaxdist.oracle.compute_times import (
    MicrobatchTime,
    compute_layers,
    stage_compute_times,
)
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.plan_schedule import device_work_counts
from jaxdist.pipeline.stage_placement import stage_placement


def stage_times(case: StepDescription, cluster: Cluster) -> tuple[MicrobatchTime, ...]:
    """Return the seconds of each stage in one microbatch; one without stages.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    late = 1 + cluster.jitter.value
    computed = stage_compute_times(case, cluster.device)
    said = _stage_comm_times(case, cluster)
    return tuple(
        MicrobatchTime(forward=late * one.forward, backward=late * one.backward) + talk
        for one, talk in zip(computed, said, strict=True)
    )


def stage_layer_traffic(case: StepDescription, pipe_rank: int) -> Ledger:
    """Return what the layers of a device's stages move; nothing without stages.

    Args:
        case: network, layout and traffic.
        pipe_rank: its place along the pipe axis.
    """
    return _select_layers(case.ledgers[pipe_rank], _device_layers(case, pipe_rank))


def other_traffic(case: StepDescription, pipe_rank: int) -> Ledger:
    """Return all else that a device moves in a step."""
    ledger, own = case.ledgers[pipe_rank], _device_layers(case, pipe_rank)
    rows = tuple(row for row in ledger.rows if row.layer not in own)
    return replace(ledger, rows=rows)


def _device_layers(case: StepDescription, pipe_rank: int) -> set[str]:
    """Name the layers of a device's stages."""
    return _layer_names(case, stage_placement(case.plan).stages_of(pipe_rank))


def _layer_names(case: StepDescription, stages: Iterable[int]) -> set[str]:
    """Name the layers of stages; none where the network is not cut."""
    cut = stages if case.stages else ()
    return {layer.name for stage in cut for layer in compute_layers(case, stage)}


def _stage_comm_times(
    case: StepDescription, cluster: Cluster
) -> Iterator[MicrobatchTime]:
    """Yield what the layers of each stage say in one microbatch."""
    places, taken = (
        stage_placement(case.plan),
        device_work_counts(case.plan, case.microbatches),
    )
    for stage in range(max(1, len(case.stages))):
        device = places.stage_devices[stage][0]
        inside = _select_layers(case.ledgers[device], _layer_names(case, (stage,)))
        whole = sum(traffic_seconds(inside, cluster, case.plan.placed).values())
        half = whole / taken[device].microbatches / 2
        yield MicrobatchTime(
            forward=half, backward=half, forward_comm=half, backward_comm=half
        )


def _select_layers(ledger: Ledger, names: set[str]) -> Ledger:
    rows = tuple(row for row in ledger.rows if row.layer in names)
    return replace(ledger, rows=rows, outer_syncs=())
