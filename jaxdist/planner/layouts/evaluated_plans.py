"""Plans that were described in full: those that fit, and why others do not."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.text.formatting import format_size
from jaxdist.oracle.predict import Prediction, predict
from jaxdist.oracle.step_description import StepDescription


class NoLayoutError(BadInput):
    """No layout of so many devices can be run; another number may have one."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedPlan:
    """A plan that could be run."""

    plan: Plan
    """As `jaxdist train --plan` takes it."""
    prediction: Prediction
    """Its seconds and bytes."""


@dataclass(kw_only=True)
class PlanEvaluator:
    """The plans that a search described so far, with their predictions."""

    describe_step: Callable[[Plan], StepDescription]
    """Describes a plan's step; it may refuse the plan."""
    cluster: Cluster
    """The machines."""
    memory_capacity: float | None
    """Bytes of every device; None: of each kind its own."""
    needs_margin: bool = False
    """Whether plans must fit with a margin: no step is traced."""
    feasible: dict[str, EvaluatedPlan] = field(default_factory=dict)
    """Those that fit, by label."""
    rejection_reasons: dict[str, str] = field(default_factory=dict)
    """Why others cannot be run."""
    replaced_by: dict[str, str] = field(default_factory=dict)
    """The faster plan that stands for one with other settings, both by label."""
    missing_bytes: dict[str, float] = field(default_factory=dict)
    """Bytes by which others do not fit."""
    needed_bytes: dict[str, float] = field(default_factory=dict)
    """Bytes that those need on a device."""
    plans_without_memory: list[Plan] = field(default_factory=list)
    """Those, in the order in which they were described."""
    stages: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """Blocks of each stage of all described plans, by label."""
    cases: dict[str, StepDescription] = field(default_factory=dict)
    """The steps of all described plans, by label."""

    described: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    """Labels and own cuts of all of them: of one label the fastest cuts stay."""

    @property
    def num_evaluated(self) -> int:
        """How many were described."""
        return len(self.described)

    def evaluate(self, plan: Plan) -> bool:
        """Describe a plan that was not, and tell whether it can be run."""
        title, own = plan.label, (plan.label, plan.pipe.cuts)
        # Searches ask for the same plan again and again.
        known = title in self.feasible or title in self.rejection_reasons
        if known and own in self.described:
            return title in self.feasible
        # A plan counts as described even where it is refused.
        self.described.add(own)
        # A label does not say which cuts a plan has: others may hold its place.
        other_cuts = self.feasible.get(title)
        try:
            case = self.describe_step(plan)
            prediction = predict(case, self.cluster)
        except BadInput as error:
            if other_cuts is None:
                self.rejection_reasons[title] = error.what
            return other_cuts is not None
        # Cuts of its own that are those of equal FLOPs make it no plan of its own.
        uncut = replace(plan, pipe=replace(plan.pipe, cuts=())).label
        if plan.pipe.cuts and self.stages.get(uncut) == case.stages:
            return uncut in self.feasible
        needed, qualifier = self._untraced_bytes(prediction)
        # `record_fit` would drop the plan that holds the place, where these cuts do not
        # fit.
        if other_cuts is not None:
            is_faster = prediction.step_s < other_cuts.prediction.step_s
            fits = needed <= self.capacity_of(prediction)
            if not (is_faster and fits) or prediction.host_excess_bytes:
                return True
        self.stages[title], self.cases[title] = case.stages, case
        return self.record_fit(plan, prediction, needed, qualifier)

    def _untraced_bytes(self, prediction: Prediction) -> tuple[int, str]:
        """Return the bytes that a step needs by its layers, and how they were found."""
        if self.needs_margin:
            return prediction.untraced_bytes_with_margin, ", not traced"
        return prediction.memory_bytes, ""

    def evaluate_all(self, plans: Iterable[Plan]) -> None:
        """Describe plans as they come, each once."""
        for plan in plans:
            self.evaluate(plan)

    def evaluate_placements(self, plan: Plan, variants: Iterable[Plan]) -> None:
        """Predict a plan that can be run under other placements as well.

        Args:
            plan: it.
            variants: the same with other placements.
        """
        # Traffic does not depend on placement, so one description serves all of them.
        new = [one for one in variants if one.label not in self.stages]
        if not new:
            return
        base = self.cases[plan.label]
        for one in new:
            ledgers = tuple(replace(ledger, plan=one) for ledger in base.ledgers)
            case = replace(base, plan=one, ledgers=ledgers)
            self.stages[one.label], self.cases[one.label] = case.stages, case
            self.described.add((one.label, one.pipe.cuts))
            prediction = predict(case, self.cluster)
            # Elsewhere a stage may stand on a device with less memory.
            self.record_fit(one, prediction, *self._untraced_bytes(prediction))

    def fits_with_margin(self, plan: Plan) -> bool:
        """Describe a plan, and tell whether it fits with the margin for no trace."""
        if not self.evaluate(plan) or plan.label not in self.feasible:
            return False
        prediction = self.feasible[plan.label].prediction
        return prediction.untraced_bytes_with_margin <= self.capacity_of(prediction)

    def capacity_of(self, prediction: Prediction) -> float:
        """Return the bytes of the device that has least to spare in a step."""
        given = self.memory_capacity
        return prediction.memory_capacity if given is None else given

    def sorted(self) -> list[EvaluatedPlan]:
        """Return the plans that can be run, the fastest first."""
        return sorted(self.feasible.values(), key=lambda one: one.prediction.step_s)

    def keep_best(self, key: Callable[[Plan], Plan | None]) -> None:
        """Keep the fastest of the plans that are the same but for some settings.

        Args:
            key: a plan without those settings; None of a plan that stays.
        """
        kept: dict[str, str] = {}
        # Fastest first, so the first of its kind stays.
        for one in self.sorted():
            bare = key(one.plan)
            if bare is None:
                continue
            label = one.plan.label
            if bare.label in kept:
                del self.feasible[label]
                self.replaced_by[label] = kept[bare.label]
            kept.setdefault(bare.label, label)

    def rejection_reason(self, label: str) -> str:
        """Return why a plan cannot be run, or the plan that stands for it."""
        if label not in self.rejection_reasons:
            label = self.replaced_by[label]
        return self.rejection_reasons[label]

    def record_fit(
        self, plan: Plan, prediction: Prediction, needed: int, qualifier: str = ""
    ) -> bool:
        """Record a plan as one that fits or as one that lacks memory, and tell which.

        Args:
            plan: described.
            prediction: of its step.
            needed: bytes of a device.
            qualifier: how these were found, for people.
        """
        title, over = plan.label, needed - self.capacity_of(prediction)
        # Offloaded activations fill the host, which no --memory of the device lifts.
        if excess := prediction.host_excess_bytes:
            self.rejection_reasons[title] = (
                f"out of the host's memory by {format_size(excess)}"
            )
            return False
        if over <= 0:
            self.feasible[title] = EvaluatedPlan(plan=plan, prediction=prediction)
            return True
        # What was predicted to fit may be refused by its trace.
        self.feasible.pop(title, None)
        self.rejection_reasons[title] = (
            f"out of memory by {format_size(over)}{qualifier}"
        )
        self.missing_bytes[title], self.needed_bytes[title] = over, needed
        self.plans_without_memory.append(plan)
        return False

    @property
    def no_layout_error(self) -> NoLayoutError:
        """The refusal where nothing can be run, with what lifts the least violation."""
        if not self.missing_bytes:
            few = "; ".join(
                f"{title}: {why}"
                for title, why in [*self.rejection_reasons.items()][:4]
            )
            return NoLayoutError(
                "no layout can be run",
                rule="a layout splits the network and its batch over all the devices",
                values=few or "nothing that may be split divides over so many devices",
                remedy="another data.batch, or another number of --devices",
            )
        nearest = min(self.missing_bytes, key=lambda title: self.missing_bytes[title])
        needed = self.needed_bytes[nearest]
        capacity = needed - self.missing_bytes[nearest]
        # Two digits, rounded up so that what the remedy says is enough.
        asked = f"{needed:.0f}B"
        for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)):
            if needed >= 10 * scale:
                step = 10.0 ** (len(str(int(needed / scale))) - 2)
                asked = f"{-(-needed // (scale * step)) * step:.0f}{unit}"
                break
        return NoLayoutError(
            "no layout can be run",
            rule="a layout splits the network and its batch, and fits into "
            f"{format_size(round(capacity))}",
            values=f"the smallest needs {format_size(needed)}: {nearest} is "
            f"{self.rejection_reasons[nearest]}",
            remedy=f"--memory {asked}, more --devices, or a smaller data.batch",
        )
