"""Layouts as they are shown: a ranking, and why the others lost."""

import json
import shlex
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from jaxdist.launch.planning.layout_search import LayoutSearchResult

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.oracle.predict import Prediction
    from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan as Placed

_NON_COMM_TERMS: Final = ("compute", "bubble", "update", "input")
_DEFAULT_SAMPLES: Final = 1_000_000
"""Samples whose cost is shown where nobody said how many there are."""


def layout_tree(
    found: LayoutSearchResult, top: int, explained_rank: int | None = None
) -> dict[str, Any]:
    """Return a ranking as one object, seconds and bytes.

    Args:
        found: the ranking.
        top: plans that are in it.
        explained_rank: place of the plan whose arithmetic is, from 1.
    """
    made = (
        {"explained": _explanation_tree(found, explained_rank)}
        if explained_rank
        else {}
    )
    one, *others = found.devices
    return made | {
        "experiment": found.resolved.experiment,
        "cluster": found.cluster.name,
        "devices": [one, *others] if others else one,
        **_objective_tree(found),
        "plans": [_plan_tree(found, each) for each in found.ranking.plans[:top]],
        "lost": [
            {
                "layout": lost.title,
                "devices": devices,
                "step_s": lost.step_s,
                "why": lost.reason,
            }
            for devices, lost in found.ranking.rejected
        ],
        "layouts": found.ranking.num_estimated,
        "described": found.ranking.num_evaluated,
        "search_seconds": found.search_s,
    }


def _objective_tree(found: LayoutSearchResult) -> dict[str, Any]:
    """Return the objective, where there is more to it than the step."""
    asked = found.objective
    if not asked.has_cost_columns:
        return {}
    price = None if asked.price is None else asked.price.tree()
    return {"objective": asked.kind, "samples": asked.samples, "price": price}


def _plan_tree(found: LayoutSearchResult, one: "Placed") -> dict[str, Any]:
    """Return a plan with what it takes, and what of that was asked for."""
    asked, tree = found.objective, one.prediction.to_dict()
    tree |= {
        "plan": json.loads(one.plan.to_json()),
        "devices": one.plan.mesh.devices,
    }
    if asked.kind == "cost":
        tree |= {"cost": asked.cost(one), "cost_unit": asked.cost_unit}
    if asked.samples is not None:
        tree["budget_s"] = asked.budget_s(one)
    return tree


def print_layouts(out: "Console", found: LayoutSearchResult, args: Namespace) -> None:
    """Print the best layouts by term, then why well-known ones are not among them."""
    from jaxdist.core.text.formatting import format_duration, format_size
    from jaxdist.launch.terminal.console import (
        make_table,
        print_next_commands,
        print_table,
    )

    ranking, best = found.ranking, found.ranking.plans[0].prediction
    counts = ", ".join(f"{count:,}" for count in found.devices)
    out.print(
        f"{found.resolved.experiment} on {found.cluster.name}, {counts} of "
        f"{found.cluster.devices:,} devices, global batch {best.batch:,}"
    )
    out.print(
        f"  {ranking.num_estimated:,} plans ordered, {ranking.num_evaluated} "
        "described, in "
        f"{format_duration(found.search_s)}"
    )
    for line in _objective_lines(found):
        out.print(f"  {line}")
    out.print()
    more = tuple(head for head, _ in _extra_columns(found, ranking.plans[0]))
    heads = (*more, "step, ms", "compute", "comm", "bubble", "update", "memory")
    rows = make_table("", "plan", *heads, right=heads)
    for place, one in enumerate(ranking.plans[: args.top], 1):
        made = one.prediction
        beside = (number for _, number in _extra_columns(found, one))
        numbers = (*beside, *_term_cells(made), format_size(made.memory_bytes))
        rows.add_row(f"{place}", one.plan.label, *numbers)
    print_table(out, rows)
    near = _count_indistinguishable(found)
    if near > 1:
        out.print(
            f"  the intervals of {near - 1} others overlap with that of the first: "
            "measure them, or calibrate"
        )
    if ranking.rejected:
        out.print("\n  Why the others lost")
        lost = make_table("layout", "step, ms", "why", right=("step, ms",))
        for _, each in ranking.rejected:
            took = "no" if each.step_s is None else f"{1e3 * each.step_s:,.1f}"
            lost.add_row(each.title, took, each.reason)
        print_table(out, lost)
    if args.explain:
        _print_explanation(out, found, args.explain)
    words = " ".join((args.what, *args.overrides, f"--cluster {args.cluster}"))
    bound = "".join(f" {option}" for option in _search_options(args))
    print_next_commands(
        out, f"jaxdist plan {words} {_device_options(found)}{bound} -o plan.json"
    )


