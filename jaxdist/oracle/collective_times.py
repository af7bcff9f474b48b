"""Prices: what the rows of a ledger take on a cluster's links.

    seconds = messages(kind, p) alpha + share(kind, p) sent(kind, payload, p) / rate

for each array. `sent` are the bytes that a device of the group sends, those of the
meter's formulas. Messages are those of recursive halving and doubling, 2 ceil(log2 p)
for an all-reduce; of p - 1 partners for an all-to-all. A ring sends as many bytes and
more messages, so this is what a library reaches that chooses by size; its share is 1.
Where collectives of the kind were measured among p devices, messages and share are what
was found, and how far collectives of that size lay from such a line.
"""

import math
from collections import defaultdict

from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.core.cluster import Cluster
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.link_groups import LinkGroup, link_group
from jaxdist.partition.ledger import Ledger


def collective_seconds(
    kind: str, payload: float, repeats: int, group: LinkGroup
) -> float:
    """Return what collectives of one kind take.

    Args:
        kind: as the compiler names it: `all-reduce`.
        payload: bytes of their results on one device, all of them together.
        repeats: how many there are.
        group: who takes part.
    """
    line = group.collective_cost(kind)
    bend = (
        line.times(_sent_bytes(kind, payload, group) / repeats)
        if line and repeats
        else 1.0
    )
    return bend * alpha_beta_seconds(kind, payload, repeats, group)


def alpha_beta_seconds(
    kind: str, payload: float, repeats: int, group: LinkGroup
) -> float:
    """Return the same by the line alone, without how far sizes lie from it."""
    if group.size == 1:
        return 0.0
    line = group.collective_cost(kind)
    count = line.messages.value if line else message_count(kind, group.size)
    share = line.share.value if line else 1.0
    sent = _sent_bytes(kind, payload, group)
    return repeats * count * group.alpha + share * sent / group.bandwidth


def _sent_bytes(kind: str, payload: float, group: LinkGroup) -> int:
    """Return the bytes that a device of a group sends."""
    return wire_bytes(kind, round(payload), group.size)


def message_count(kind: str, devices: int) -> int:
    """Return how many messages follow one another in a collective.

    >>> message_count("all-reduce", 6), message_count("collective-permute", 6)
    (6, 1)
    """
    rounds = math.ceil(math.log2(devices)) if devices > 1 else 0
    return {
        "all-reduce": 2 * rounds,
        "all-gather": rounds,
        "reduce-scatter": rounds,
        "all-to-all": devices - 1,
        "collective-permute": 1,
    }[kind]


def traffic_seconds(
    ledger: Ledger, cluster: Cluster, placement: MeshPlacement
) -> dict[str, float]:
    """Return the seconds of a ledger's rows, by `what, axes`.

    Syncs of an outer loop count by the step.
    """
    total: defaultdict[str, float] = defaultdict(float)
    every = ledger.plan.outer.every or 1
    joint = [row for sync in ledger.outer_syncs for row in sync.rows]
    for rows, share in ((ledger.rows, 1.0), (joint, 1 / every)):
        for row in rows:
            group = link_group(cluster, placement, row.axes)
            took = collective_seconds(row.kind, row.payload, row.arrays, group)
            total[f"{row.what}, {' x '.join(row.axes)}"] += share * took
    return dict(total)
