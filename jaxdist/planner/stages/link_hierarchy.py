"""Levels of links: devices in groups, groups in groups, each of one bandwidth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class LinkLevel:
    """Components of a level, and the links between them."""

    size: int
    """Components: devices of the innermost level, groups of the next."""
    bandwidth: float
    """Bytes a second of a link between two of them."""


def parse_link_levels(
    workers: int | None, sizes: Sequence[int], bandwidths: Sequence[float]
) -> tuple[LinkLevel, ...]:
    """Return the levels of typed numbers, innermost first.

    Args:
        workers: devices in all; None where the sizes say it.
        sizes: components of each level; none for one level.
        bandwidths: one for each level, or one for all.

    Raises:
        BadInput: no devices, or numbers that contradict each other.
    """
    if workers is None and not sizes:
        raise BadInput(
            "no devices to plan for",
            rule="stages are planned for a number of devices",
            remedy="--workers 16",
        )
    sizes = tuple(sizes) or (workers or 0,)
    for option, count in (("--workers", workers), *(("--levels", n) for n in sizes)):
        if count is not None and count < 1:
            raise BadInput(
                "no devices to plan for",
                rule="there is at least one device, and one component a level",
                values=f"{option} {count}",
                remedy=f"{option} 1",
            )
    total, inner = math.prod(sizes), math.prod(sizes[:-1])
    if workers is not None and workers != total:
        remedy = [f"--workers {total}"]
        if workers % inner == 0:
            # Another size of the outermost level makes them fit.
            shown = ",".join(map(str, (*sizes[:-1], workers // inner)))
            remedy.append(f"--levels {shown}")
        raise BadInput(
            "the levels are not the devices",
            rule="the sizes of all levels multiplied are the devices",
            values=f"--levels {','.join(map(str, sizes))} is {total}, "
            f"--workers {workers}",
            remedy=remedy,
        )
    given = tuple(bandwidths) * (len(sizes) if len(bandwidths) == 1 else 1)
    if len(given) != len(sizes):
        filled = [*given, *[given[-1]] * len(sizes)][: len(sizes)]
        raise BadInput(
            "each level has a bandwidth, or all have one",
            rule="--bandwidth has as many values as --levels, innermost first, or one",
            values=f"{len(given)} bandwidths, {len(sizes)} levels",
            remedy="--bandwidth " + ",".join(f"{rate:g}" for rate in filled),
        )
    return tuple(LinkLevel(size=n, bandwidth=b) for n, b in zip(sizes, given))


def cluster_link_levels(cluster: Cluster, workers: int | None) -> tuple[LinkLevel, ...]:
    """Return the levels of neighbouring devices of a cluster, innermost first.

    Args:
        cluster: with the bandwidth of each level where all devices send.
        workers: devices; None for all.

    Raises:
        BadInput: more than there are, or units of a level that are not full.
    """
    rest = cluster.devices if workers is None else workers
    cluster.level_of(rest)
    found, full = [], 1
    for level in cluster.levels:
        # The recurrences take whole components of each level.
        if rest > level.size and rest % level.size:
            unit, asked = full * level.size, rest * full
            near = [n for n in (asked // unit * unit, -(-asked // unit) * unit) if n]
            raise BadInput(
                f"{asked} devices do not fill units of {level.name}",
                rule=f"{cluster.name} has {unit} devices in each {level.name}, and a "
                "plan of levels takes whole ones",
                values=f"--workers {asked}",
                remedy=[f"--workers {count}" for count in near],
            )
        # What gets through where all devices send at once.
        rate = level.bandwidth.value / level.oversubscription.value
        found.append(LinkLevel(size=min(rest, level.size), bandwidth=rate))
        rest, full = -(-rest // level.size), full * level.size
    # A level of one component has no links to choose.
    return tuple(tier for tier in found if tier.size > 1) or (found[0],)
