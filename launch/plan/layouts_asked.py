"""Layouts as they are asked for: an experiment, a cluster and a number of devices."""

import time
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.core.quantities import volume
from jaxdist.launch.resolve import resolve

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.launch.provenance import Resolved
    from jaxdist.planner.ranking import Ranking


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A ranking with what it is of."""

    resolved: "Resolved"
    """The experiment."""
    cluster: "Cluster"
    """The machines."""
    devices: int
    """How many of them."""
    ranking: "Ranking"
    """What was found."""
    seconds: float
    """That the search took."""


def rank_layouts(args: Namespace) -> Ranked:
    """Search.

    Raises:
        BadInput: something of it cannot be, or no layout can be run.
    """
    if args.cluster is None or args.devices is None:
        raise BadInput(
            "nothing says on which machine, or on how many devices",
            rule="a plan is for some devices of a cluster",
            values=f"--cluster {args.cluster}, --devices {args.devices}",
            remedy="--cluster abci --devices 64",
        )
    resolved = resolve(args.what, args.overrides)

    from jaxdist.launch.described import Subject
    from jaxdist.meshes.clusters.read import find
    from jaxdist.meshes.clusters.what_if import changed
    from jaxdist.planner.layouts import AXES, alone, layouts
    from jaxdist.planner.ranking import rank

    cluster = changed(find(args.cluster), args.what_if)
    cluster.level_of(max(1, args.devices))
    if args.devices < 1:
        raise BadInput(
            "there are no devices",
            rule="a plan is for at least one device",
            values=f"--devices {args.devices}",
            remedy="--devices 8",
        )
    begun = time.perf_counter()
    subject = Subject(resolved.config)
    if args.top < 1:
        raise BadInput(
            "no layouts would be shown",
            rule="--top is at least 1",
            values=f"--top {args.top}",
            remedy="--top 10",
        )
    base = replace(resolved.config.plan, spatial_until="", spatial_then="repeat")
    rows = "image" in subject.shapes
    axes = tuple(axis for axis in AXES if rows or not axis.startswith("spatial"))
    found = rank(
        layouts(base, args.devices, axes),
        alone(base, args.devices, axes),
        subject.case,
        cluster,
        profile=subject.profile,
        microbatches=subject.task.microbatches,
        dtype=subject.dtype,
        room=volume(args.memory, "--memory") if args.memory else None,
        trace=subject.traced,
    )
    return Ranked(
        resolved=resolved,
        cluster=cluster,
        devices=args.devices,
        ranking=found,
        seconds=time.perf_counter() - begun,
    )
