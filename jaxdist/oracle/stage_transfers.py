"""Passing on: what a device really sends of that which stages hand to each other.

Every device takes part in every permutation along the pipe axis, but the last stage has
no activations to send on, and the first no gradients to send back. Links carry both at
the same time, in opposite directions, so their seconds do not add up. Where a cluster's
permutations were measured they do: libraries make one after the other, as gloo does,
every device waits for both, and they were timed that way.

Stages with replicas need H permutations each way, one behind the other at the device
that is in all of them. One that is in a single hop goes on behind it, and what it sends
next passes what still comes to others: the bytes of a beat take as long as H + 1
messages, not 2 H. All 2 H begin and end at that device, so each costs what one does
without its bytes.
"""

from dataclasses import replace
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import Plan
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.link_groups import link_group
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.stage_placement import stage_placement

_FORWARD_TERM: Final = "activations"
_BACKWARD_TERM: Final = "gradients"
_PIPE_AXES: Final = ("pipe",)
_PERMUTE_KIND: Final = "collective-permute"


def send_ledger(ledger: Ledger, plan: Plan, pipe_rank: int, cluster: Cluster) -> Ledger:
    """Return a device's ledger without the bytes that it only receives.

    Args:
        ledger: of the device.
        plan: the layout.
        pipe_rank: its place along the pipe axis.
        cluster: says whether permutations were measured.
    """
    if plan.stages == 1:
        return ledger
    places = stage_placement(plan)
    if permutes_are_serialized(cluster):
        return _merge_hops(ledger, len(places.send_permutations()))
    own = places.stages_of(pipe_rank)
    silent = {
        _FORWARD_TERM: all(stage == places.stages - 1 for stage in own),
        _BACKWARD_TERM: all(stage == 0 for stage in own),
    }
    rows = tuple(
        replace(row, payload=0)
        if row.axes == _PIPE_AXES and silent.get(row.what, False)
        else row
        for row in ledger.rows
    )
    return replace(ledger, rows=rows)


def _merge_hops(ledger: Ledger, hops: int) -> Ledger:
    """Return a ledger with the bytes of so many hops each way that a beat waits for."""
    share = (hops + 1) / (2 * hops)
    rows = tuple(
        replace(row, payload=round(share * row.payload))
        if row.axes == _PIPE_AXES and row.what in (_FORWARD_TERM, _BACKWARD_TERM)
        else row
        for row in ledger.rows
    )
    return replace(ledger, rows=rows)


def permute_skew(cluster: Cluster, placement: MeshPlacement) -> float:
    """Return the seconds that stages wait for the last of those that end together.

    Args:
        cluster: says what was measured of permutations.
        placement: says who passes on to whom.
    """
    line = link_group(cluster, placement, _PIPE_AXES).collective_cost(_PERMUTE_KIND)
    return line.skew.value if line else 0.0


def superstep_skew(plan: Plan, cluster: Cluster) -> float:
    """Return the seconds that a beat of a plan waits for the last of its devices.

    Where stages have replicas, the device that is in all hops waits in each of them for
    its other end.

    Args:
        plan: the layout.
        cluster: says what was measured of permutations.
    """
    if plan.stages == 1:
        return 0.0
    return len(stage_placement(plan).send_permutations()) * permute_skew(
        cluster, plan.placed
    )


def permutes_are_serialized(cluster: Cluster) -> bool:
    """Tell whether permutations were measured, one way at a time.

    What goes both ways at once, as the steps of a ring do, takes longer than their
    prices say: two to four times between pairs of hosts with links of 200 Mbit.
    """
    lines = (line for level in cluster.levels for line in level.lines)
    return any(line.kind == _PERMUTE_KIND for line in lines)
