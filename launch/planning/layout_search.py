"""Layouts as they are asked for: an experiment, a cluster and numbers of devices."""

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.core.text.parsing import parse_bytes
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery, parse_compressors

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.launch.config.resolve import ResolvedConfig
    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.planner.layouts.merge_rankings import MergedRanking
    from jaxdist.planner.layouts.objective import PlanObjective
    from jaxdist.planner.layouts.ranking import PlanRanking


@dataclass(frozen=True, kw_only=True)
class LayoutSearchResult:
    """A ranking with what it is of."""

    resolved: "ResolvedConfig"
    """The experiment."""
    cluster: "Cluster"
    """The machines."""
    devices: tuple[int, ...]
    """How many of them; several numbers are searched one after the other."""
    objective: "PlanObjective"
    """What plans are ordered by."""
    ranking: "MergedRanking"
    """What was found."""
    search_s: float
    """That the search took."""
    describer: "StepDescriber"
    """The network, described."""


def search_layouts(args: Namespace) -> LayoutSearchResult:
    """Search.

    Raises:
        BadInput: something of it cannot be, or no layout can be run.
    """
    if args.cluster is None or args.devices is None:
        raise BadInput(
            "nothing says on which machine, or on how many devices",
            rule="a plan is for some devices of a cluster",
            values=f"--cluster {args.cluster}, --devices "
            f"{_format_counts(args.devices)}",
            remedy="--cluster abci --devices 64",
        )
    resolved = resolve_config(args.what, args.overrides)

    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.meshes.clusters.load import load_cluster
    from jaxdist.meshes.clusters.what_if import apply_overrides
    from jaxdist.planner.layouts.objective import PlanObjective

    cluster = apply_overrides(load_cluster(args.cluster), args.what_if)
    objective = PlanObjective(
        kind=args.objective or "step",
        samples=None if args.samples is None else _parse_samples(args.samples),
        price=cluster.price,
    )
    _check_options(args, cluster)
    begun = time.perf_counter()
    subject = StepDescriber(resolved.config)
    counts = tuple(dict.fromkeys(args.devices))
    found = _rank_all_counts(
        counts,
        objective,
        lambda count: _rank_one_count(
            LayoutQuery(
                resolved=resolved, describer=subject, cluster=cluster, devices=count
            ),
            args,
        ),
    )
    if (args.explain or 1) > len(found.plans):
        raise BadInput(
            "there are fewer plans than that",
            rule="--explain is the place of a plan that can be run",
            values=f"--explain {args.explain}, {len(found.plans)} plans",
            remedy=f"--explain {len(found.plans)}",
        )
    return LayoutSearchResult(
        resolved=resolved,
        cluster=cluster,
        devices=counts,
        objective=objective,
        ranking=found,
        search_s=time.perf_counter() - begun,
        describer=subject,
    )


def _rank_one_count(question: LayoutQuery, args: Namespace) -> "PlanRanking":
    """Rank the layouts of one number of devices."""
    from jaxdist.planner.layouts.ranking import rank_plans

    subject = question.describer
    return rank_plans(
        question.cost_estimate(parse_compressors(args.lossy)),
        question.baseline_plans(),
        subject.describe,
        memory_capacity=parse_bytes(args.memory, "--memory") if args.memory else None,
        trace_step=subject.describe_traced,
    )


def _rank_all_counts(
    counts: tuple[int, ...],
    objective: "PlanObjective",
    rank: "Callable[[int], PlanRanking]",
) -> "MergedRanking":
    """Rank the layouts of each number of devices, and put them together.

    Raises:
        NoLayout: none of the numbers has one that can be run: what the first lacks.
    """
    from jaxdist.planner.layouts.evaluated_plans import NoLayoutError
    from jaxdist.planner.layouts.merge_rankings import merge_rankings

    found: dict[int, PlanRanking] = {}
    refused: dict[int, NoLayoutError] = {}
    for count in counts:
        try:
            found[count] = rank(count)
        except NoLayoutError as error:
            refused[count] = error
    if not found:
        raise refused[counts[0]]
    why = {count: error.values for count, error in refused.items()}
    return merge_rankings(found, why, objective)


def _parse_samples(text: str) -> float:
    """Read a number of samples.

    Raises:
        BadInput: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise BadInput(
            f"{text} is no number of samples",
            rule="--samples is a number",
            values=f"--samples {text}",
            remedy="--samples 90e6",
        ) from None


def _format_counts(counts: tuple[int, ...] | None) -> str:
    return "None" if counts is None else ",".join(map(str, counts))


def _check_options(args: Namespace, cluster: "Cluster") -> None:
    """Refuse numbers that leave nothing to search."""
    for count in args.devices:
        cluster.level_of(max(1, count))
        if count < 1:
            raise BadInput(
                "there are no devices",
                rule="a plan is for at least one device",
                values=f"--devices {_format_counts(args.devices)}",
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
