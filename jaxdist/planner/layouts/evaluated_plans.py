"""A heap of plans that were described: those that fit, and why others do not."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.text.formatting import format_size
from jaxdist.oracle.predict import Prediction, predict
from jaxdist.oracle.step_description import StepDescription


@dataclass(frozen=True, kw_only=True)
class EvaluatedPlan:
    """A plan that could be run."""

    plan: Plan
    """As `jaxdist train --plan` takes it."""
    prediction: Prediction
    """What it takes."""


@dataclass(kw_only=True)
class PlanEvaluator:
    """Plans as they are described, one after the other."""

    describe_step: Callable[[Plan], StepDescription]
    """Gives a plan's case; it may refuse."""
    cluster: Cluster
    """The machines."""
    memory_capacity: float
    """Bytes of a device."""
    needs_margin: bool = False
    """Whether plans must fit with a margin: no step is traced."""
    feasible: dict[str, EvaluatedPlan] = field(default_factory=dict)
    """Those that fit, by label."""
    rejection_reasons: dict[str, str] = field(default_factory=dict)
    """Why others cannot be run."""
    missing_bytes: dict[str, float] = field(default_factory=dict)
    """Bytes that those lack which do not fit."""
    stages: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """Blocks of each stage of those that were, by label."""

    @property
    def num_evaluated(self) -> int:
        """How many were described."""
        return len(self.stages)

    def evaluate(self, plan: Plan) -> bool:
        """Describe a plan that was not, and tell whether it can be run."""
        title = plan.label
        if title in self.feasible or title in self.rejection_reasons:
            return title in self.feasible
        self.stages[title] = ()
        try:
            case = self.describe_step(plan)
            prediction = predict(case, self.cluster)
        except BadInput as error:
            self.rejection_reasons[title] = error.what
            return False
        self.stages[title] = case.stages
        uncut = replace(plan, pipe=replace(plan.pipe, cuts=())).label
        if plan.pipe.cuts and self.stages.get(uncut) == case.stages:
            return uncut in self.feasible
        if self.needs_margin:
            return self._record_fit(
                plan, prediction, prediction.untraced_bytes_with_margin, ", not traced"
            )
        return self._record_fit(plan, prediction, prediction.memory_bytes, "")

    def evaluate_placements(self, plan: Plan, variants: Iterable[Plan]) -> None:
        """Predict a plan that can be run under other placements as well.

        Args:
            plan: it.
            variants: the same with other placements.
        """
        new = [one for one in variants if one.label not in self.stages]
        if not new:
            return
        case = self.describe_step(plan)
        for one in new:
            self.stages[one.label] = case.stages
            ledgers = tuple(replace(ledger, plan=one) for ledger in case.ledgers)
            prediction = predict(replace(case, plan=one, ledgers=ledgers), self.cluster)
            self.feasible[one.label] = EvaluatedPlan(plan=one, prediction=prediction)

    def retry_with_remat(self, label: str, plan: Plan) -> None:
        """Try a plan that does not fit with the insides of blocks computed again."""
        if label in self.missing_bytes and not plan.remat:
            self.evaluate(replace(plan, remat=True))

    def drop(self, plan: Plan) -> None:
        """Forget a plan that fits, since a better one like it does."""
        del self.feasible[plan.label]

    def confirm_traced(self, plan: Plan, case: StepDescription) -> bool:
        """Put the prediction of a traced step in a plan's place, or strike the plan."""
        prediction = predict(case, self.cluster)
        return self._record_fit(
            plan, prediction, prediction.traced_bytes_with_margin, ", traced"
        )

    def fits_with_margin(self, plan: Plan) -> bool:
        """Describe a plan, and tell whether it fits with the margin for no trace."""
        if not self.evaluate(plan) or plan.label not in self.feasible:
            return False
        return (
            self.feasible[plan.label].prediction.untraced_bytes_with_margin
            <= self.memory_capacity
        )

    def confirm_untraced(self, plan: Plan) -> bool:
        """Strike a plan that was described unless it fits with the margin for that."""
        prediction = self.feasible[plan.label].prediction
        return self._record_fit(
            plan, prediction, prediction.untraced_bytes_with_margin, ", not traced"
        )

    def sorted(self) -> list[EvaluatedPlan]:
        """Return the plans that can be run, the fastest first."""
        return sorted(self.feasible.values(), key=lambda one: one.prediction.step_s)

    def keep_best_placements(self) -> None:
        """Keep one of the plans that differ in nothing but their placement."""
        kept: set[str] = set()
        for one in self.sorted():
            same = replace(one.plan, placement=()).label
            if same in kept:
                del self.feasible[one.plan.label]
            kept.add(same)

    def keep_best_algorithms(self, algorithms: Sequence[str]) -> None:
        """Keep one of the plans that differ in a way to sum exactly, or placement."""
        kept: set[str] = set()
        for one in self.sorted():
            if one.plan.reduce.via not in algorithms:
                continue
            exact = one.plan.reduce.by("exact")
            same = replace(one.plan, reduce=exact, placement=()).label
            if same in kept:
                del self.feasible[one.plan.label]
            kept.add(same)

    def _record_fit(
        self, plan: Plan, prediction: Prediction, needed: int, qualifier: str
    ) -> bool:
        title, over = plan.label, needed - self.memory_capacity
        if over <= 0:
            self.feasible[title] = EvaluatedPlan(plan=plan, prediction=prediction)
            return True
        self.feasible.pop(title, None)
        self.rejection_reasons[title] = (
            f"out of memory by {format_size(over)}{qualifier}"
        )
        self.missing_bytes[title] = over
        return False


class NoLayoutError(BadInput):
    """No layout of so many devices can be run; another number may have one."""


def no_layout_error(
    rejection_reasons: dict[str, str],
    missing_bytes: dict[str, float],
    memory_capacity: float,
) -> NoLayoutError:
    """Say that nothing can be run, with the smallest violation and what lifts it."""
    if not missing_bytes:
        few = "; ".join(
            f"{title}: {why}" for title, why in [*rejection_reasons.items()][:4]
        )
        return NoLayoutError(
            "no layout can be run",
            rule="a layout splits the network and its batch over all the devices",
            values=few or "nothing that may be split divides over so many devices",
            remedy="another data.batch, or another number of --devices",
        )
    nearest = min(missing_bytes, key=lambda title: missing_bytes[title])
    needed = memory_capacity + missing_bytes[nearest]
    return NoLayoutError(
        "no layout can be run",
        rule="a layout splits the network and its batch, and fits into "
        f"{format_size(memory_capacity)}",
        values=f"the smallest needs {format_size(needed)}: {nearest} is "
        f"{rejection_reasons[nearest]}",
        remedy=f"--memory {_round_up_bytes(needed)}, more --devices, or a smaller "
        "data.batch",
    )


def _round_up_bytes(needed: float) -> str:
    """Write bytes with two digits, rounded up, as `--memory` reads them.

    >>> _round_up_bytes(20_400_001), _round_up_bytes(999)
    ('21MB', '1000B')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)):
        if needed >= 10 * scale:
            step = 10.0 ** (len(str(int(needed / scale))) - 2)
            return f"{-(-needed // (scale * step)) * step:.0f}{unit}"
    return f"{needed:.0f}B"
