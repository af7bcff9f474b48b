"""`jaxdist audit`: what a compiled step moves and does, beside its plan."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from jaxdist.core.text.formatting import format_count, format_percent, format_size
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
    add_target_option,
)
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)
from jaxdist.launch.terminal.run_summary import NumberColumn

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.analysis.audit import StepAudit
    from jaxdist.launch.config import Experiment
    from jaxdist.launch.training.job.job import Job

summary = "hold a compiled step against its plan, without training"
example = "digits plan.mesh.data=2 plan.mesh.spatial_h=2"

_MAX_ROWS: Final = 5


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides, or a script and the name of its step."""
    add_experiment_arguments(parser, or_step=True)
    add_target_option(parser)
    parser.add_argument(
        "--warn", action="store_true", help="exit with 0 whatever differs, and say it"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Audit, print what was found, and fail where that is not as it should be.

    Raises:
        AuditError: the first difference from the plan, after everything was printed.
    """
    from jaxdist.launch.analysis.user_step import load_user_step, reject_overrides

    # A step of the user's own has no plan: what is found is compared with how its
    # arguments are sharded, and with good practice.
    if (user_step := load_user_step(args.experiment)) is not None:
        from jaxdist.inspect import audit as audit_user_step

        reject_overrides("audit", args.experiment, args.overrides)
        step, given = user_step
        survey = audit_user_step(step, *given)
        if args.json:
            print_json(survey.tree())
        else:
            sys.stdout.write(f"{args.experiment}\n{survey}\n")
        return int(bool(survey.findings) and not args.warn)

    if args.target:
        found, devices, config = _audit_for_target(args)
    else:
        from jaxdist.launch.distributed.process_group import process_group
        from jaxdist.launch.training.job.request import JobRequest
        from jaxdist.launch.training.job.setup import settle

        request = JobRequest(experiment=args.experiment, overrides=args.overrides)
        return show_audit(args, settle(request, process_group()), warns=args.warn)
    return _show(args, found, devices, warns=args.warn or config.audit == "warn")


def show_audit(args: Namespace, job: "Job", *, warns: bool = False) -> int:
    """Audit the step of a job and print it; returns the exit code.

    Args:
        args: `json`, and the words that were typed.
        job: settled on the devices that are here.
        warns: whether a difference is said, and no error.

    Raises:
        AuditError: the first difference from the plan, after everything was printed.
    """
    # jax sees the devices that were just prepared.
    from jaxdist.launch.analysis.audit import audit

    found = audit(job.resolved.experiment, job.layout)
    warns = warns or job.config.audit == "warn"
    return _show(args, found, job.devices, warns=warns)


def _show(args: Namespace, found: "StepAudit", devices: str, *, warns: bool) -> int:
    if args.json:
        print_json(found.as_dict())
    else:
        words = " ".join((args.experiment, *args.overrides))
        _print_audit(console(), found, devices, words)
    for error in found.program.differences:
        # Everything was printed before: the error says only which difference was first.
        if not warns:
            raise error
        console(error=True).print(f"warn: {error}", soft_wrap=True)
    return 0


def _audit_for_target(args: Namespace) -> "tuple[StepAudit, str, Experiment]":
    """Compile the step for the devices of a target, which need not be here."""
    from jaxdist.launch.config.resolve import resolve_config
    from jaxdist.meshes.targets.compilers import prepare_compilation
    from jaxdist.meshes.targets.target import parse_target

    target = parse_target(args.target)
    prepare_compilation(target)
    resolved = resolve_config(args.experiment, args.overrides)

    from jaxdist.launch.analysis.audit import audit
    from jaxdist.launch.analysis.target_compile import lay_out_on_target

    layout = lay_out_on_target(resolved, target)
    found = audit(resolved.experiment, layout)
    return found, str(target), resolved.config


def _print_audit(
    out: "Console", audited: "StepAudit", devices: str, words: str
) -> None:
    from jaxdist.launch.terminal.run_summary import pluralize
    from jaxdist.launch.training.console_reporter import audit_line

    program, memory = audited.program, audited.memory
    out.print(f"{audited.experiment}    {program.layout.plan.title}    {devices}")
    gathers = pluralize(len(audited.unplanned_all_gathers), "unplanned all-gather")
    out.print(f"  audit    {audit_line(program)}, {gathers}\n", soft_wrap=True)
    _print_collectives(out, audited)

    # The layers that work most: on one device, by the plan, and on a device.
    shares = sorted(audited.work_shares, key=lambda row: -row.whole)
    # A column has one unit, that of its largest number, so that numbers compare.
    work = NumberColumn(max((row.whole for row in shares), default=0), "FLOP")
    heads = (f"one device, {work.unit}", "planned", "a device", "share", "repeats")
    table = make_table("layer", *heads, right=heads)
    for row in shares[: 2 * _MAX_ROWS]:
        planned = program.layout.ledger.layer_flops.get(row.layer)
        table.add_row(
            row.layer or "loss, optimizer, the rest",
            work.format(row.whole),
            "" if planned is None else work.format(planned),
            work.format(row.device),
            format_percent(row.share, 2),
            f"{row.repeats:.2f}",
        )
    print_table(out, table)
    parts = [
        f"{name} {format_size(n)}" for name, n in memory.items() if name != "total"
    ]
    total = format_size(memory["total"])
    out.print(f"  memory   {total} a device: {', '.join(parts)}", soft_wrap=True)
    whole = sum(row.whole for row in shares)
    here = sum(row.device for row in shares)
    out.print(
        f"  work     {format_size(here, 'FLOP')} a device, "
        f"{format_percent(here / max(whole, 1), 2)} of one "
        f"device's {format_size(whole, 'FLOP')}; XLA counts "
        f"{format_size(audited.xla_flops, 'FLOP')}\n",
        soft_wrap=True,
    )
    print_next_commands(out, f"jaxdist audit {words} --json", f"jaxdist train {words}")


def _print_collectives(out: "Console", audited: "StepAudit") -> None:
    """Print what a step moves by kind and axes, by layer, and between steps."""
    program, columns = audited.program, ("ledger", "program", "sent")
    if rows := program.audit_rows:
        size = NumberColumn(max(max(row.ledger, row.program) for row in rows), "B")
        right = ("count", *(f"{name}, {size.unit}" for name in columns))
        table = make_table("collective", "axes", *right, right=right)
        for row in rows:
            # Devices of a collective that are no axes of the mesh have no name.
            axes = " x ".join(row.axes) or "unknown devices"
            sizes = (size.format(n) for n in (row.ledger, row.program, row.wire))
            table.add_row(row.kind, axes, format_count(row.count), *sizes)
        print_table(out, table)
        for row in rows:
            if row.program != row.equivalent:
                axes = " x ".join(row.axes) or "unknown devices"
                out.print(
                    f"  the compiler sends {row.kind} over {axes} in another form: "
                    f"{format_size(row.program)} for {format_size(row.equivalent)}",
                    soft_wrap=True,
                )
        # The collectives above are summed by axes; these say which layer they are for.
        ledger = sorted(program.layout.ledger.rows, key=lambda row: -row.payload)
        size = NumberColumn(max((row.payload for row in ledger), default=0), "B")
        head = f"ledger, {size.unit}"
        table = make_table("largest", "layer", "axes", head, right=(head,))
        for line in ledger[:_MAX_ROWS]:
            axes, moved = " x ".join(line.axes), size.format(line.payload)
            table.add_row(line.what, line.layer, axes, moved)
        print_table(out, table)
    if joins := [(o.sync, row) for o in program.outer_steps for row in o.audit_rows]:
        size = NumberColumn(max(row.ledger for _, row in joins), "B")
        heads = (f"{name}, {size.unit}" for name in columns)
        right = ("after step", "of every", *heads)
        table = make_table("outer step", "axes", *right, right=right)
        for sync, row in joins:
            when = format_count(sync.step_in_period), format_count(sync.sync_interval)
            sizes = (size.format(n) for n in (row.ledger, row.program, row.wire))
            table.add_row(row.kind, " x ".join(row.axes), *when, *sizes)
        print_table(out, table)
