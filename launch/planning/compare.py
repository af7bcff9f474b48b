"""Compares finished runs with what the oracle predicts of them on a cluster."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic, write_output
from jaxdist.core.plan import Plan
from jaxdist.core.run_record import Run
from jaxdist.core.step_breakdown import StepBreakdown
from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.core.validation import json_text
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    find_run,
    is_writable,
    read_run_file,
    run_names,
)
from jaxdist.launch.run_folder.lockfile import read_trusted_config
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.launch.terminal.run_summary import pluralize, text_bar

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.core.cluster import Cluster
    from jaxdist.oracle.compare import RunComparison, TermComparison

_BAR_WIDTH: Final = 20
_MAX_LAYERS: Final = 6
"""Layers that are shown unless all are asked for."""
_HEADS: Final = ("predicted", "measured", "differ", "accurate")


@dataclass(frozen=True, kw_only=True)
class ComparisonQuery:
    """Runs to compare with their predictions, as `jaxdist compare` takes them."""

    runs: Sequence[str]
    """Names inside `dir`, or paths."""
    cluster: str | None = None
    """Name or file of the cluster that they ran on."""
    dir: str = "runs"
    """Folder of the runs that are given by name."""
    recalibrate: Path | None = None
    """File to write: the cluster with speeds fitted to these runs."""
    force: bool = False
    """Whether a file that is there is overwritten."""
    trust: bool = False
    """Whether modules are imported that are neither jaxdist's nor the experiment's."""


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """Runs beside their predictions."""

    query: ComparisonQuery
    cluster: "Cluster"
    """The cluster that the predictions are for."""
    comparisons: "tuple[RunComparison, ...]"
    """One for each run."""

    def tree(self) -> dict[str, Any]:
        """Return the comparisons as plain values, in seconds and bytes."""
        return {
            "cluster": self.cluster.name,
            "runs": [_comparison_tree(one) for one in self.comparisons],
        }


def compare_runs(query: ComparisonQuery) -> ComparisonReport:
    """Predict the steps of runs and compare them with what was measured.

    Writes the comparison and the report into each run's folder where that is possible,
    and the recalibrated cluster where that is asked for.

    Raises:
        BadInput: no such run or cluster, or a run that has not ended.
    """
    from jaxdist.core.plan_resize import check_device_count
    from jaxdist.launch.report import write_report
    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.meshes.clusters.load import load_cluster
    from jaxdist.oracle.compare import (
        check_held_out,
        compare_prediction,
        recalibrate_cluster,
    )
    from jaxdist.oracle.compute_times import step_layer_times
    from jaxdist.oracle.link_groups import collective_link_groups
    from jaxdist.oracle.predict import predict
    from jaxdist.oracle.schedule_times import predict_timeline

    if query.cluster is None:
        raise BadInput(
            "nothing says on which machine it ran",
            rule="a run is compared with what is predicted on a cluster",
            values="no --cluster",
            remedy=("--cluster testbed", "jaxdist calibrate measures yours"),
        )
    cluster = load_cluster(query.cluster)
    folders, compared = [], []
    for name in query.runs:
        folder = find_run(name, folder=query.dir)
        run = _read_summary(folder)
        plan = read_run_file(folder.plan, Plan.from_json)
        # A cluster that was recalibrated on this very run would prove nothing.
        check_held_out(run, cluster)
        check_device_count(plan, cluster)
        breakdown = None
        if folder.step_breakdown.is_file():
            breakdown = read_run_file(folder.step_breakdown, StepBreakdown.from_json)
        # From the lock file: the run is predicted as it was resolved then, whatever the
        # experiment's file says now.
        case = StepDescriber(
            read_trusted_config(folder, trust=query.trust).resolved.config,
            cluster.device.platform,
        ).describe_traced(plan)
        compared.append(
            compare_prediction(
                run,
                predict(case, cluster),
                breakdown,
                step_layer_times(case, cluster),
                predict_timeline(case, cluster),
                collective_link_groups(case, cluster),
                shlex.join((name, "--cluster", query.cluster)),
            )
        )
        folders.append(folder)
    if query.recalibrate:
        # All runs together: one alone does not tell a slow link from a slow device.
        better = recalibrate_cluster(cluster, compared)
        write_output(query.recalibrate, better.to_json(), force=query.force)
    # Written last: a run that is refused leaves the folders of all others as they were.
    for folder, one in zip(folders, compared, strict=True):
        if is_writable(folder.path):
            found = {"cluster": cluster.name, **_comparison_tree(one)}
            write_atomic(folder.comparison, json_text(found, indent=2) + "\n")
            write_report(folder.path)
    return ComparisonReport(query=query, cluster=cluster, comparisons=tuple(compared))


def _read_summary(folder: RunFolder) -> Run:
    if not folder.summary.is_file():
        raise BadInput(
            f"{folder.path} has no record",
            rule="a run is compared when it has ended, or was asked to end",
            values=f"no {folder.summary.name}",
            remedy="jaxdist train resumes it",
        )
    run = read_run_file(folder.summary, Run.from_json)
    # The first step compiles, and is not timed.
    if not run.step_s:
        raise BadInput(
            f"{folder.path} made no step that was timed",
            rule="a run is compared by the median of its steps",
            values=f"{run.steps} steps",
            remedy="a run of more steps",
        )
    return run


def _comparison_tree(one: "RunComparison") -> dict[str, Any]:
    """Return a comparison as plain values, as `comparison.json` and the report do."""
    breakdown, stages = one.breakdown, one.predicted_timeline
    watched = None if breakdown is None else asdict(breakdown)
    measured: dict[int, list[dict[str, Any]]] = {}
    if breakdown is not None and watched is not None:
        # Devices lie in mesh order: `inner` neighbours share a place on the pipe axis,
        # and of each place the first device that was profiled is drawn.
        inner = len(breakdown.devices) // len(stages) if stages else 0
        for row, device in zip(watched["devices"], breakdown.devices, strict=True):
            del row["layers_s"]
            cells = row.pop("lane")
            row["step_s"] = device.step_s
            place = device.device // inner % len(stages) if inner else 0
            if inner and place not in measured:
                # A traced step is slower than others; its prediction is not.
                for cell in cells:
                    cell["start"] /= one.profiler_slowdown
                    cell["end"] /= one.profiler_slowdown
                measured[place] = cells
    pipeline = {
        "planned": [[asdict(cell) for cell in lane] for lane in stages],
        "measured": [measured.get(place, []) for place in range(len(stages))],
    }
    return {
        "run": one.run,
        "plan": one.prediction.plan,
        "step": _term_tree(one.step),
        "interval_s": list(one.prediction.interval_s),
        "inside_interval": one.in_interval,
        "terms": [_term_tree(term) for term in one.terms],
        "layers": [_term_tree(layer) for layer in one.layers],
        "memory_by_term": one.prediction.memory_by_term,
        "likely_cause": one.likely_cause,
        "misses": [
            {
                "term": miss.term.name,
                "seconds": miss.seconds,
                "likely_cause": miss.cause,
                "remedy": miss.remedy,
            }
            for miss in one.mispredictions
        ],
        "watched": watched,
        "pipeline": pipeline if stages else None,
        "links": {
            axes: {
                "devices": group.size,
                "level": group.level,
                "bytes_per_s": group.bandwidth,
                "alpha_s": group.alpha,
            }
            for axes, group in one.link_groups.items()
        },
    }


def _term_tree(term: "TermComparison") -> dict[str, Any]:
    return asdict(term) | {"accurate": term.accuracy}


def print_comparison(
    out: "Console", found: ComparisonReport, *, all_layers: bool
) -> None:
    """Print each run: its step, term by term, by layer, and what missed most."""
    query, cluster = found.query, str(found.query.cluster)
    for one in found.comparisons:
        _print_run(out, one, found.cluster.name, all_layers=all_layers)
    same = f"jaxdist compare {shlex.join((*query.runs, '--cluster', cluster))}"
    if not query.recalibrate:
        print_next_commands(
            out, f"{same} --layers", f"{same} --recalibrate better.json"
        )
        return
    fitted = pluralize(len(found.comparisons), "run")
    out.print(f"  written  {query.recalibrate}, fitted to {fitted}")
    # By their names: a run may be given as a path.
    seen = {find_run(name, folder=query.dir).name for name in query.runs}
    others = [name for name in run_names(query.dir) if name not in seen]
    # Another run, since `check_held_out` refuses those that the cluster was fitted to.
    if others:
        better = others[0], "--cluster", str(query.recalibrate)
        print_next_commands(out, f"jaxdist compare {shlex.join(better)}")


def _print_run(
    out: "Console", one: "RunComparison", cluster: str, *, all_layers: bool
) -> None:
    # Terms come from a trace of some steps, the step itself from all that were timed.
    step, (low, high) = one.step, one.prediction.interval_s
    assert step.measured is not None
    out.print(f"{one.run.partition('@')[0]}    {one.prediction.plan} on {cluster}")
    where = "inside" if one.in_interval else "outside"
    out.print(
        f"  the step took {1e3 * step.measured:,.1f} ms, predicted "
        f"{1e3 * step.predicted:,.1f} ({1e3 * low:,.1f} to {1e3 * high:,.1f}) ms: "
        f"{format_percent(step.accuracy or 0.0)} accurate, {where} the interval"
    )
    # Without a trace a run knows its step, and not what the step is made of.
    line = "terms were not watched: jaxdist train --profile steps=10:19 measures them"
    if (measured := one.breakdown) is not None:
        count = pluralize(measured.processes, "process")
        whose = f", of process 0 of {count}" if measured.processes > 1 else ""
        busiest = measured.busiest
        line = (
            f"terms are shares of {pluralize(busiest.steps, 'profiled step')} of "
            f"{format_duration(busiest.step_s)} on device {busiest.device}{whose}, "
            "which computed longest"
        )
    out.print(f"  {line}\n", soft_wrap=True)

    # The last term is memory, in bytes: it stands behind the step, and has no bar.
    ascii_only = out.options.ascii_only
    rows = make_table("ms a step", *_HEADS, "", right=_HEADS)
    # Bars of one run are in proportion to its own longest term.
    longest = max(max(t.predicted, t.measured or 0.0) for t in one.terms[:-1])
    for term in one.terms[:-1]:
        cells = round(_BAR_WIDTH * term.predicted / longest) if longest else 0
        bars = [("-" if ascii_only else "░") * cells]
        # Below the prediction, so that both begin at one edge.
        if term.measured is not None and longest:
            bars.append(text_bar(term.measured / longest, _BAR_WIDTH, ascii_only))
        rows.add_row(*_term_cells(term), "\n".join(bars))
    rows.add_row(*_term_cells(step), "")
    rows.add_row(*_term_cells(one.terms[-1]), "")
    print_table(out, rows)

    # They are in the order of what they miss, in seconds.
    shown = one.layers if all_layers else one.layers[:_MAX_LAYERS]
    if shown:
        rows = make_table("computing, ms a step", *_HEADS, right=_HEADS)
        for layer in shown:
            # Operations that XLA gives no layer to have an empty name.
            name, *rest = _term_cells(layer)
            rows.add_row(name or "no layer", *rest)
        print_table(out, rows)
        if len(shown) < len(one.layers):
            out.print(
                f"  the {len(shown)} of {len(one.layers)} layers that miss most\n"
            )
    for number, miss in enumerate(one.mispredictions, start=1):
        off = _signed_difference(miss.term)
        out.print(f"  miss {number}  {miss.term.name} {off} ms")
        out.print(f"          likely cause: {miss.cause}", soft_wrap=True)
        out.print(f"          remedy: {miss.remedy}", soft_wrap=True)
    if one.mispredictions:
        out.print()
    elif not one.in_interval:
        out.print(f"  likely cause   {one.likely_cause}\n", soft_wrap=True)


def _term_cells(term: "TermComparison") -> tuple[str, str, str, str, str]:
    measured = off = accurate = ""
    if term.measured is not None:
        measured, off = _format_term(term, term.measured), _signed_difference(term)
    if term.accuracy is not None:
        accurate = format_percent(term.accuracy)
    return term.name, _format_term(term, term.predicted), measured, off, accurate


def _signed_difference(term: "TermComparison") -> str:
    off = (term.measured or 0.0) - term.predicted
    return f"{'-' if off < 0 else '+'}{_format_term(term, abs(off))}"


def _format_term(term: "TermComparison", value: float) -> str:
    """Write bytes with their unit, and seconds as milliseconds."""
    return format_size(value) if term.unit == "B" else f"{1e3 * value:,.2f}"
