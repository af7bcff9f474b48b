"""Predicts the step of an experiment on a cluster, term by term."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.launch.config.plan_file import check_plan_target, load_plan_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.meshes.targets.target import check_target_size, parse_target
from jaxdist.network.chakra.files import check_trace_folder, write_traces

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.config.resolve import ResolvedConfig
    from jaxdist.oracle.predict import Prediction


@dataclass(frozen=True, kw_only=True)
class PredictionQuery:
    """What `jaxdist predict` takes."""

    experiment: str
    """Name or file."""
    overrides: Sequence[str] = ()
    """`key=value`."""
    plan: str | None = None
    """File of the plan to predict; by default the experiment's own plan."""
    cluster: str | None = None
    """Name or file."""
    target: str | None = None
    """A machine by chip and shape, in place of a cluster: `tpu-v5p:4x4x4`."""
    what_if: Sequence[str] = ()
    """Changed numbers of the cluster: `levels.net.bandwidth=1gbit`."""
    chakra: Path | None = None
    """Folder to which the execution traces of the step are written."""


@dataclass(frozen=True, kw_only=True)
class ExperimentPrediction:
    """A prediction with the experiment that it is of."""

    query: PredictionQuery
    resolved: "ResolvedConfig"
    prediction: "Prediction"

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as plain values, in seconds and bytes."""
        return {"experiment": self.resolved.experiment, **self.prediction.to_dict()}


def predict_experiment(query: PredictionQuery) -> ExperimentPrediction:
    """Predict the step of an experiment.

    Raises:
        BadInput: no such experiment, plan or cluster, or they do not go together.
    """
    target = parse_target(query.target) if query.target else None
    if (query.cluster is None) == (target is None):
        raise BadInput(
            "nothing says on which machine"
            if target is None
            else "a target has a cluster of its own",
            rule="a prediction is for a cluster",
            values=f"jaxdist predict {query.experiment}, "
            + ("no --cluster" if target is None else "--cluster and --target"),
            remedy=(
                "--cluster abci, or --target tpu-v5p:4x4x4",
                "jaxdist calibrate -o cluster.json measures yours",
            ),
        )
    if query.chakra is not None:
        # Before the prediction, which takes longer.
        check_trace_folder(query.chakra)
    # Overrides stand behind the plan's: what is typed wins over the file.
    words = [*(load_plan_overrides(query.plan) if query.plan else ()), *query.overrides]
    resolved = resolve_config(query.experiment, words)
    if query.plan:
        check_plan_target(query.plan, resolved)
    if target is not None:
        check_target_size(target, resolved.config.plan)

    from jaxdist.core.plan_resize import check_device_count
    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.meshes.clusters.load import load_cluster
    from jaxdist.meshes.clusters.what_if import apply_overrides
    from jaxdist.oracle.memory import trace_predicts_memory
    from jaxdist.oracle.predict import predict

    given = target.cluster if target else load_cluster(query.cluster or "")
    cluster = apply_overrides(given, query.what_if)
    plan = resolved.config.plan
    # A plan of fewer devices than the cluster has is predicted on the first of them.
    check_device_count(plan, cluster)
    describer = StepDescriber(resolved.config, cluster.device.platform)
    # A trace takes longer, and tells the memory of all but unrolled rematerialized
    # steps on accelerators, whose compilers keep other arrays than it shows.
    traced = trace_predicts_memory(plan, cluster.device, describer.profile)
    case = describer.describe_traced(plan) if traced else describer.describe(plan)
    prediction = predict(case, cluster)
    if query.chakra is not None:
        from jaxdist.oracle.step_trace import step_trace

        write_traces(query.chakra, step_trace(case, cluster, prediction))
    return ExperimentPrediction(query=query, resolved=resolved, prediction=prediction)


def print_prediction(out: "Console", predicted: ExperimentPrediction) -> None:
    """Print seconds by term, then bytes by term, then what they rest on."""
    from jaxdist.oracle.predict import MEMORY_MARGIN

    query, found = predicted.query, predicted.prediction
    fits = "fits" if found.fits else "does not fit"
    if not found.fits and found.memory_bytes <= found.memory_capacity:
        # Without a reason this would read as a wrong comparison.
        fits += f" with the margin of {100 * MEMORY_MARGIN:.0f} % for estimates"
    out.print(
        f"{predicted.resolved.experiment} on {found.cluster}    {found.plan}    "
        f"{predicted.resolved.config.plan.mesh.devices:,} devices, "
        f"global batch {found.batch:,}"
    )
    mfu = "" if found.mfu is None else f", MFU {format_percent(found.mfu)}"
    out.print(
        f"  step     {format_duration(found.step_s)}, nine in ten times "
        f"{' to '.join(map(format_duration, found.interval_s))}; "
        f"{found.batch / found.step_s:,.0f} samples/s{mfu}"
    )
    out.print(f"  rests on {found.interval.basis}", soft_wrap=True)
    out.print(
        f"  memory   {format_size(found.memory_bytes)} of "
        f"{format_size(found.memory_capacity)} a device: {fits}"
    )
    if found.host_bytes:
        size = format_size(found.host_bytes)
        out.print(f"  host     {size} of activations for each device")
    out.print()
    # What is hidden behind compute is no part of the step, and comes back where compute
    # gets faster.
    hidden = found.overlapped_s
    heads = ("ms a step", "share", *["hidden behind computing, ms"] * bool(hidden))
    seconds = make_table("term", *heads, right=heads)
    for term, took in sorted(found.terms_s.items(), key=lambda pair: -pair[1]):
        beside = [f"{1e3 * hidden[term]:,.3f}" if term in hidden else ""]
        share = format_percent(took / found.step_s)
        # Milliseconds to three places: terms of a step differ by orders of magnitude.
        seconds.add_row(term, f"{1e3 * took:,.3f}", share, *beside * bool(hidden))
    print_table(out, seconds)
    memory = make_table("kept on a device", "bytes", right=("bytes",))
    for term, held in sorted(found.memory_by_term.items(), key=lambda pair: -pair[1]):
        memory.add_row(term, format_size(held))
    print_table(out, memory)
    # Numbers that were neither measured nor published limit the trust in the rest.
    origins = found.provenance.items()
    if guessed := [p for p, origin in origins if origin.startswith("assumed")]:
        out.print(f"  assumed  {', '.join(guessed)}\n", soft_wrap=True)
    plan = ("--plan", query.plan) if query.plan else ()
    machine = "--target", query.target
    if not query.target:
        machine = "--cluster", query.cluster
    words = (query.experiment, *query.overrides, *plan, *map(str, machine))
    again = f"jaxdist predict {shlex.join(words)} --json"
    if query.chakra is None:
        print_next_commands(out, again)
        return
    devices = predicted.resolved.config.plan.mesh.devices
    folder = str(query.chakra)
    out.print(f"  traces   {devices:,} ranks in {folder}\n", soft_wrap=True)
    print_next_commands(out, f"jaxdist simulate traces {shlex.quote(folder)}", again)
