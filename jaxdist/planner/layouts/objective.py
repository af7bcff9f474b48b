"""Objective: what plans are ordered by.

    step      seconds(step)
    budget    ceil(samples / batch) seconds(step), until so many samples are trained on
    cost      price devices seconds(step) / batch, of a sample;
              price devices seconds(budget), of so many

The price is that of a device for an hour. A cluster that has none is as one whose price
is 1: a cost is the hours of all devices together. Plans of as many devices are in one
order whatever the objective.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan

ObjectiveKind = Literal["step", "cost", "budget"]
"""What is made small."""

SECONDS_PER_HOUR: Final = 3600
"""Seconds."""


@dataclass(frozen=True, kw_only=True)
class PlanObjective:
    """What plans are ordered by, and how many samples they are for."""

    kind: ObjectiveKind = "step"
    """What is made small."""
    samples: float | None = None
    """Samples that are to be trained on; None where that is open."""
    price: SourcedNumber | None = None
    """Currency units of a device for an hour; None where the cluster has none."""

    def __post_init__(self) -> None:
        # The kind is typed at a command line.
        if self.kind not in get_args(ObjectiveKind):
            near = did_you_mean(self.kind, get_args(ObjectiveKind))
            raise BadInput(
                f"no objective {self.kind}",
                rule=f"an objective is one of {', '.join(get_args(ObjectiveKind))}",
                values=f"--objective {self.kind}",
                remedy=f"did you mean {near}?" if near else "--objective cost",
            )
        if self.samples is not None and not 1 <= self.samples < math.inf:
            raise BadInput(
                "no such number of samples can be trained on",
                rule="--samples is a number of samples, at least 1, and finite",
                values=f"--samples {self.samples:g}",
                remedy="--samples 90e6",
            )
        if self.kind == "budget" and self.samples is None:
            raise BadInput(
                "nothing says how many samples the budget is",
                rule="--objective budget is the time until --samples are trained on",
                values="--objective budget, no --samples",
                remedy=("--samples 90e6", "--objective step"),
            )
        if self.kind == "cost" and self.price is not None and not self.price.value:
            raise BadInput(
                "at a price of 0 all plans cost the same",
                rule="--objective cost takes a price above 0, or none: device-hours",
                values=f"price = {self.price}",
                remedy="price: 4.1 in the cluster's file, or no price",
            )

    @property
    def has_cost_columns(self) -> bool:
        """Whether plans are shown with more than their steps."""
        return self.kind != "step" or self.samples is not None

    @property
    def cost_unit(self) -> str:
        """What a cost is counted in.

        >>> PlanObjective(kind="cost").cost_unit
        'device-hours a sample'
        """
        unit = "device-hours" if self.price is None else "currency units"
        return unit if self.samples is not None else f"{unit} a sample"

    def budget_s(self, evaluated: EvaluatedPlan) -> float | None:
        """Return the seconds until all samples are trained on; None without a number.

        Args:
            evaluated: a plan and what it takes.
        """
        if self.samples is None:
            return None
        # The last step takes as long as the others, however few samples it has.
        steps = math.ceil(self.samples / evaluated.prediction.batch)
        return steps * evaluated.prediction.step_s

    def cost(self, evaluated: EvaluatedPlan) -> float:
        """Return what all samples cost; without a number of them, what one does.

        Args:
            evaluated: a plan and what it takes.
        """
        price = 1.0 if self.price is None else self.price.value
        made, budget = evaluated.prediction, self.budget_s(evaluated)
        # Without a number of samples the cost of one is compared.
        seconds = made.step_s / made.batch if budget is None else budget
        return price * evaluated.plan.mesh.devices * seconds / SECONDS_PER_HOUR

    def value(self, evaluated: EvaluatedPlan) -> float:
        """Return what is made small: seconds, or a cost.

        Args:
            evaluated: a plan and what it takes.
        """
        if self.kind == "cost":
            return self.cost(evaluated)
        budget = self.budget_s(evaluated) if self.kind == "budget" else None
        return evaluated.prediction.step_s if budget is None else budget
