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

    describe: Callable[[Plan], StepDescription]
    """Gives a plan's case; it may refuse."""
    cluster: Cluster
    """The machines."""
    most: float
    """Bytes of a device."""
    roomy: bool = False
    """Whether plans must fit with a margin: no step is traced."""
    found: dict[str, EvaluatedPlan] = field(default_factory=dict)
    """Those that fit, by label."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why others cannot be run."""
    short: dict[str, float] = field(default_factory=dict)
    """Bytes that those lack which do not fit."""
    stages: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """Blocks of each stage of those that were, by label."""

    @property
    def described(self) -> int:
        """How many were described."""
        return len(self.stages)

    def describe_in_full(self, plan: Plan) -> bool:
        """Describe a plan that was not, and tell whether it can be run."""
        title = plan.label
        if title in self.found or title in self.refused:
            return title in self.found
        self.stages[title] = ()
        try:
            case = self.describe(plan)
            prediction = predict(case, self.cluster)
        except BadInput as error:
            self.refused[title] = error.what
            return False
        self.stages[title] = case.stages
        uncut = replace(plan, pipe=replace(plan.pipe, cuts=())).label
        if plan.pipe.cuts and self.stages.get(uncut) == case.stages:
            return uncut in self.found
        if self.roomy:
            return self._fits(plan, prediction, prediction.roomy_bytes, ", not traced")
        return self._fits(plan, prediction, prediction.memory_bytes, "")

    def describe_placed(self, plan: Plan, others: Iterable[Plan]) -> None:
        """Predict a plan that can be run under other placements as well.

        Args:
            plan: it.
            others: the same with other placements.
        """
        new = [one for one in others if one.label not in self.stages]
        if not new:
            return
        case = self.describe(plan)
        for one in new:
            self.stages[one.label] = case.stages
            prediction = predict(case.under(one), self.cluster)
            self.found[one.label] = EvaluatedPlan(plan=one, prediction=prediction)

    def again(self, title: str, plan: Plan) -> None:
        """Try a plan that does not fit with the insides of blocks computed again."""
        if title in self.short and not plan.remat:
            self.describe_in_full(replace(plan, remat=True))

    def drop(self, plan: Plan) -> None:
        """Forget a plan that fits, since a better one like it does."""
        del self.found[plan.label]

    def is_safe(self, plan: Plan, case: StepDescription) -> bool:
        """Put the prediction of a traced step in a plan's place, or strike the plan."""
        prediction = predict(case, self.cluster)
        return self._fits(plan, prediction, prediction.safe_bytes, ", traced")

    def has_room(self, plan: Plan) -> bool:
        """Describe a plan, and tell whether it fits with the margin for no trace."""
        if not self.describe_in_full(plan) or plan.label not in self.found:
            return False
        return self.found[plan.label].prediction.roomy_bytes <= self.most

    def is_roomy(self, plan: Plan) -> bool:
        """Strike a plan that was described unless it fits with the margin for that."""
        prediction = self.found[plan.label].prediction
        return self._fits(plan, prediction, prediction.roomy_bytes, ", not traced")

    def sorted(self) -> list[EvaluatedPlan]:
        """Return the plans that can be run, the fastest first."""
        return sorted(self.found.values(), key=lambda one: one.prediction.step_s)

    def drop_misplaced(self) -> None:
        """Keep one of the plans that differ in nothing but their placement."""
        kept: set[str] = set()
        for one in self.sorted():
            same = replace(one.plan, placement=()).label
            if same in kept:
                del self.found[one.plan.label]
            kept.add(same)

    def drop_slower(self, ways: Sequence[str]) -> None:
        """Keep one of the plans that differ in a way to sum exactly, or placement."""
        kept: set[str] = set()
        for one in self.sorted():
            if one.plan.reduce.via not in ways:
                continue
            exact = one.plan.reduce.by("exact")
            same = replace(one.plan, reduce=exact, placement=()).label
            if same in kept:
                del self.found[one.plan.label]
            kept.add(same)

    def _fits(self, plan: Plan, made: Prediction, needed: int, how: str) -> bool:
        title, over = plan.label, needed - self.most
        if over <= 0:
            self.found[title] = EvaluatedPlan(plan=plan, prediction=made)
            return True
        self.found.pop(title, None)
        self.refused[title] = f"out of memory by {format_size(over)}{how}"
        self.short[title] = over
        return False


class NoLayoutError(BadInput):
    """No layout of so many devices can be run; another number may have one."""


def no_layout_error(
    refused: dict[str, str], short: dict[str, float], most: float
) -> NoLayoutError:
    """Say that nothing can be run, with the smallest violation and what lifts it."""
    if not short:
        few = "; ".join(f"{title}: {why}" for title, why in [*refused.items()][:4])
        return NoLayoutError(
            "no layout can be run",
            rule="a layout splits the network and its batch over all the devices",
            values=few or "nothing that may be split divides over so many devices",
            remedy="another data.batch, or another number of --devices",
        )
    nearest = min(short, key=lambda title: short[title])
    needed = most + short[nearest]
    return NoLayoutError(
        "no layout can be run",
        rule="a layout splits the network and its batch, and fits into "
        f"{format_size(most)}",
        values=f"the smallest needs {format_size(needed)}: {nearest} is "
        f"{refused[nearest]}",
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
