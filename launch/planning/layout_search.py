"""Searches the layouts of an experiment on some devices of a cluster."""

import gc
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from jaxdist.core.errors import BadInput
from jaxdist.core.text.parsing import parse_bytes
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery, parse_compressors

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.core.plan import Plan
    from jaxdist.launch.config import Experiment
    from jaxdist.launch.config.resolve import ResolvedConfig
    from jaxdist.launch.planning.verify import Verification
    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan
    from jaxdist.planner.layouts.objective import ObjectiveKind, PlanObjective
    from jaxdist.planner.layouts.ranking import MergedRanking, PlanRanking


_COLLECTION_THRESHOLDS: Final = (50_000, 20, 50)
"""Objects made before a collection, and collections before one of older objects."""


@dataclass(frozen=True, kw_only=True)
class PlanQuery:
    """What `jaxdist plan EXPERIMENT` takes; quantities are text with their units."""

    experiment: "str | Experiment"
    """Name, file, or settings."""
    overrides: Sequence[str] = ()
    """`key=value`; a key of the plan that is given is not searched."""
    cluster: str | None = None
    """Name or file."""
    devices: tuple[int, ...] | None = None
    """Numbers of devices; the layouts of several are ranked together."""
    objective: str | None = None
    """What is minimised: `step` (the default), `cost` or `budget`."""
    samples: str | None = None
    """Samples to train on."""
    what_if: Sequence[str] = ()
    """Changed numbers of the cluster: `levels.net.bandwidth=1gbit`."""
    memory: str | None = None
    """Bytes of a device; the cluster's by default."""
    compressors: str | None = None
    """Lossy compressors that may be chosen, with commas between them, or `all`."""
    top: int = 10
    """Plans that are shown."""
    explain: int | None = None
    """Rank of the plan whose arithmetic is shown, from 1."""


