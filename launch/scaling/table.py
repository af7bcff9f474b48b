"""The table of a study: a row a run, a block a batch, and what was found below it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.scaling import findings
from jaxdist.launch.scaling.fit import FIT_EQUATION, ScalingFit
from jaxdist.launch.scaling.results import ScalingResult
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.launch.terminal.run_summary import pluralize, wrap_hanging

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
    shared = findings.shared_cores_sentence(result)
    head = [f"scale     {findings.headline(result)}", f"  place   {result.place.title}"]
    for line in (*head, *([f"          {shared}"] if shared else [])):
        out.print(wrap_hanging(line, 10, out.width))

    numbers = tuple(head for head in COLUMNS if head != "reduce")
    for source in result.grid.inputs:
        for asked in result.grid.batches:
            # Runs that failed have no row: they are named below the table.
            among = batch_measurements(result, asked)
            readings = [one for one in among if one.run.input == source]
            if not readings:
                continue
            title = f"Batch {asked} {batch_scope(result)}, {source} input"
            out.print(f"\n  {title}\n", style="title")
            rows = make_table(*COLUMNS, right=numbers)
            for reading in readings:
                rows.add_row(*table_row(result, reading))
            print_table(out, rows)

    paragraphs = _findings(result) if result.readings else {}
    for name, lines in paragraphs.items():
        for number, line in enumerate(lines):
            text = f"  {name if number == 0 else '':8} {line}"
            out.print(wrap_hanging(text, 11, out.width))
        out.print()
    if not paragraphs:
        out.print()

    for sentence in findings.other_work_sentences(result):
        out.print(wrap_hanging(f"warn:     {sentence}", 10, out.width))
    for one in result.lost:
        line = f"failed    {one.cell.title}: {one.why} ({one.log})"
        out.print(wrap_hanging(line, 10, out.width))
    if result.lost:
        out.print()
    out.print(f"  page     {page}", soft_wrap=True)
    print_next_commands(out, *next_commands)


def _findings(result: ScalingResult) -> dict[str, list[str]]:
    """Return what the rows come to, the lines of each paragraph by its name."""
    found = {"steps": [findings.measurement_sentence(result)], "fit": [FIT_EQUATION]}
    for one in result.fits:
        found["fit"].append(f"{one.reduce}, {one.source}: {findings.fit_sentence(one)}")
        if isinstance(one.found, ScalingFit):
            # What a step of the most processes is made of tells what limits it.
            point = max(one.points, key=lambda p: p.processes)
            shares = one.found.component_shares(point).items()
            parts = ", ".join(f"{name} {format_percent(s, 0)}" for name, s in shares)
            on = f"{pluralize(point.processes, 'process')}, {point.each:g} samples each"
            found["fit"].append(f"{on}: {parts} (fitted)")
    if drifts := result.drifts:
        against = "losses against those of the same steps on the fewest processes:"
        lines = [findings.divergence_sentence(one) for one in drifts]
        found["losses"] = [against, *lines]
    if costs := findings.input_cost_sentences(result):
        found["input"] = costs
    return found


def table_row(result: ScalingResult, reading: ScalingMeasurement) -> tuple[str, ...]:
    """Write a run as the columns of `COLUMNS`."""
    # Slow steps first: the 95th percentile of times is the low end of rates.
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
