"""Compared: runs beside their predictions, as `jaxdist compare` prints them."""

import shlex
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.launch.run_folder.folder import find_run, run_names
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.launch.terminal.run_header import pluralize
from jaxdist.launch.terminal.run_summary import text_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from jaxdist.core.step_breakdown import StepBreakdown
    from jaxdist.launch.planning.compare import ComparisonReport
    from jaxdist.oracle.compare import RunComparison, TermComparison

_BAR_WIDTH: Final = 20
_MAX_LAYERS: Final = 6
"""Layers that are shown where not all are asked for."""
_HEADS: Final = ("predicted", "measured", "differ", "accurate")


def print_comparison(
    out: "Console", found: "ComparisonReport", args: Namespace
) -> None:
    """Print each run: its step, term by term, by layer, and what missed most."""
    for one in found.comparisons:
        _print_run(out, one, found.cluster.name, every=args.layers)
    same = f"jaxdist compare {shlex.join((*args.runs, '--cluster', args.cluster))}"
    if args.recalibrate:
        fitted = pluralize(len(found.comparisons), "run")
        out.print(f"  written  {args.recalibrate}, fitted to {fitted}")
        seen = {find_run(name, folder=args.dir).name for name in args.runs}
        others = [name for name in run_names(args.dir) if name not in seen]
        # What it was fitted to proves nothing, and is refused.
        if others:
            better = others[0], "--cluster", str(args.recalibrate)
            print_next_commands(out, f"jaxdist compare {shlex.join(better)}")
        return
    print_next_commands(out, f"{same} --layers", f"{same} --recalibrate better.json")


def _print_run(
    out: "Console", one: "RunComparison", cluster: str, *, every: bool
) -> None:
    step, unsure = one.step, one.prediction.relative_error
    assert step.measured is not None
    out.print(f"{one.run.partition('@')[0]}    {one.prediction.plan} on {cluster}")
    where = "inside" if one.in_interval else "outside"
    out.print(
        f"  the step took {1e3 * step.measured:,.1f} ms, predicted "
        f"{1e3 * step.predicted:,.1f} ± {1e3 * step.predicted * unsure:,.1f} ms: "
        f"{format_percent(step.accuracy or 0.0)} accurate, {where} the interval"
    )
    out.print(f"  {breakdown_line(one.breakdown)}\n", soft_wrap=True)
    ascii_only = out.options.ascii_only
    rows = make_table("ms a step", *_HEADS, "", right=_HEADS)
    longest = max(max(t.predicted, t.measured or 0.0) for t in one.terms[:-1])
    for term in one.terms[:-1]:
        rows.add_row(*_term_cells(term), _bar_pair(term, longest, ascii_only))
    rows.add_row(*_term_cells(step), "")
    rows.add_row(*_term_cells(one.terms[-1]), "")
    print_table(out, rows)
    _print_layers(out, one.layers, every=every)
    _print_mispredictions(out, one)


def breakdown_line(measured: "StepBreakdown | None") -> str:
    """Say where the measured terms are from, or how to have them."""
    if measured is None:
        return (
            "terms were not watched: jaxdist train --profile steps=10:19 measures them"
        )
    one = measured.busiest
    of = pluralize(measured.processes, "process")
    whose = f", of process 0 of {of}" if measured.processes > 1 else ""
    return (
        f"terms are shares of {pluralize(one.steps, 'profiled step')} of "
        f"{format_duration(one.step_s)} on device {one.device}{whose}, which computed "
        "longest"
    )


def _term_cells(term: "TermComparison") -> tuple[str, str, str, str, str]:
    def said(value: float | None) -> str:
        if value is None:
            return ""
        return format_size(value) if term.unit == "B" else f"{1e3 * value:,.2f}"

    accurate = "" if term.accuracy is None else format_percent(term.accuracy)
    off = "" if term.measured is None else _signed_difference(term)
    return term.name, said(term.predicted), said(term.measured), off, accurate


def _signed_difference(term: "TermComparison") -> str:
    off = (term.measured or 0.0) - term.predicted
    said = format_size(abs(off)) if term.unit == "B" else f"{1e3 * abs(off):,.2f}"
    return f"{'-' if off < 0 else '+'}{said}"


def _bar_pair(term: "TermComparison", longest: float, ascii_only: bool) -> str:
    """Draw the prediction above what was measured."""
    cells = round(_BAR_WIDTH * term.predicted / longest) if longest else 0
    lines = [("-" if ascii_only else "░") * cells]
    if term.measured is not None and longest:
        lines.append(text_bar(term.measured / longest, _BAR_WIDTH, ascii_only))
    return "\n".join(lines)


def _print_layers(
    out: "Console", layers: "Sequence[TermComparison]", *, every: bool
) -> None:
    shown = layers if every else layers[:_MAX_LAYERS]
    if not shown:
        return
    rows = make_table("computing, ms a step", *_HEADS, right=_HEADS)
    for layer in shown:
        name, *rest = _term_cells(layer)
        rows.add_row(name or "no layer", *rest)
    print_table(out, rows)
    if len(shown) < len(layers):
        out.print(f"  the {len(shown)} of {len(layers)} layers that miss most\n")


def _print_mispredictions(out: "Console", one: "RunComparison") -> None:
    if not one.mispredictions:
        if not one.in_interval:
            out.print(f"  likely cause   {one.likely_cause}\n", soft_wrap=True)
        return
    for number, miss in enumerate(one.mispredictions, start=1):
        out.print(
            f"  miss {number}  {miss.term.name} {_signed_difference(miss.term)} ms"
        )
        out.print(f"          likely cause: {miss.cause}", soft_wrap=True)
        out.print(f"          remedy: {miss.remedy}", soft_wrap=True)
    out.print()
