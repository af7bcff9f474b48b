"""Predicting: an experiment's step on a cluster, by term."""

from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.launch.config.plan_file import check_plan_target, load_plan_overrides
from jaxdist.launch.config.resolve import resolve_config

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.config.resolve import ResolvedConfig
    from jaxdist.oracle.predict import Prediction


def predict_experiment(args: Namespace) -> "tuple[ResolvedConfig, Prediction]":
    """Predict what was asked for.

    Raises:
        BadInput: no such experiment, plan or cluster, or they do not go together.
    """
    words = [*(load_plan_overrides(args.plan) if args.plan else ()), *args.overrides]
    resolved = resolve_config(args.subject, words)
    if args.plan:
        check_plan_target(args.plan, resolved)

    from jaxdist.launch.training.job.abstract_step import StepDescriber
    from jaxdist.meshes.clusters.load import load_cluster
    from jaxdist.meshes.clusters.what_if import apply_overrides
    from jaxdist.oracle.memory import trace_predicts_memory
    from jaxdist.oracle.predict import check_device_count, predict

    cluster = apply_overrides(load_cluster(args.cluster), args.what_if)
    check_device_count(resolved.config.plan, cluster)
    subject, plan = StepDescriber(resolved.config), resolved.config.plan
    traced = trace_predicts_memory(plan, cluster.device)
    case = subject.describe_traced(plan) if traced else subject.describe(plan)
    return resolved, predict(case, cluster)


def print_prediction(
    out: "Console", resolved: "ResolvedConfig", found: "Prediction", words: str
) -> None:
    """Print seconds by term, then bytes by term, then what they rest on."""
    from jaxdist.core.text.formatting import (
        format_duration,
        format_percent,
        format_size,
    )
    from jaxdist.launch.terminal.console import (
        make_table,
        print_next_commands,
        print_table,
    )

    devices = resolved.config.plan.mesh.devices
    out.print(
        f"{resolved.experiment} on {found.cluster}    {found.plan}    {devices:,} "
        "devices, "
        f"global batch {found.batch:,}"
    )
    out.print(
        f"  step     {format_duration(found.step_s)} ± "
        f"{format_percent(found.relative_error, 0)}, "
        f"{found.batch / found.step_s:,.0f} samples/s"
    )
    fits = "fits" if found.fits else "does not fit"
    out.print(
        f"  memory   {format_size(found.memory_bytes)} of "
        f"{format_size(found.memory_capacity)} a "
        f"device: {fits}"
    )
    out.print()
    behind = found.overlapped_s
    heads = ("ms a step", "share", *["hidden behind computing, ms"] * bool(behind))
    seconds = make_table("term", *heads, right=heads)
    for term, took in sorted(found.terms_s.items(), key=lambda pair: -pair[1]):
        beside = [f"{1e3 * behind[term]:,.3f}" if term in behind else ""]
        share = format_percent(took / found.step_s)
        seconds.add_row(term, f"{1e3 * took:,.3f}", share, *beside * bool(behind))
    print_table(out, seconds)
    kept = make_table("kept on a device", "bytes", right=("bytes",))
    for term, held in sorted(found.memory_by_term.items(), key=lambda pair: -pair[1]):
        kept.add_row(term, format_size(held))
    print_table(out, kept)
    guessed = [
        p for p, origin in found.provenance.items() if origin.startswith("assumed")
    ]
    if guessed:
        out.print(f"  assumed  {', '.join(guessed)}\n", soft_wrap=True)
    print_next_commands(out, f"jaxdist oracle predict {words} --json")
