"""`jaxdist bytes`: what a device sends in a step: planned, written, and compiled."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import CommandParser, add_json, add_step

if TYPE_CHECKING:
    from jaxdist.collectives.meter import TrafficReport
    from jaxdist.launch.analysis.step_traffic import OuterStepTraffic
    from jaxdist.launch.analysis.wire_traffic import WireTraffic

summary = "count the bytes a step sends: by formula, as written, as compiled"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides, or a script and the name of its step."""
    add_step(parser)
    parser.add_argument(
        "--wire",
        action="store_true",
        help="also run the step, a host in a box for each device, and read what their "
        "interfaces count (Linux, root)",
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Compile, count, print."""
    from jaxdist.launch.analysis.user_step import refuse_keys, script_step

    found = script_step(args.experiment)
    if found is None:
        return _experiment(args)
    from jaxdist.partition.external_step import bytes_of

    refuse_keys("bytes", args.experiment, args.overrides)
    if args.wire:
        raise BadInput(
            "the step of a script is not run",
            rule="hosts in a box run the step of an experiment",
            values=f"--wire {args.experiment}",
            remedy=f"jaxdist bytes {args.experiment}",
        )
    step, given = found
    return _print(bytes_of(step, *given), None, args, args.experiment)


def _experiment(args: Namespace) -> int:
    """Count the bytes of an experiment's step."""
    from jaxdist.launch.analysis.wire_traffic import check_wire, wire
    from jaxdist.launch.config.resolve import resolve
    from jaxdist.launch.devices.prepare import prepare_devices

    resolved = resolve(args.experiment, args.overrides)
    prepared = prepare_devices(resolved.config.plan, explicit=resolved.plan_is_explicit)
    devices = prepared.plan.mesh.devices
    if args.wire:
        check_wire(prepared.plan)

    # From here on jax is imported: it sees the devices that were just prepared.
    from jaxdist.launch.analysis.step_traffic import layout_of, meter, meter_outer

    layout = layout_of(resolved, prepared)
    found, outer = meter(layout), meter_outer(layout)
    words = args.experiment, *args.overrides
    counted = wire(words, devices) if args.wire else None
    head = f"{resolved.source}    {prepared.plan.title}    {prepared.title}"
    return _print(found, counted, args, head, outer)


def _print(
    found: "TrafficReport",
    wire: "WireTraffic | None",
    args: Namespace,
    head: str,
    outer: "tuple[OuterStepTraffic, ...]" = (),
) -> int:
    from jaxdist.launch.terminal.console import print_json

    if args.json:
        sent = {} if wire is None else {"interfaces": list(wire.sent)}
        more = _outer_tree(found, outer) if outer else {}
        print_json({"experiment": args.experiment, **found.tree(), **sent, **more})
    else:
        sys.stdout.write(f"{head}\n\n{found}\n")
        sys.stdout.write("" if wire is None else _counted(found, wire))
        sys.stdout.write(_outer_text(found, outer) if outer else "")
    return 0


def _outer_tree(
    found: "TrafficReport", outer: "tuple[OuterStepTraffic, ...]"
) -> dict[str, Any]:
    from jaxdist.launch.analysis.step_traffic import mean_bytes

    steps = [each.tree() for each in outer]
    return {"outer_steps": steps, "mean": mean_bytes(found, outer)}


def _outer_text(found: "TrafficReport", outer: "tuple[OuterStepTraffic, ...]") -> str:
    """Lay out what outer steps send, and what that is by the step."""
    from jaxdist.core.text.formatting import count
    from jaxdist.launch.analysis.step_traffic import mean_bytes

    mean = round(mean_bytes(found, outer)["compiled"])
    tables = [f"\n  {each.title}\n\n{each.meter}\n" for each in outer]
    return "".join(tables) + f"\n  a step sends {count(mean)} B on average, compiled\n"


def _counted(found: "TrafficReport", wire: "WireTraffic") -> str:
    """Say what the interfaces counted, beside the compiled program."""
    from jaxdist.core.text.formatting import count

    mean, compiled = round(wire.mean), found.total("compiled")
    return (
        f"\n  interfaces   {count(mean)} B a host and step, headers included "
        f"({count(min(wire.sent))} to {count(max(wire.sent))}): "
        f"{mean / compiled:.2f} of compiled\n"
    )
