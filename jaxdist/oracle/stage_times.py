"""The seconds of a microbatch in each pipeline stage, and what stages send each other.

    pass(s) = compute(s) (1 + jitter) + comm(s) / 2

comm(s) is the communication inside of layers while a microbatch passes through the
stage: all-reduces along tensor, halos of images, statistics of norms, and in the last
stage what devices add of a loss. Stages wait for each other at every exchange, so a
stage's neighbours wait for its communication as they wait for its compute. Half of it
is forward. Rematerialization adds none: what a collective brought is saved. Traffic of
once a step (gradients, parameters) and between stages is no part of a pass.

Between stages every device takes part in every permutation along the pipe axis, but the
last stage sends no activations on, and the first no gradients back. Links carry both
directions at the same time, so their seconds do not add up. Where a cluster's
permutations were measured they do: libraries run one after the other, as gloo does, and
were timed that way.

Stages with replicas need H permutations each way, one after the other at the device
that is in all of them. A device of a single hop goes on after it, and what it sends
next passes what still comes to others: the bytes of an exchange take as long as H + 1
messages, not 2 H. All 2 H begin and end at that one device, so each costs a message
without its bytes.
"""

from dataclasses import replace
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import Plan
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.collective_times import traffic_seconds
from jaxdist.oracle.compute_times import (
    MicrobatchTime,
    stage_compute_times,
)
from jaxdist.oracle.link_groups import link_group
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.traffic import LOSS_LAYER
from jaxdist.pipeline.plan_schedule import stage_placement

_PIPE_AXES: Final = ("pipe",)
_PERMUTE_KIND: Final = "collective-permute"


def stage_times(case: StepDescription, cluster: Cluster) -> tuple[MicrobatchTime, ...]:
    """Return the seconds of each stage in one microbatch; one without stages.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    # Every stage waits for the slowest of its devices, which is late by the jitter.
    late, found = 1 + cluster.jitter.value, list[MicrobatchTime]()
    equal = case.stages_of_equal_time(cluster)
    for stage, computed in enumerate(stage_compute_times(case, cluster)):
        if equal[stage] < stage:
            found.append(found[equal[stage]])
            continue
        names, halves = _stage_row_layers(case, stage), []
        for rank in _unlike_ranks(case, cluster, stage):
            inside = _rows_of_layers(case.ledgers[rank], names)
            moved = traffic_seconds(inside, cluster, case.plan.placed, rank)
            # The ledger has a step's traffic, of which a microbatch has its part.
            halves.append(sum(moved.values()) / case.work_counts[rank].microbatches / 2)
        half = max(halves)
        found.append(
            MicrobatchTime(
                forward=late * computed.forward + half,
                backward=late * computed.backward + half,
                forward_comm=half,
                backward_comm=half,
                weights=late * computed.weights,
            )
        )
    return tuple(found)


def _unlike_ranks(
    case: StepDescription, cluster: Cluster, stage: int
) -> tuple[int, ...]:
    """Return the ranks of a stage: the first stands for all where links are even."""
    ranks = case.placement.stage_devices[stage]
    return ranks if cluster.has_uneven_links else ranks[:1]


def stage_layer_traffic(case: StepDescription, pipe_rank: int) -> Ledger:
    """Return the traffic inside of a device's layers; none without stages.

    Args:
        case: network, layout and traffic.
        pipe_rank: its rank of the pipe axis.
    """
    return _rows_of_layers(case.ledgers[pipe_rank], _device_layers(case, pipe_rank))


def other_traffic(case: StepDescription, pipe_rank: int) -> Ledger:
    """Return all other traffic of a device in a step, as `stage_layer_traffic`."""
    ledger, own = case.ledgers[pipe_rank], _device_layers(case, pipe_rank)
    rows = tuple(row for row in ledger.rows if row.layer not in own)
    return replace(ledger, rows=rows)


def _device_layers(case: StepDescription, pipe_rank: int) -> set[str]:
    """Name the layers of a device's stages; none where the network is not cut."""
    stages = case.placement.stages_of(pipe_rank) if case.stages else ()
    return set[str]().union(*(_stage_row_layers(case, stage) for stage in stages))


def _stage_row_layers(case: StepDescription, stage: int) -> set[str]:
    """Name the layers whose traffic is part of a stage's passes."""
    if not case.stages:
        return set()
    names = {layer.name for layer in case.compute_layers(stage)}
    # The last stage has the loss, in each of its microbatches.
    return names | {LOSS_LAYER} if stage == len(case.stages) - 1 else names


def _rows_of_layers(ledger: Ledger, names: set[str]) -> Ledger:
    rows = tuple(row for row in ledger.rows if row.layer in names)
    return replace(ledger, rows=rows, outer_syncs=())


def send_ledger(ledger: Ledger, plan: Plan, pipe_rank: int, cluster: Cluster) -> Ledger:
    """Return a device's ledger without the bytes that cost it no time of their own.

    Args:
        ledger: of the device.
        plan: the layout.
        pipe_rank: its rank of the pipe axis.
        cluster: says whether permutations were measured.
    """
    if plan.stages == 1:
        return ledger
    places = stage_placement(plan)
    if permutes_are_serialized(cluster):
        # Replicas: an exchange waits for the bytes of H + 1 messages out of 2 H.
        hops = len(places.send_permutations())
        share = (hops + 1) / (2 * hops)
        shares = {"activations": share, "gradients": share}
    else:
        # Bytes that are only received come over the link's other direction.
        own = places.stages_of(pipe_rank)
        last = all(stage == places.stages - 1 for stage in own)
        first = all(stage == 0 for stage in own)
        shares = {"activations": 0.0 if last else 1.0}
        shares |= {"gradients": 0.0 if first else 1.0}
    rows = tuple(
        replace(row, payload=round(shares[row.what] * row.payload))
        if row.axes == _PIPE_AXES and row.what in shares
        else row
        for row in ledger.rows
    )
    return replace(ledger, rows=rows)


def permute_skew(cluster: Cluster, placement: MeshPlacement) -> float:
    """Return the seconds by which the last of equally busy stages is late.

    Args:
        cluster: with measured permutations, or without: then it is 0.
        placement: says over which links stages send.
    """
    # Without a measured permutation the skew is unknown, and left out.
    line = link_group(cluster, placement, _PIPE_AXES).collective_cost(_PERMUTE_KIND)
    return line.skew.value if line else 0.0


def superstep_skew(plan: Plan, cluster: Cluster) -> float:
    """Return the seconds that an exchange of a plan waits for the last of its devices.

    Where stages have replicas, the device that is in all hops waits in each of them for
    its other end.

    Args:
        plan: the layout.
        cluster: as of `permute_skew`.
    """
    if plan.stages == 1:
        return 0.0
    # One permutation moves a message between each pair of neighbours; a stage with
    # replicas needs several.
    hops = len(stage_placement(plan).send_permutations())
    return hops * permute_skew(cluster, plan.placed)


def permutes_are_serialized(cluster: Cluster) -> bool:
    """Tell whether permutations were measured, which is one direction at a time.

    Both directions at once, as in the steps of a ring, take longer than these times
    say: two to four times between pairs of hosts with links of 200 Mbit.
    """
    lines = (line for level in cluster.levels for line in level.lines)
    return any(line.kind == _PERMUTE_KIND for line in lines)
