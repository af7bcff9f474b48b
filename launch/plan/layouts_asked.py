"""Layouts as they are asked for: an experiment, a cluster and a number of devices."""

import time
from argparse import Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.core.quantities import volume
from jaxdist.launch.plan.question import Question, lossy
from jaxdist.launch.resolve import resolve

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.launch.described import Subject
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
    subject: "Subject"
    """The network, described."""


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
    from jaxdist.planner.ranking import rank

    cluster = changed(find(args.cluster), args.what_if)
    _check(args, cluster)
    begun = time.perf_counter()
    subject = Subject(resolved.config)
    question = Question(
        resolved=resolved, subject=subject, cluster=cluster, devices=args.devices
    )
    found = rank(
        question.coarse(lossy(args.lossy)),
        question.known(),
        subject.case,
        room=volume(args.memory, "--memory") if args.memory else None,
        trace=subject.traced,
    )
    if (args.explain or 1) > len(found.plans):
        raise BadInput(
            "there are fewer plans than that",
            rule="--explain is the place of a plan that can be run",
            values=f"--explain {args.explain}, {len(found.plans)} plans",
            remedy=f"--explain {len(found.plans)}",
        )
    return Ranked(
        resolved=resolved,
        cluster=cluster,
        devices=args.devices,
        ranking=found,
        seconds=time.perf_counter() - begun,
        subject=subject,
    )


def _check(args: Namespace, cluster: "Cluster") -> None:
    """Refuse numbers that leave nothing to search."""
    cluster.level_of(max(1, args.devices))
    if args.devices < 1:
        raise BadInput(
            "there are no devices",
            rule="a plan is for at least one device",
            values=f"--devices {args.devices}",
            remedy="--devices 8",
        )
    if args.explain is not None and args.explain < 1:
        raise BadInput(
            "no plan is at that place",
            rule="--explain is the place of a plan, from 1",
            values=f"--explain {args.explain}",
            remedy="--explain 1",
        )
    if args.top < 1:
        raise BadInput(
            "no layouts would be shown",
            rule="--top is at least 1",
            values=f"--top {args.top}",
            remedy="--top 10",
        )
