"""Layouts as they are shown: a ranking, and why the others lost."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from jaxdist.launch.plan.layouts_asked import Ranked

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.oracle.predict import Prediction

_MOVED_NOT = ("compute", "bubble", "update", "input")


def tree(found: Ranked, top: int, explain: int | None = None) -> dict[str, Any]:
    """Return a ranking as one object, seconds and bytes.

    Args:
        found: the ranking.
        top: plans that are in it.
        explain: place of the plan whose arithmetic is, from 1.
    """
    made = {"explained": _explained(found, explain)} if explain else {}
    return made | {
        "experiment": found.resolved.source,
        "cluster": found.cluster.name,
        "devices": found.devices,
        "plans": [
            {**one.prediction.tree(), "plan": json.loads(one.plan.to_json())}
            for one in found.ranking.plans[:top]
        ],
        "lost": [
            {"layout": lost.title, "step_s": lost.step_s, "why": lost.why}
            for lost in found.ranking.lost
        ],
        "layouts": found.ranking.counted,
        "described": found.ranking.described,
        "search_seconds": found.seconds,
    }


def print_layouts(out: "Console", found: Ranked, args: Namespace) -> None:
    """Print the best layouts by term, then why well-known ones are not among them."""
    from jaxdist.core.units import duration, size
    from jaxdist.launch.console import print_next, print_table, table

    ranking, best = found.ranking, found.ranking.plans[0].prediction
    out.print(
        f"{found.resolved.source} on {found.cluster.name}, {found.devices:,} of "
        f"{found.cluster.devices:,} devices, global batch {best.batch:,}"
    )
    out.print(
        f"  {ranking.counted:,} plans ordered, {ranking.described} described, in "
        f"{duration(found.seconds)}\n"
    )
    heads = ("step, ms", "compute", "comm", "bubble", "update", "memory")
    rows = table("", "plan", *heads, right=heads)
    for place, one in enumerate(ranking.plans[: args.top], 1):
        title = one.plan.label
        made = one.prediction
        rows.add_row(f"{place}", title, *_numbers(made), size(made.memory_bytes))
    print_table(out, rows)
    near = sum(
        one.prediction.interval_s[0] < best.interval_s[1] for one in ranking.plans
    )
    if near > 1:
        out.print(
            f"  the intervals of {near - 1} others overlap with that of the first: "
            "measure them, or calibrate"
        )
    if ranking.lost:
        out.print("\n  Why the others lost")
        lost = table("layout", "step, ms", "why", right=("step, ms",))
        for each in ranking.lost:
            took = "no" if each.step_s is None else f"{1e3 * each.step_s:,.1f}"
            lost.add_row(each.title, took, each.why)
        print_table(out, lost)
    if args.explain:
        _print_explained(out, found, args.explain)
    words = " ".join((args.what, *args.overrides, f"--cluster {args.cluster}"))
    print_next(out, f"jaxdist plan {words} --devices {found.devices} -o plan.json")


def _numbers(made: "Prediction") -> tuple[str, ...]:
    terms = made.terms_s
    comm = sum(took for term, took in terms.items() if term not in _MOVED_NOT)
    parts = (
        terms.get("compute", 0),
        comm,
        terms.get("bubble", 0),
        terms.get("update", 0),
    )
    step = f"{1e3 * made.step_s:,.1f} ± {1e3 * made.step_s * made.unsure:,.1f}"
    return step, *(f"{1e3 * part:,.1f}" for part in parts)


def _print_explained(out: "Console", found: Ranked, place: int) -> None:
    """Print the arithmetic of one of the plans."""
    from jaxdist.core.units import duration, size
    from jaxdist.launch.console import print_table, table

    made = _explained(found, place)
    out.print(f"\n  {found.ranking.plans[place - 1].plan.label}: how it is reckoned")
    for column, show in (("seconds", duration), ("bytes", size)):
        rows = table("term", "arithmetic", column, right=(column,))
        for term in made[column]:
            value = term["value"]
            shown = f"- {show(-value)}" if value < 0 else show(value)
            rows.add_row(term["term"], term["arithmetic"], shown)
        print_table(out, rows)


def _explained(found: Ranked, place: int) -> dict[str, Any]:
    """Return the terms of the plan at a place, from 1."""
    from jaxdist.planner.explain import bytes_of, seconds_of

    one = found.ranking.plans[place - 1]
    case = found.subject.case(one.plan)
    terms = {
        "seconds": seconds_of(case, found.cluster, one.prediction),
        "bytes": bytes_of(one.prediction),
    }
    return {
        name: [
            {"term": each.name, "arithmetic": each.formula, "value": each.value}
            for each in own
        ]
        for name, own in terms.items()
    }
