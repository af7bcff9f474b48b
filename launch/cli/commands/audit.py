"""`jaxdist audit`: what a compiled step moves and does, beside its plan."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_or_step,
    add_json_option,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jaxdist.launch.analysis.audit import StepAudit

summary = "hold a compiled step against its plan, without training"

_MAX_ROWS: Final = 5


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides, or a script and the name of its step."""
    add_experiment_or_step(parser)
    parser.add_argument(
        "--warn", action="store_true", help="exit with 0 whatever differs, and say it"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Audit, print what was found, and fail where that is not as it should be.

    Raises:
        AuditError: the first difference from the plan, after everything was printed.
    """
    from jaxdist.launch.analysis.user_step import load_user_step

    found = load_user_step(args.experiment)
    return _audit_experiment(args) if found is None else _audit_script(args, *found)


def _audit_script(args: Namespace, step: Any, step_args: tuple[Any, ...]) -> int:
    """Survey a step of the user's own."""
    from jaxdist.launch.analysis.user_step import reject_overrides
    from jaxdist.launch.terminal.console import print_json
    from jaxdist.partition.external_step import audit

    reject_overrides("audit", args.experiment, args.overrides)
    survey = audit(step, *step_args)
    if args.json:
        print_json(survey.tree())
    else:
        sys.stdout.write(f"{args.experiment}\n{survey}\n")
    return int(bool(survey.findings) and not args.warn)


def _audit_experiment(args: Namespace) -> int:
    """Audit an experiment's step."""
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.training.job.settle import JobRequest, settle

    request = JobRequest(experiment=args.experiment, overrides=args.overrides)
    job = settle(request, process_group())

    # From here on jax is imported: it sees the devices that were just prepared.
    from jaxdist.launch.analysis.audit import audit
    from jaxdist.launch.terminal.console import console, print_json

    found = audit(job)
    if args.json:
        print_json(found.as_dict())
    else:
        words = " ".join((args.experiment, *args.overrides))
        _print_audit(console(), found, job.devices, words)
    return _report_differences(found, warn=args.warn or job.config.audit == "warn")


def _report_differences(audited: "StepAudit", *, warn: bool) -> int:
    """Raise the first difference, or warn of all of them."""
    from jaxdist.launch.terminal.console import console

    for error in audited.program.differences:
        if not warn:
            raise error
        console(error=True).print(f"warn: {error}", soft_wrap=True)
    return 0


def _print_audit(
    out: "Console", audited: "StepAudit", devices: str, words: str
) -> None:
    from jaxdist.core.text.formatting import format_size
    from jaxdist.launch.terminal.console import print_next_commands, print_table
    from jaxdist.launch.terminal.run_header import pluralize
    from jaxdist.launch.training.console_reporter import audit_line

    program, memory = audited.program, audited.memory
    out.print(f"{audited.experiment}    {program.layout.plan.title}    {devices}")
    gathers = pluralize(len(audited.unplanned_all_gathers), "unplanned all-gather")
    out.print(f"  audit    {audit_line(program)}, {gathers}\n", soft_wrap=True)
    if program.audit_rows:
        print_table(out, _collective_table(audited))
        print_table(out, _largest_traffic_table(audited))
    if program.outer_steps:
        print_table(out, _outer_sync_table(audited))
    print_table(out, _flops_table(audited))
    parts = ", ".join(
        f"{name} {format_size(memory[name])}" for name in list(memory)[:-1]
    )
    out.print(
        f"  memory   {format_size(memory['total'])} a device: {parts}", soft_wrap=True
    )
    out.print(f"  work     {_flops_line(audited)}\n", soft_wrap=True)
    again = [f"jaxdist audit {words} --json", f"jaxdist train {words}"]
    print_next_commands(out, *again)


def _collective_table(audited: "StepAudit") -> "Table":
    """Lay out a row for each kind of collective and set of axes."""
    from jaxdist.core.text.formatting import format_count
    from jaxdist.launch.terminal.console import make_table
    from jaxdist.launch.terminal.number_column import NumberColumn

    rows = audited.program.audit_rows
    unit = NumberColumn(max(max(row.ledger, row.program) for row in rows), "B")
    heads = [f"{name}, {unit.unit}" for name in ("ledger", "program", "sent")]
    made = make_table("collective", "axes", "count", *heads, right=("count", *heads))
    for row in rows:
        axes = " x ".join(row.axes) or "unknown devices"
        sizes = [unit.format(n) for n in (row.ledger, row.program, row.wire)]
        made.add_row(row.kind, axes, format_count(row.count), *sizes)
    return made


def _outer_sync_table(audited: "StepAudit") -> "Table":
    """Lay out what replicas move between steps."""
    from jaxdist.core.text.formatting import format_count
    from jaxdist.launch.terminal.console import make_table
    from jaxdist.launch.terminal.number_column import NumberColumn

    rows = [
        (join.sync, row)
        for join in audited.program.outer_steps
        for row in join.audit_rows
    ]
    unit = NumberColumn(max(row.ledger for _, row in rows), "B")
    heads = [f"{name}, {unit.unit}" for name in ("ledger", "program", "sent")]
    right = ("after step", "of every", *heads)
    made = make_table("outer step", "axes", *right, right=right)
    for sync, row in rows:
        sizes = [unit.format(n) for n in (row.ledger, row.program, row.wire)]
        made.add_row(
            row.kind,
            " x ".join(row.axes),
            format_count(sync.step_in_period),
            format_count(sync.sync_interval),
            *sizes,
        )
    return made


def _largest_traffic_table(audited: "StepAudit") -> "Table":
    """Lay out the rows of the ledger that move most."""
    from jaxdist.launch.terminal.console import make_table
    from jaxdist.launch.terminal.number_column import NumberColumn

    rows = sorted(audited.program.layout.ledger.rows, key=lambda row: -row.payload)[
        :_MAX_ROWS
    ]
    unit = NumberColumn(max((row.payload for row in rows), default=0), "B")
    head = f"ledger, {unit.unit}"
    made = make_table("largest", "layer", "axes", head, right=(head,))
    for row in rows:
        axes, moved = " x ".join(row.axes), unit.format(row.payload)
        made.add_row(row.what, row.layer, axes, moved)
    return made


def _flops_table(audited: "StepAudit") -> "Table":
    """Lay out the layers that work most: on one device, planned, and on a device."""
    from jaxdist.core.text.formatting import format_percent
    from jaxdist.launch.terminal.console import make_table
    from jaxdist.launch.terminal.number_column import NumberColumn

    rows = sorted(audited.work_shares, key=lambda row: -row.whole)
    unit = NumberColumn(max((row.whole for row in rows), default=0), "FLOP")
    heads = (f"one device, {unit.unit}", "planned", "a device", "share", "repeats")
    made = make_table("layer", *heads, right=heads)
    for row in rows[: 2 * _MAX_ROWS]:
        planned = audited.program.layout.ledger.layer_flops.get(row.layer)
        made.add_row(
            row.layer or "loss, optimizer, the rest",
            unit.format(row.whole),
            "" if planned is None else unit.format(planned),
            unit.format(row.device),
            format_percent(row.share, 2),
            f"{row.repeats:.2f}",
        )
    return made


def _flops_line(audited: "StepAudit") -> str:
    from jaxdist.core.text.formatting import format_percent, format_size

    whole = sum(row.whole for row in audited.work_shares)
    here = sum(row.device for row in audited.work_shares)
    return (
        f"{format_size(here, 'FLOP')} a device, "
        f"{format_percent(here / max(whole, 1), 2)} of one "
        f"device's {format_size(whole, 'FLOP')}; XLA counts "
        f"{format_size(audited.xla_flops, 'FLOP')}"
    )
