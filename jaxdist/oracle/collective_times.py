"""The seconds of collectives on the links of a cluster: latency and bandwidth.

    seconds = messages(kind, p) alpha + share(kind, p) sent(kind, payload, p) / rate

for each array. `sent` are the bytes that a device of the group sends, by the same
formulas as the traffic meter's. Messages are those of recursive halving and doubling,
2 ceil(log2 p) for an all-reduce, and p - 1 for an all-to-all. A ring sends as many
bytes in more messages, so this is what a library reaches that chooses its algorithm by
size; its share is 1. Where collectives of the kind were measured among p devices,
messages and share are fitted to them, and `times` corrects the line at their sizes.
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
    """Return the seconds of some collectives of one kind.

    Args:
        kind: as the compiler names it: `all-reduce`.
        payload: bytes of their results on one device, all of them together.
        repeats: how many there are.
        group: the devices that take part.
    """
    line, bend = group.collective_cost(kind), 1.0
    if line and repeats:
        # The correction was measured for single collectives, so it is looked up at the
        # size of one and not of all of them.
        bend = line.times(wire_bytes(kind, round(payload), group.size) / repeats)
    return bend * alpha_beta_seconds(kind, payload, repeats, group)


def alpha_beta_seconds(
    kind: str, payload: float, repeats: int, group: LinkGroup
) -> float:
    """Return the same by the straight line alone, without the measured correction."""
    # A collective of one device is compiled away.
    if group.size == 1:
        return 0.0
    line = group.collective_cost(kind)
    # Latency is paid for every array, bytes for all of them together.
    count = line.messages.value if line else message_count(kind, group.size)
    share = line.share.value if line else 1.0
    sent = wire_bytes(kind, round(payload), group.size)
    return repeats * count * group.alpha + share * sent / group.bandwidth


def message_count(kind: str, devices: int) -> int:
    """Return how many messages follow one another in a collective.

    >>> message_count("all-reduce", 6), message_count("collective-permute", 6)
    (6, 1)
    """
    # Halving and doubling takes log2 rounds; an all-reduce does it twice, for a
    # reduce-scatter and an all-gather.
    rounds = math.ceil(math.log2(devices)) if devices > 1 else 0
    return {
        "all-reduce": 2 * rounds,
        "all-gather": rounds,
        "reduce-scatter": rounds,
        "all-to-all": devices - 1,
        "collective-permute": 1,
    }[kind]


def traffic_seconds(
    ledger: Ledger,
    cluster: Cluster,
    placement: MeshPlacement,
    pipe_rank: int | None = None,
) -> dict[str, float]:
    """Return the seconds of a ledger's rows in a step, by `what, axes`.

    Args:
        ledger: the rows.
        cluster: machines.
        placement: the mesh on their devices.
        pipe_rank: rank of the pipe axis that they are of; None: the slowest of all.
    """
    total: defaultdict[str, float] = defaultdict(float)
    # An outer loop (local SGD) synchronizes once every so many steps, so a step pays
    # that part of it.
    every = ledger.plan.outer.sync_interval or 1
    joint = [row for sync in ledger.outer_syncs for row in sync.rows]
    # Equal blocks have equal rows, so each kind of row is priced once.
    seconds: dict[tuple[str, int, int, tuple[str, ...]], float] = {}
    groups: dict[tuple[str, ...], LinkGroup] = {}
    for rows, share in ((ledger.rows, 1.0), (joint, 1 / every)):
        for row in rows:
            alike = row.kind, row.payload, row.arrays, row.axes
            if alike not in seconds:
                if row.axes not in groups:
                    groups[row.axes] = link_group(
                        cluster, placement, row.axes, pipe_rank
                    )
                seconds[alike] = collective_seconds(*alike[:3], groups[row.axes])
            total[f"{row.what}, {' x '.join(row.axes)}"] += share * seconds[alike]
    return dict(total)
