"""The table of a study: a row a run, a block a batch, and what was found below it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.scaling.findings import (
    component_sentence,
    divergence_sentence,
    fit_sentence,
    headline,
    input_cost_sentences,
    measurement_sentence,
    shared_cores_sentence,
)
from jaxdist.launch.scaling.fit import FIT_EQUATION
from jaxdist.launch.scaling.grid import InputSource
from jaxdist.launch.scaling.results import ScalingResult
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.launch.terminal.run_header import wrap_hanging

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS: Final = (
    "processes",
    "reduce",
    "samples/s",
    "p95 to p5",
    "epoch, s",
    "efficiency",
    "waits",
    "loss",
)
"""Columns, left to right; all but reduce are numbers."""
_INDENT: Final = 11


def print_scaling_result(
    out: "Console", result: ScalingResult, page: Path, next_commands: Sequence[str]
) -> None:
    """Print a study.

    Args:
        out: where.
        result: what was measured.
        page: file of the same with plots.
        next_commands: commands to try next.
    """
    out.print(wrap_hanging(f"scale     {headline(result)}", 10, out.width))
    out.print(wrap_hanging(f"  place   {result.place.title}", 10, out.width))
    if said := shared_cores_sentence(result):
        out.print(wrap_hanging(f"          {said}", 10, out.width))
    for source in result.grid.inputs:
        for asked in result.grid.batches:
            _print_block(out, result, asked, source)
    if result.readings:
        _print_findings(out, result)
    else:
        out.print()
    for one in result.lost:
        line = f"failed    {one.cell.title}: {one.why} ({one.log})"
        out.print(wrap_hanging(line, 10, out.width))
    if result.lost:
        out.print()
    out.print(f"  page     {page}", soft_wrap=True)
    print_next_commands(out, *next_commands)


def table_row(result: ScalingResult, reading: ScalingMeasurement) -> tuple[str, ...]:
    """Write a run as the columns of `COLUMNS`."""
    low, high = reading.samples_per_s_range
    efficiency = result.efficiency(reading)
    return (
        str(reading.run.processes),
        reading.run.reduction,
        f"{reading.samples_per_s:,.0f}",
        f"{low:,.0f} to {high:,.0f}",
        f"{reading.epoch_s:,.2f}",
        "-" if efficiency is None else format_percent(efficiency),
        format_percent(reading.input_wait_share),
        f"{reading.losses[-1]:.4f}",
    )


def batch_measurements(
    result: ScalingResult, grid_batch: int
) -> list[ScalingMeasurement]:
    """Return the runs of one batch of the grid."""
    return [one for one in result.readings if one.run.grid_batch == grid_batch]


def batch_scope(result: ScalingResult) -> str:
    """Say whose batch the grid's is."""
    return "of all processes" if result.grid.scaling == "strong" else "of each process"


def _print_block(
    out: "Console", result: ScalingResult, asked: int, source: InputSource
) -> None:
    found = [
        one for one in batch_measurements(result, asked) if one.run.input == source
    ]
    if not found:
        return
    title = f"Batch {asked} {batch_scope(result)}, {source} input"
    out.print(f"\n  {title}\n", style="title")
    rows = make_table(
        *COLUMNS, right=tuple(head for head in COLUMNS if head != "reduce")
    )
    for reading in found:
        rows.add_row(*table_row(result, reading))
    print_table(out, rows)


def _print_findings(out: "Console", result: ScalingResult) -> None:
    """Print what the rows come to, named at the left."""
    for name, lines in _finding_lines(result):
        for number, line in enumerate(lines):
            head = f"  {name if number == 0 else '':8} "
            out.print(wrap_hanging(head + line, _INDENT, out.width))
        out.print()


def _finding_lines(result: ScalingResult) -> Iterator[tuple[str, list[str]]]:
    yield "steps", [measurement_sentence(result)]
    fits = [
        line
        for one in result.fits
        for line in (
            f"{one.reduce}, {one.source}: {fit_sentence(one)}",
            component_sentence(one),
        )
        if line
    ]
    yield "fit", [FIT_EQUATION, *fits]
    if result.drifts:
        against = "losses against those of the same steps on the fewest processes:"
        yield "losses", [against, *map(divergence_sentence, result.drifts)]
    if costs := input_cost_sentences(result):
        yield "input", costs
