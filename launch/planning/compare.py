"""Comparing: runs read back, predicted, and set beside what they measured."""

import json
import shlex
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.run_record import Run
from jaxdist.core.step_breakdown import StepBreakdown
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    find_run,
    is_writable,
    write_atomic,
)
from jaxdist.launch.run_folder.lockfile import read_config_lock

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster
    from jaxdist.oracle.compare import RunComparison, TermComparison


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """Runs beside their predictions."""

    cluster: "Cluster"
    """What they were predicted with."""
    comparisons: "tuple[RunComparison, ...]"
    """One for each run."""

    def tree(self) -> dict[str, Any]:
        """Return them as one object, seconds and bytes."""
        return {
            "cluster": self.cluster.name,
            "runs": [_comparison_tree(one) for one in self.comparisons],
        }


def _comparison_tree(one: "RunComparison") -> dict[str, Any]:
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
        "watched": None if one.breakdown is None else _breakdown_tree(one.breakdown),
        "pipeline": _pipeline_tree(one),
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


def _pipeline_tree(one: "RunComparison") -> dict[str, Any] | None:
    """Return the work of stages in time, by place along the pipe axis."""
    if not one.predicted_timeline:
        return None
    found: dict[int, list[dict[str, Any]]] = {}
    inner = (
        len(one.breakdown.devices) // len(one.predicted_timeline)
        if one.breakdown
        else 0
    )
    for device in one.breakdown.devices if one.breakdown and inner else ():
        cells = [asdict(cell) for cell in device.lane]
        for cell in cells:
            cell |= {end: cell[end] / one.profiler_slowdown for end in ("start", "end")}
        found.setdefault(device.device // inner % len(one.predicted_timeline), cells)
    return {
        "planned": [[asdict(cell) for cell in lane] for lane in one.predicted_timeline],
        "measured": [
            found.get(place, []) for place in range(len(one.predicted_timeline))
        ],
    }


def _term_tree(term: "TermComparison") -> dict[str, Any]:
    return asdict(term) | {"accurate": term.accuracy}


def _breakdown_tree(measured: "StepBreakdown") -> dict[str, Any]:
    found = asdict(measured)
    for device, one in zip(found["devices"], measured.devices, strict=True):
        del device["layers_s"], device["lane"]
        device["step_s"] = one.step_s
    return found


def compare_runs(args: Namespace) -> ComparisonReport:
    """Predict the steps of runs, set them beside, and recalibrate where asked.

    Raises:
        BadInput: no such run or cluster, or a run that has not ended.
    """
    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.meshes.clusters.load import load_cluster
    from jaxdist.oracle.compare import (
        check_held_out,
        compare_prediction,
        recalibrate_cluster,
    )
    from jaxdist.oracle.compute_times import step_layer_times
    from jaxdist.oracle.link_groups import collective_link_groups
    from jaxdist.oracle.predict import check_device_count, predict
    from jaxdist.oracle.schedule_times import predict_timeline

    if args.cluster is None:
        raise BadInput(
            "nothing says on which machine it ran",
            rule="a run is compared with what is predicted on a cluster",
            values="no --cluster",
            remedy=("--cluster testbed", "jaxdist calibrate measures yours"),
        )
    cluster = load_cluster(args.cluster)
    folders, seen = [], []
    for name in args.runs:
        folder = find_run(name, folder=args.dir)
        run, plan = _read_summary(folder), _read_plan(folder)
        check_held_out(run, cluster)
        check_device_count(plan, cluster)
        case = StepDescriber(read_config_lock(folder).resolved.config).describe_traced(
            plan
        )
        seen.append(
            compare_prediction(
                run,
                predict(case, cluster),
                _read_breakdown(folder),
                step_layer_times(case, cluster),
                predict_timeline(case, cluster),
                collective_link_groups(case, cluster),
                shlex.join((name, "--cluster", args.cluster)),
            )
        )
        folders.append(folder)
    if args.recalibrate:
        better = recalibrate_cluster(cluster, seen)
        write_atomic(Path(args.recalibrate), better.to_json())
    for folder, one in zip(folders, seen, strict=True):
        _save_comparison(folder, {"cluster": cluster.name, **_comparison_tree(one)})
    return ComparisonReport(cluster=cluster, comparisons=tuple(seen))


def _save_comparison(folder: RunFolder, found: dict[str, Any]) -> None:
    """Write a comparison into the run's folder and its report, where that may be."""
    from jaxdist.launch.report import write_report

    if is_writable(folder.path):
        write_atomic(folder.comparison, json.dumps(found, indent=2) + "\n")
        write_report(folder.path)


def _read_breakdown(folder: RunFolder) -> StepBreakdown | None:
    if not folder.step_breakdown.is_file():
        return None
    return StepBreakdown.from_json(folder.step_breakdown.read_text(encoding="utf-8"))


def _read_summary(folder: RunFolder) -> Run:
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


def _read_plan(folder: RunFolder) -> Plan:
    return Plan.from_json(folder.plan.read_text(encoding="utf-8"))