def _search_options(args: Namespace) -> "Iterator[str]":
    """Yield what else was typed that decides which plan is the first."""
    yield from (f"--what-if {change}" for change in args.what_if or ())
    if args.memory:
        yield f"--memory {args.memory}"
    if args.lossy:
        yield f"--lossy {args.lossy}"


def _device_options(found: LayoutSearchResult) -> str:
    """Write the numbers of devices and the objective as they are typed."""
    words = ["--devices", ",".join(map(str, found.devices))]
    asked = found.objective
    if asked.kind != "step":
        words += ["--objective", asked.kind]
    if asked.samples is not None:
        words += ["--samples", f"{asked.samples:.17g}"]
    return shlex.join(words)


def _objective_lines(found: LayoutSearchResult) -> Iterator[str]:
    """Say what plans are ordered by, where that is not their step."""
    asked = found.objective
    goal = "" if asked.samples is None else f"{asked.samples:,.0f} samples"
    if asked.kind == "budget":
        yield f"ordered by the hours until {goal} are trained on"
    if asked.kind != "cost":
        return
    if asked.price is None:
        said = f"device-hours: {found.cluster.name} has no price (docs/clusters.md)"
    else:
        said = f"at a price of {asked.price.value:g} for a device and an hour"
        said += f" ({asked.price.origin})"
    yield f"ordered by cost of {goal or 'a million samples'}, {said}"


def _extra_columns(
    found: LayoutSearchResult, one: "Placed"
) -> Iterator[tuple[str, str]]:
    """Yield the heads and the numbers of columns that were asked for."""
    asked = found.objective
    if len(found.devices) > 1:
        yield "devices", f"{one.plan.mesh.devices:,}"
    if asked.kind == "cost":
        many = 1 if asked.samples is not None else _DEFAULT_SAMPLES
        head = "device-h" if asked.price is None else "cost"
        yield head, _three_digits(many * asked.cost(one))
    budget = asked.budget_s(one)
    if budget is not None:
        yield "hours", _three_digits(budget / 3600)


def _three_digits(value: float) -> str:
    """Write a number with three digits, or all in front of the point.

    >>> tuple(_three_digits(number) for number in (0.01299, 3.0, 99.97, 123456.7))
    ('0.0130', '3.00', '100', '123,457')
    """
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def _count_indistinguishable(found: LayoutSearchResult) -> int:
    """Count the plans that may be as good as the first one, itself included."""
    plans, of = found.ranking.plans, found.objective.value
    most = of(plans[0]) * (1 + plans[0].prediction.relative_error)
    return sum(of(one) * (1 - one.prediction.relative_error) < most for one in plans)


def _term_cells(made: "Prediction") -> tuple[str, ...]:
    terms = made.terms_s
    comm = sum(took for term, took in terms.items() if term not in _NON_COMM_TERMS)
    parts = (
        terms.get("compute", 0),
        comm,
        terms.get("bubble", 0),
        terms.get("update", 0),
    )
    step = f"{1e3 * made.step_s:,.1f} ± {1e3 * made.step_s * made.relative_error:,.1f}"
    return step, *(f"{1e3 * part:,.1f}" for part in parts)


def _print_explanation(out: "Console", found: LayoutSearchResult, place: int) -> None:
    """Print the arithmetic of one of the plans."""
    from jaxdist.core.text.formatting import format_duration, format_size
    from jaxdist.launch.terminal.console import make_table, print_table

    made = _explanation_tree(found, place)
    out.print(f"\n  {found.ranking.plans[place - 1].plan.label}: how it is reckoned")
    for column, show in (("seconds", format_duration), ("bytes", format_size)):
        rows = make_table("term", "arithmetic", column, right=(column,))
        for term in made[column]:
            value = term["value"]
            shown = f"- {show(-value)}" if value < 0 else show(value)
            rows.add_row(term["term"], term["arithmetic"], shown)
        print_table(out, rows)


def _explanation_tree(found: LayoutSearchResult, place: int) -> dict[str, Any]:
    """Return the terms of the plan at a place, from 1."""
    from jaxdist.planner.explain import bytes_of, explain_seconds

    one = found.ranking.plans[place - 1]
    case = found.describer.describe(one.plan)
    terms = {
        "seconds": explain_seconds(case, found.cluster, one.prediction),
        "bytes": bytes_of(one.prediction),
    }
    return {
        name: [
            {"term": each.name, "arithmetic": each.formula, "value": each.value}
            for each in own
        ]
        for name, own in terms.items()
    }
