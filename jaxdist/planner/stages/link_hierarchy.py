"""Tiers: devices in groups, groups in groups, each joined by links of one bandwidth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.level import Level
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class LinkLevel:
    """Components of a tier, and the links between them."""

    size: int
    """Components: devices of the innermost tier, groups of the next."""
    bandwidth: float
    """Bytes a second of a link between two of them."""


def parse_link_levels(
    workers: int | None, sizes: Sequence[int], bandwidths: Sequence[float]
) -> tuple[LinkLevel, ...]:
    """Return tiers, innermost first.

    Args:
        workers: devices in all; None where the sizes say it.
        sizes: components of each tier; none for one tier.
        bandwidths: one for each tier, or one for all.

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
    _check_product(workers, sizes)
    given = tuple(bandwidths) * (len(sizes) if len(bandwidths) == 1 else 1)
    _check_bandwidths(sizes, given)
    return tuple(LinkLevel(size=n, bandwidth=b) for n, b in zip(sizes, given))


def cluster_link_levels(cluster: Cluster, workers: int | None) -> tuple[LinkLevel, ...]:
    """Return the tiers of neighbouring devices of a cluster, innermost first.

    Args:
        cluster: its levels, and what gets through where all send at once.
        workers: devices; None for all.

    Raises:
        BadInput: more than there are, or units of a level that are not full.
    """
    rest = cluster.devices if workers is None else workers
    cluster.level_of(rest)
    found, full = [], 1
    for level in cluster.levels:
        if rest > level.size and rest % level.size:
            raise _partial_unit_error(cluster, level, rest * full, full)
        rate = level.bandwidth.value / level.oversubscription.value
        found.append(LinkLevel(size=min(rest, level.size), bandwidth=rate))
        rest, full = -(-rest // level.size), full * level.size
    return tuple(tier for tier in found if tier.size > 1) or (found[0],)


def _partial_unit_error(
    cluster: Cluster, level: Level, workers: int, below: int
) -> BadInput:
    unit = below * level.size
    near = [n for n in (workers // unit * unit, -(-workers // unit) * unit) if n]
    return BadInput(
        f"{workers} devices do not fill units of {level.name}",
        rule=f"{cluster.name} has {unit} devices in each {level.name}, and a plan of "
        "levels takes whole ones",
        values=f"--workers {workers}",
        remedy=[f"--workers {count}" for count in near],
    )


def _check_product(workers: int | None, sizes: Sequence[int]) -> None:
    total = math.prod(sizes)
    if workers is not None and workers != total:
        shown = ",".join(map(str, sizes))
        raise BadInput(
            "the levels are not the devices",
            rule="the sizes of all levels multiplied are the devices",
            values=f"--levels {shown} is {total}, --workers {workers}",
            remedy=(f"--workers {total}", *_matching_levels(workers, sizes)),
        )


def _matching_levels(workers: int, sizes: Sequence[int]) -> tuple[str, ...]:
    """Say the levels with another size outermost, if that makes them fit."""
    inner = math.prod(sizes[:-1])
    if workers < 1 or workers % inner:
        return ()
    shown = ",".join(map(str, (*sizes[:-1], workers // inner)))
    return (f"--levels {shown}",)


def _check_bandwidths(sizes: Sequence[int], bandwidths: Sequence[float]) -> None:
    if len(bandwidths) == len(sizes):
        return
    filled = [*bandwidths, *[bandwidths[-1]] * len(sizes)][: len(sizes)]
    raise BadInput(
        "each level has a bandwidth, or all have one",
        rule="--bandwidth has as many values as --levels, innermost first, or one",
        values=f"{len(bandwidths)} bandwidths, {len(sizes)} levels",
        remedy="--bandwidth " + ",".join(f"{rate:g}" for rate in filled),
    )
