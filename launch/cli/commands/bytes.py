"""`jaxdist bytes`: what a device sends in a step: planned, written, and compiled."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_or_step,
    add_json_option,
)

if TYPE_CHECKING:
    from jaxdist.collectives.meter import TrafficReport
    from jaxdist.launch.analysis.step_traffic import OuterStepTraffic
    from jaxdist.launch.analysis.wire_traffic import WireTraffic

summary = "count the bytes a step sends: by formula, as written, as compiled"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides, or a script and the name of its step."""
    add_experiment_or_step(parser)
    parser.add_argument(
        "--wire",
        action="store_true",
        help="also run the step, a host in a box for each device, and read what their "
        "interfaces count (Linux, root)",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Compile, count, print."""
    from jaxdist.launch.analysis.user_step import load_user_step, reject_overrides

    found = load_user_step(args.experiment)
    if found is None:
        return _count_experiment(args)
    from jaxdist.partition.external_step import bytes_of

    reject_overrides("bytes", args.experiment, args.overrides)
    if args.wire:
        raise BadInput(
            "the step of a script is not run",
            rule="hosts in a box run the step of an experiment",
            values=f"--wire {args.experiment}",
            remedy=f"jaxdist bytes {args.experiment}",
        )
    step, given = found
    return _print_traffic(bytes_of(step, *given), None, args, args.experiment)


def _count_experiment(args: Namespace) -> int:
    """Count the bytes of an experiment's step."""
    from jaxdist.launch.analysis.wire_traffic import (
        check_wire_traffic,
        measure_wire_traffic,
    )
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.training.job.settle import JobRequest, settle

    request = JobRequest(experiment=args.experiment, overrides=args.overrides)
    job = settle(request, process_group())
    if args.wire:
        check_wire_traffic(job.plan)

    # From here on jax is imported: it sees the devices that were just prepared.
    from jaxdist.launch.analysis.step_traffic import outer_step_traffic, step_traffic

    found, outer = step_traffic(job.layout), outer_step_traffic(job.layout)
    words, devices = (args.experiment, *args.overrides), job.plan.mesh.devices
    counted = measure_wire_traffic(words, devices) if args.wire else None
    head = f"{args.experiment}    {job.plan.title}    {job.devices}"
    return _print_traffic(found, counted, args, head, outer)


def _print_traffic(
    found: "TrafficReport",
    wire: "WireTraffic | None",
    args: Namespace,
    head: str,
    outer: "tuple[OuterStepTraffic, ...]" = (),
) -> int:
    from jaxdist.launch.terminal.console import print_json

    if args.json:
        sent = {} if wire is None else {"interfaces": list(wire.host_bytes)}
        more = _outer_sync_tree(found, outer) if outer else {}
        print_json({"experiment": args.experiment, **found.tree(), **sent, **more})
    else:
        sys.stdout.write(f"{head}\n\n{found}\n")
        sys.stdout.write("" if wire is None else _interface_text(found, wire))
        sys.stdout.write(_outer_sync_text(found, outer) if outer else "")
    return 0


def _outer_sync_tree(
    found: "TrafficReport", outer: "tuple[OuterStepTraffic, ...]"
) -> dict[str, Any]:
    from jaxdist.launch.analysis.step_traffic import mean_step_bytes

    steps = [each.as_dict() for each in outer]
    return {"outer_steps": steps, "mean": mean_step_bytes(found, outer)}


def _outer_sync_text(
    found: "TrafficReport", outer: "tuple[OuterStepTraffic, ...]"
) -> str:
    """Lay out what outer steps send, and what that is by the step."""
    from jaxdist.core.text.formatting import format_count
    from jaxdist.launch.analysis.step_traffic import mean_step_bytes

    mean = round(mean_step_bytes(found, outer)["compiled"])
    tables = [f"\n  {each.title}\n\n{each.traffic}\n" for each in outer]
    return (
        "".join(tables)
        + f"\n  a step sends {format_count(mean)} B on average, compiled\n"
    )


def _interface_text(found: "TrafficReport", wire: "WireTraffic") -> str:
    """Say what the interfaces counted, beside the compiled program."""
    from jaxdist.core.text.formatting import format_count

    mean, compiled = round(wire.mean_bytes), found.total("compiled")
    return (
        f"\n  interfaces   {format_count(mean)} B a host and step, headers included "
        f"({format_count(min(wire.host_bytes))} to "
        f"{format_count(max(wire.host_bytes))}): "
        f"{mean / compiled:.2f} of compiled\n"
    )