@dataclass(frozen=True, kw_only=True)
class LayoutSearchResult:
    """A ranking with what it is of."""

    query: PlanQuery
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
    """Seconds that the search took."""
    describer: "StepDescriber"
    """The network, described."""
    verification: "Verification | None" = None
    """The first plans as they were run or compiled, where that was asked for."""

    @property
    def best_plan(self) -> "Plan":
        """The first plan, by what was seen where plans were tried.

        Raises:
            BadInput: none of those that were tried can be run.
        """
        if self.verification is None:
            return self.ranking.plans[0].plan
        first = self.verification.plans[0]
        if first.refusal:
            raise BadInput(
                "none of the plans that were tried can be run",
                rule="-o writes the first of the plans that were tried",
                values=f"{first.evaluated.plan.label}: {first.refusal}",
                remedy="a larger --first, or a smaller --memory",
            )
        return first.evaluated.plan

    def is_slower_than_first(self, one: "EvaluatedPlan") -> bool:
        """Return whether a plan is slower than the first, nine in ten times."""
        first = self.ranking.plans[0]
        # Intervals are of seconds. An objective may scale them, as a price by the
        # number of devices does, so its own ratio is held against them.
        ratio = self.objective.value(one) / self.objective.value(first)
        return one.prediction.is_slower_than(first.prediction, ratio)

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as plain values, in seconds and bytes."""
        objective = self.objective
        tree: dict[str, Any] = {}
        if self.verification is not None:
            tree["verified"] = self.verification.to_dict()
        if self.query.explain:
            tree["explained"] = self.explanation(self.query.explain)
        # One number stays a number, as scripts that read it expect.
        one, *others = self.devices
        tree |= {
            "experiment": self.resolved.experiment,
            "cluster": self.cluster.name,
            "devices": [one, *others] if others else one,
        }
        # Fields of an objective are there only where one was asked for.
        if objective.has_cost_columns:
            price = None if objective.price is None else objective.price.tree()
            tree |= {
                "objective": objective.kind,
                "samples": objective.samples,
                "price": price,
            }
        plans = []
        for each in self.ranking.plans[: self.query.top]:
            # The plan is written as a plan file has it, so that it can be cut out and
            # run.
            plan = each.prediction.to_dict()
            plan["plan"] = json.loads(each.plan.to_json())
            plan["devices"] = each.plan.mesh.devices
            plan["slower_than_first"] = self.is_slower_than_first(each)
            if objective.kind == "cost":
                plan["cost"] = objective.cost(each)
                plan["cost_unit"] = objective.cost_unit
            if objective.samples is not None:
                plan["budget_s"] = objective.budget_s(each)
            plans.append(plan)
        return tree | {
            "plans": plans,
            "lost": [
                {
                    "layout": lost.title,
                    "devices": devices,
                    "step_s": lost.step_s,
                    "interval_s": lost.interval_s and list(lost.interval_s),
                    "why": lost.reason,
                }
                for devices, lost in self.ranking.rejected
            ],
            "layouts": self.ranking.num_estimated,
            "described": self.ranking.num_evaluated,
            "search_seconds": self.search_s,
        }

    def explanation(self, rank: int) -> dict[str, Any]:
        """Return the terms of a plan with their arithmetic.

        Args:
            rank: place of the plan in the ranking, from 1.
        """
        from jaxdist.planner.explain import bytes_of, explain_seconds

        # The ranking keeps predictions alone: the step is described again for its
        # formulas.
        one = self.ranking.plans[rank - 1]
        case = self.describer.describe(one.plan)
        terms = {
            "seconds": explain_seconds(case, self.cluster, one.prediction),
            "bytes": bytes_of(one.prediction),
        }
        return {
            name: [
                {"term": each.name, "arithmetic": each.formula, "value": each.value}
                for each in own
            ]
            for name, own in terms.items()
        }


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage seldom: a fifth of a search is spent on it otherwise.

    A search makes many objects that stay, and few cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@rare_collections()
def search_layouts(query: PlanQuery) -> LayoutSearchResult:
    """Rank the layouts of an experiment, best first.

    Raises:
        BadInput: an option that cannot be, or no layout can be run.
    """
    devices = query.devices and ",".join(map(str, query.devices))
    if query.cluster is None or query.devices is None:
        raise BadInput(
            "nothing says on which machine, or on how many devices",
            rule="a plan is for some devices of a cluster",
            values=f"--cluster {query.cluster}, --devices {devices}",
            remedy="--cluster abci --devices 64",
        )
    resolved = resolve_config(query.experiment, query.overrides, is_mesh_searched=True)

    # Describing a step and estimating plans import jax: what has no experiment, or no
    # cluster, is refused before.
    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.launch.training.job.job import make_run_schedule
    from jaxdist.meshes.clusters.load import load_cluster
    from jaxdist.meshes.clusters.what_if import apply_overrides
    from jaxdist.planner.layouts.evaluated_plans import NoLayoutError
    from jaxdist.planner.layouts.objective import PlanObjective
    from jaxdist.planner.layouts.ranking import merge_rankings, rank_plans

    cluster = apply_overrides(load_cluster(query.cluster), query.what_if)
    try:
        samples = None if query.samples is None else float(query.samples)
    except ValueError:
        raise BadInput(
            f"{query.samples} is no number of samples",
            rule="--samples is a number",
            values=f"--samples {query.samples}",
            remedy="--samples 90e6",
        ) from None
    # The kind is checked by the objective itself.
    kind = cast("ObjectiveKind", query.objective or "step")
    objective = PlanObjective(kind=kind, samples=samples, price=cluster.price)
    for count in query.devices:
        # Raises where the cluster has fewer devices.
        cluster.level_of(max(1, count))
        if count < 1:
            raise BadInput(
                "there are no devices",
                rule="a plan is for at least one device",
                values=f"--devices {devices}",
                remedy="--devices 8",
            )
    if query.explain is not None and query.explain < 1:
        raise BadInput(
            "no plan is at that place",
            rule="--rank is the place of a plan, from 1",
            values=f"--rank {query.explain}",
            remedy="--rank 1",
        )
    if query.top < 1:
        raise BadInput(
            "no layouts would be shown",
            rule="--top is at least 1",
            values=f"--top {query.top}",
            remedy="--top 10",
        )

    begun = time.perf_counter()
    # One describer for all counts: it traces the network once.
    describer = StepDescriber(resolved.config, cluster.device.platform)
    if describer.num_samples is not None:
        # Raises where no step could be filled, whatever the layout.
        make_run_schedule(resolved.config, describer.num_samples)
    compressors = parse_compressors(query.compressors)
    memory = parse_bytes(query.memory, "--memory") if query.memory else None
    # Of numbers that are given twice one is searched, in the order given.
    counts = tuple(dict.fromkeys(query.devices))
    rankings: dict[int, PlanRanking] = {}
    refused: dict[int, NoLayoutError] = {}
    for count in counts:
        space = LayoutQuery(
            resolved=resolved, describer=describer, cluster=cluster, devices=count
        )
        # A number of devices without a layout is left out, as long as another has one.
        try:
            rankings[count] = rank_plans(
                space.cost_estimate(compressors),
                space.baseline_plans(),
                describer.describe,
                memory_capacity=memory,
                trace_step=describer.describe_traced,
            )
        except NoLayoutError as error:
            refused[count] = error
    if not rankings:
        raise refused[counts[0]]
    why = {count: error.values for count, error in refused.items()}
    ranking = merge_rankings(rankings, why, objective)
    # Known only now: layouts that do not fit are no plans of the ranking.
    if (query.explain or 1) > len(ranking.plans):
        raise BadInput(
            "there are fewer plans than that",
            rule="--rank is the place of a plan that can be run",
            values=f"--rank {query.explain}, {len(ranking.plans)} plans",
            remedy=f"--rank {len(ranking.plans)}",
        )
    return LayoutSearchResult(
        query=query,
        resolved=resolved,
        cluster=cluster,
        devices=counts,
        objective=objective,
        ranking=ranking,
        search_s=time.perf_counter() - begun,
        describer=describer,
    )
