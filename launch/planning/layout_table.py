"""Prints a ranking of layouts, and why the others lost."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from jaxdist.core.text.formatting import format_duration, format_size
from jaxdist.launch.planning.layout_search import LayoutSearchResult
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.launch.terminal.run_summary import format_parameters

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.planning.verify import Verification
    from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan

_NON_COMM_TERMS: Final = ("compute", "bubble", "update", "input")
_VERIFIED_PLANS: Final = 4
"""Plans that `plan verify` is proposed for."""
_DEFAULT_SAMPLES: Final = 1_000_000
"""Samples whose cost is shown unless `--samples` says how many there are."""


def print_layouts(out: "Console", found: LayoutSearchResult) -> None:
    """Print the best layouts by term, then why well-known ones are not among them."""
    query, ranking, objective = found.query, found.ranking, found.objective
    # There is one at least: a ranking of none is an error of the search.
    plans = ranking.plans
    counts = ", ".join(f"{count:,}" for count in found.devices)
    out.print(
        f"{found.resolved.experiment} on {found.cluster.name}, {counts} of "
        f"{found.cluster.devices:,} devices, global batch "
        f"{plans[0].prediction.batch:,}\n"
        f"  {ranking.num_estimated:,} plans ordered, {ranking.num_evaluated} "
        f"described, in {format_duration(found.search_s)}"
    )
    if frozen := found.describer.task.num_frozen:
        trained = found.describer.task.num_params
        out.print(f"  {format_parameters(trained, frozen)}")
    goal = "" if objective.samples is None else f"{objective.samples:,.0f} samples"
    if objective.kind == "budget":
        out.print(f"  ordered by the hours until {goal} are trained on")
    elif objective.kind == "cost":
        said = f"device-hours: {found.cluster.name} has no price (docs/clusters.md)"
        if (price := objective.price) is not None:
            said = f"at a price of {price.value:g} for a device and an hour"
            said += f" ({price.origin})"
        out.print(f"  ordered by cost of {goal or 'a million samples'}, {said}")
    out.print()

    extra = tuple(_extra_columns(found, plans[0]))
    heads = (
        *extra,
        "step, ms",
        "90 %",
        "compute",
        "comm",
        "bubble",
        "update",
        "memory",
    )
    rows = make_table("", "plan", *heads, right=heads)
    near = [one for one in plans[1:] if not found.is_slower_than_first(one)]
    # A verification has told plans apart itself.
    undecided = 0 if found.verification is not None else len(near)
    for place, one in enumerate(plans[: query.top], 1):
        made, terms = one.prediction, one.prediction.terms_s
        # Collectives are one column here; `plan explain` and `--json` have them one by
        # one.
        comm = sum(took for term, took in terms.items() if term not in _NON_COMM_TERMS)
        bubble, update = terms.get("bubble", 0), terms.get("update", 0)
        parts = terms.get("compute", 0), comm, bubble, update
        rows.add_row(
            f"{place}{'~' * (undecided > 0 and one in near)}",
            *(one.plan.label, *_extra_columns(found, one).values()),
            f"{1e3 * made.step_s:,.1f}",
            _format_interval(made.interval_s),
            *(f"{1e3 * part:,.1f}" for part in parts),
            format_size(made.memory_bytes),
        )
    print_table(out, rows)
    out.print(f"  90 %: {plans[0].prediction.interval.basis}", soft_wrap=True)
    if found.cluster.host_groups:
        _print_stage_groups(out, found)

    if found.verification is not None:
        _print_verification(out, found.verification)
    # Well-known layouts are explained even where they are far behind: that they are
    # missing is what people ask about first.
    if ranking.rejected:
        out.print("\n  Why the others lost")
        heads = ("step, ms", "90 %")
        lost = make_table("layout", *heads, "why", right=heads)
        for _, each in ranking.rejected:
            took = "no" if each.step_s is None else f"{1e3 * each.step_s:,.1f}"
            between = (
                "" if each.interval_s is None else _format_interval(each.interval_s)
            )
            lost.add_row(each.title, took, between, each.reason)
        print_table(out, lost)
    if query.explain:
        _print_explanation(out, found, query.explain)

    if undecided > 0:
        out.print(
            f"  ~ {undecided} others cannot be told from the first, which may not be "
            "the fastest; these decide",
            soft_wrap=True,
        )
    print_next_commands(out, *_next_commands(found, undecided))


def _print_stage_groups(out: "Console", found: LayoutSearchResult) -> None:
    """Print which host groups and blocks the stages of the first plan have."""
    first = found.ranking.plans[0]
    ranks = [", ".join(names) for names in first.prediction.rank_groups]
    case = found.describer.describe(first.plan)
    if not case.stages:
        out.print(f"  stands on {ranks[0]}; a step waits for the slowest device")
        return
    # Hosts are started in the order of the groups.
    order = [
        group.name for group, _ in found.cluster.group_ranges(first.plan.host_order)
    ]
    out.print(f"\n  The first plan's stages; hosts are counted {', then '.join(order)}")
    rows = make_table("stage", "devices", "blocks", "number", right=("number",))
    for stage, blocks in enumerate(case.stages):
        own = dict.fromkeys(ranks[rank] for rank in case.placement.stage_devices[stage])
        ends = dict.fromkeys((blocks[0], blocks[-1]))
        rows.add_row(f"{stage}", "; ".join(own), " to ".join(ends), f"{len(blocks)}")
    print_table(out, rows)


def _next_commands(found: LayoutSearchResult, undecided: int) -> Iterator[str]:
    """Yield what to type next: what tells plans apart, where that is open, and -o."""
    query, objective = found.query, found.objective
    # The next command repeats what decides which plan is the first, and no more.
    options = ["--devices", ",".join(map(str, found.devices))]
    if objective.kind != "step":
        options += ["--objective", objective.kind]
    if objective.samples is not None:
        options += ["--samples", f"{objective.samples:.17g}"]
    words = [found.resolved.experiment, *query.overrides, f"--cluster {query.cluster}"]
    words += [shlex.join(options), *(f"--what-if {change}" for change in query.what_if)]
    words += [f"--memory {query.memory}"] * bool(query.memory)
    words += [f"--compressors {query.compressors}"] * bool(query.compressors)
    asked = " ".join(words)
    if found.verification is not None:
        tried = len(found.verification.plans)
        yield f"jaxdist plan verify {asked} --first {tried} -o plan.json"
        return
    if not undecided:
        yield f"jaxdist plan {asked} -o plan.json"
        return
    # The first is tried along with those that may be faster.
    tried = min(_VERIFIED_PLANS, undecided + 1)
    there = "" if found.cluster.device.is_cpu else f"    (on {found.cluster.name})"
    yield f"jaxdist plan verify {asked} --first {tried} -o plan.json{there}"
    # Only numbers that calibrate wrote come with timed kernels.
    if found.cluster.device.kernels is None:
        devices = max(found.devices)
        yield (
            f"jaxdist calibrate --quick --devices {devices} -o cluster.json    "
            f"(about 20 s, on {found.cluster.name}: no number of it was measured)"
        )
    elif found.cluster.device.blocks is None:
        yield (
            f"jaxdist calibrate layers {found.resolved.experiment} --devices "
            f"{max(found.devices)} --cluster {query.cluster} -o cluster_layers.json"
        )


def _print_verification(out: "Console", verification: "Verification") -> None:
    """Print plans in the order of what was seen, and which are not told apart."""
    how = "compiled for" if verification.is_compiled else "run in turn on"
    plans = verification.plans
    out.print(f"  {len(plans)} plans {how} {verification.machine}")
    seen = "estimated, ms" if verification.is_compiled else "seen, ms"
    heads = (seen, "predicted", "90 %", "memory")
    rows = make_table("", "plan", *heads, right=heads)
    for place, one in enumerate(plans, 1):
        step, rounds = one.step_s, one.rounds_s
        shown = "no" if one.refusal else "not known" if step is None else ""
        if step is not None:
            shown = f"{1e3 * step:,.1f}"
        if len(rounds) > 1:
            shown += f" ({1e3 * min(rounds):,.1f} to {1e3 * max(rounds):,.1f})"
        rows.add_row(
            "" if one.refusal else f"{place}",
            one.evaluated.plan.label,
            shown,
            f"{1e3 * one.evaluated.prediction.step_s:,.1f}",
            _format_interval(one.evaluated.prediction.interval_s),
            "" if one.memory_bytes is None else format_size(one.memory_bytes),
            one.refusal or ("not told from the first" if one.tie else ""),
        )
    print_table(out, rows)
    for one in plans:
        if one.tie:
            out.print(
                f"  {one.evaluated.plan.label} and the first cannot be told apart; "
                f"what would: {one.tie}",
                soft_wrap=True,
            )


def _print_explanation(out: "Console", found: LayoutSearchResult, rank: int) -> None:
    """Print the arithmetic of the plan at a rank."""
    explained = found.explanation(rank)
    out.print(f"\n  {found.ranking.plans[rank - 1].plan.label}: how it is reckoned")
    for column, show in (("seconds", format_duration), ("bytes", format_size)):
        rows = make_table("term", "arithmetic", column, right=(column,))
        for term in explained[column]:
            number = term["value"]
            shown = f"- {show(-number)}" if number < 0 else show(number)
            rows.add_row(term["term"], term["arithmetic"], shown)
        print_table(out, rows)


def _extra_columns(found: LayoutSearchResult, one: "EvaluatedPlan") -> dict[str, str]:
    """Return the columns that were asked for beside the step: heads and numbers."""
    objective, columns = found.objective, {}
    if len(found.devices) > 1:
        columns["devices"] = f"{one.plan.mesh.devices:,}"
    if objective.kind == "cost":
        samples = 1 if objective.samples is not None else _DEFAULT_SAMPLES
        head = "device-h" if objective.price is None else "cost"
        # Without --samples an objective's cost is that of one sample, too small to
        # read.
        columns[head] = _three_digits(samples * objective.cost(one))
    budget = objective.budget_s(one)
    if budget is not None:
        columns["hours"] = _three_digits(budget / 3600)
    return columns


def _format_interval(interval_s: tuple[float, float]) -> str:
    """Write an interval in milliseconds."""
    return " to ".join(_three_digits(1e3 * end) for end in interval_s)


def _three_digits(value: float) -> str:
    """Write a number with three digits, or all in front of the point.

    >>> tuple(_three_digits(number) for number in (0.01299, 3.0, 99.97, 123456.7))
    ('0.0130', '3.00', '100', '123,457')
    """
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"
