"""Comparing: runs read back, predicted, and set beside what they measured."""

from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.run import Run
from jaxdist.launch.lock import read_lock
from jaxdist.launch.runs import RunFolder, find_run, write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.core.cluster import Cluster
    from jaxdist.oracle.compare import Compared


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Runs beside their predictions."""

    cluster: "Cluster"
    """What they were predicted with."""
    seen: "tuple[Compared, ...]"
    """One for each run."""

    def tree(self) -> dict[str, Any]:
        """Return them as one object, seconds and bytes."""
        return {
            "cluster": self.cluster.name,
            "runs": [
                {
                    "run": one.run,
                    "plan": one.prediction.plan,
                    "step": asdict(one.step) | {"accurate": one.step.accurate},
                    "inside_interval": one.inside,
                    "terms": [asdict(t) | {"accurate": t.accurate} for t in one.terms],
                    "likely_cause": one.cause,
                }
                for one in self.seen
            ],
        }


def compare_runs(args: Namespace) -> Beside:
    """Predict the steps of runs, set them beside, and recalibrate where asked.

    Raises:
        BadInput: no such run or cluster, or a run that has not ended.
    """
    from jaxdist.launch.described import Subject
    from jaxdist.meshes.clusters.read import find
    from jaxdist.oracle.compare import check_unseen, compare, recalibrated
    from jaxdist.oracle.predict import check_devices, predict

    if args.cluster is None:
        raise BadInput(
            "nothing says on which machine it ran",
            rule="a run is compared with what is predicted on a cluster",
            values="no --cluster",
            remedy=("--cluster testbed", "jaxdist calibrate measures yours"),
        )
    cluster = find(args.cluster)
    seen = []
    for name in args.runs:
        folder = find_run(name, folder=args.dir)
        run, plan = _record(folder), _plan(folder)
        check_unseen(run, cluster)
        check_devices(plan, cluster)
        case = Subject(read_lock(folder).resolved.config).traced(plan)
        seen.append(compare(run, predict(case, cluster)))
    if args.recalibrate:
        better = recalibrated(cluster, seen)
        write_whole(Path(args.recalibrate), better.to_json())
    return Beside(cluster=cluster, seen=tuple(seen))


def _record(folder: RunFolder) -> Run:
    if not folder.summary.is_file():
        raise BadInput(
            f"{folder.path} has no record",
            rule="a run is compared when it has ended, or was asked to end",
            values=f"no {folder.summary.name}",
            remedy="jaxdist train goes on with it",
        )
    run = Run.from_json(folder.summary.read_text(encoding="utf-8"))
    if not run.step_s:
        raise BadInput(
            f"{folder.path} made no step that was timed",
            rule="a run is compared by the median of its steps",
            values=f"{run.steps} steps",
            remedy="a run of more steps",
        )
    return run


def _plan(folder: RunFolder) -> Plan:
    return Plan.from_json(folder.plan.read_text(encoding="utf-8"))


def print_compared(out: "Console", found: Beside, args: Namespace) -> None:
    """Print each run: its step, then term by term."""
    from jaxdist.core.units import percent, size
    from jaxdist.launch.console import print_next, print_table, table

    for one in found.seen:
        step = one.step
        assert step.measured is not None
        name = one.run.partition("@")[0]
        out.print(f"{name}    {one.prediction.plan} on {found.cluster.name}")
        where = "inside" if one.inside else "outside"
        out.print(
            f"  the step took {1e3 * step.measured:,.1f} ms, predicted "
            f"{1e3 * step.predicted:,.1f} ± "
            f"{1e3 * step.predicted * one.prediction.unsure:,.1f} ms: "
            f"{percent(step.accurate or 0.0)} accurate, {where} the interval\n"
        )
        heads = ("predicted", "measured", "differ", "accurate")
        rows = table("ms a step", *heads, right=heads)
        for term in (*one.terms[:-1], step, one.terms[-1]):
            in_bytes = term.unit == "B"

            def said(value: float | None, in_bytes: bool = in_bytes) -> str:
                if value is None:
                    return ""
                return size(value) if in_bytes else f"{1e3 * value:,.2f}"

            seen = term.measured
            rows.add_row(
                term.name,
                said(term.predicted),
                said(term.measured),
                "" if seen is None else said(seen - term.predicted),
                "" if term.accurate is None else percent(term.accurate),
            )
        print_table(out, rows)
        if not one.inside:
            out.print(f"  likely cause   {one.cause}", soft_wrap=True)
    if args.recalibrate:
        out.print(f"  written  {args.recalibrate}, fitted to {len(found.seen)} runs")
    else:
        runs = " ".join(args.runs)
        print_next(
            out,
            f"jaxdist compare {runs} --cluster {args.cluster} "
            "--recalibrate better.json",
        )
