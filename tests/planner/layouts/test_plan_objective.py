"""Objectives: plans in the order of what they cost, or of when they are done."""

import math
from dataclasses import replace

import pytest

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.intervals import Interval
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.oracle.predict import Prediction
from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan
from jaxdist.planner.layouts.objective import PlanObjective
from jaxdist.planner.layouts.ranking import (
    PlanRanking,
    RejectedLayout,
    merge_rankings,
)

PRICE = SourcedNumber(4.0, "given: a test")


def made(devices, step_s, batch=100):
    prediction = Prediction(
        plan="",
        cluster="",
        terms_s={"compute": step_s},
        memory_by_term={},
        memory_capacity=0,
        batch=batch,
        interval=Interval(low=0.6, high=1.4, basis=""),
        provenance={},
    )
    return EvaluatedPlan(plan=Plan(mesh=MeshShape(data=devices)), prediction=prediction)


def ranking(*plans, lost=()):
    return PlanRanking(
        plans=plans, rejected=lost, num_estimated=10, num_evaluated=len(plans)
    )


FEW = ranking(
    made(2, 1.0),
    made(2, 1.6),
    lost=(RejectedLayout(title="a", step_s=2.0, reason="b"),),
)
MANY = ranking(made(8, 0.5), made(8, 0.9))


def test_cost_is_price_times_devices_times_time():
    one = made(8, 0.5)
    by_hand = 4.0 * 8 * 0.5 / 3600 / 100
    assert PlanObjective(kind="cost", price=PRICE).cost(one) == pytest.approx(by_hand)
    assert PlanObjective(kind="cost").cost(one) == pytest.approx(by_hand / 4)
    assert (
        PlanObjective(kind="cost", price=PRICE).cost_unit == "currency units a sample"
    )


def test_a_budget_takes_whole_steps():
    """1,001 samples are eleven steps of 100; so many are paid."""
    objective = PlanObjective(kind="budget", samples=1001, price=PRICE)
    one = made(8, 0.5)
    assert objective.budget_s(one) == objective.value(one) == 11 * 0.5
    assert objective.cost(one) == pytest.approx(4.0 * 8 * 11 * 0.5 / 3600)
    assert objective.cost_unit == "currency units"
    assert PlanObjective().budget_s(one) is None


@pytest.mark.parametrize(
    ("objective", "order"),
    [
        (PlanObjective(), [(8, 0.5), (8, 0.9), (2, 1.0), (2, 1.6)]),
        (PlanObjective(kind="cost"), [(2, 1.0), (2, 1.6), (8, 0.5), (8, 0.9)]),
        (
            PlanObjective(kind="cost", samples=1e6),
            [(2, 1.0), (2, 1.6), (8, 0.5), (8, 0.9)],
        ),
        (
            PlanObjective(kind="budget", samples=1e6),
            [(8, 0.5), (8, 0.9), (2, 1.0), (2, 1.6)],
        ),
    ],
)
def test_rankings_are_merged_by_the_objective(objective, order):
    found = merge_rankings({2: FEW, 8: MANY}, {3: "nothing divides"}, objective)
    assert [
        (one.plan.mesh.devices, one.prediction.step_s) for one in found.plans
    ] == order
    assert [(count, lost.reason) for count, lost in found.rejected] == [
        (2, "b"),
        (3, "nothing divides"),
    ]
    assert (found.num_estimated, found.num_evaluated) == (20, 4)


@pytest.mark.parametrize("by", ["step", "cost", "budget"])
def test_one_ranking_stays_in_its_order(by):
    found = merge_rankings(
        {8: MANY}, {}, PlanObjective(kind=by, samples=90e6, price=PRICE)
    )
    assert found.plans == MANY.plans


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"kind": "cots"}, "did you mean cost"),
        ({"kind": "wishes"}, "step, cost, budget"),
        ({"kind": "budget"}, "nothing says how many samples"),
        ({"samples": 0.0}, "at least 1"),
        ({"samples": -5.0}, "--samples -5"),
        ({"samples": math.nan}, "at least 1"),
        ({"samples": math.inf}, "finite"),
        ({"kind": "cost", "price": replace(PRICE, value=0.0)}, "price of 0"),
    ],
)
def test_objectives_that_order_nothing_are_refused(how, said):
    with pytest.raises(BadInput) as refused:
        PlanObjective(**how)
    assert said in str(refused.value)
    assert refused.value.rule
    assert refused.value.values
    assert refused.value.remedy
