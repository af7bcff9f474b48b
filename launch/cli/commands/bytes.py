"""`jaxdist bytes`: what a device sends in a step: planned, written, and compiled."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)
from jaxdist.launch.terminal.console import print_json

if TYPE_CHECKING:
    from jaxdist.launch.analysis.step_traffic import StepTraffic
    from jaxdist.launch.analysis.wire_traffic import WireTraffic

summary = "count the bytes a step sends: planned, written, compiled"
example = "digits plan.reduce.algorithm=int8"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides, or a script and the name of its step."""
    add_experiment_arguments(parser, or_step=True)
    parser.add_argument(
        "--wire",
        action="store_true",
        help="also run the step, an emulated host for each device, and read what their "
        "interfaces count (Linux, root)",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Compile, count, print."""
    from jaxdist.launch.analysis.user_step import load_user_step, reject_overrides

    found = load_user_step(args.experiment)
    if found is not None:
        from jaxdist.inspect import bytes_of
        from jaxdist.launch.analysis.step_traffic import StepTraffic

        reject_overrides("bytes", args.experiment, args.overrides)
        if args.wire:
            raise BadInput(
                "the step of a script is not run",
                rule="hosts in a box run the step of an experiment",
                values=f"--wire {args.experiment}",
                remedy=f"jaxdist bytes {args.experiment}",
            )
        step, given = found
        traffic = StepTraffic(step=bytes_of(step, *given), outer=())
        return _print_traffic(args, args.experiment, traffic, None)

    from jaxdist.launch.analysis.wire_traffic import (
        check_wire_traffic,
        measure_wire_traffic,
    )
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.training.job.request import JobRequest
    from jaxdist.launch.training.job.setup import settle

    request = JobRequest(experiment=args.experiment, overrides=args.overrides)
    job = settle(request, process_group())
    if args.wire:
        check_wire_traffic(job.plan)

    # From here on jax is imported: it sees the devices that were just prepared.
    from jaxdist.launch.analysis.step_traffic import count_step_traffic

    # The step is compiled here for fake devices; the hosts compile it again.
    traffic, wire = count_step_traffic(job.layout), None
    if args.wire:
        words = args.experiment, *args.overrides
        wire = measure_wire_traffic(words, job.plan.mesh.devices)
    title = f"{args.experiment}    {job.plan.title}    {job.devices}"
    return _print_traffic(args, title, traffic, wire)


def _print_traffic(
    args: Namespace, title: str, traffic: "StepTraffic", wire: "WireTraffic | None"
) -> int:

    step = traffic.step
    if args.json:
        tree = {"experiment": args.experiment, **step.tree()}
        if wire is not None:
            tree["interfaces"] = list(wire.host_bytes)
        if traffic.outer:
            tree["outer_steps"] = [each.as_dict() for each in traffic.outer]
            tree["mean"] = traffic.mean_bytes
        print_json(tree)
        return 0
    sys.stdout.write(f"{title}\n\n{step}\n")
    if wire is not None:
        mean, least, most = (
            format_count(round(count))
            for count in (wire.mean_bytes, min(wire.host_bytes), max(wire.host_bytes))
        )
        # Above 1 by the headers of packets, and by messages of the runtime itself.
        share = round(wire.mean_bytes) / step.total("compiled")
        sys.stdout.write(
            f"\n  interfaces   {mean} B a host and step, headers included "
            f"({least} to {most}): {share:.2f} of compiled\n"
        )
    for each in traffic.outer:
        sys.stdout.write(f"\n  {each.title}\n\n{each.traffic}\n")
    if traffic.outer:
        count = format_count(round(traffic.mean_bytes["compiled"]))
        sys.stdout.write(f"\n  a step sends {count} B on average, compiled\n")
    return 0
