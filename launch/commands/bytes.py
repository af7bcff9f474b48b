"""`jaxdist bytes`: what a device sends in a step: planned, written, and compiled."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.launch.arguments import Parser, add_json

if TYPE_CHECKING:
    from jaxdist.collectives.meter import Meter

summary = "count the bytes a step sends: by formula, as written, as compiled"


def add_arguments(parser: Parser) -> None:
    """Take an experiment and overrides, or a script and the name of its step."""
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="a name of `jaxdist experiments`, a file my_experiment.py, or "
        "my_script.py:step for a jitted function of your own with its `args`",
    )
    parser.add_argument(
        "overrides",
        metavar="key.sub=value",
        nargs="*",
        default=(),
        help="change a value; `jaxdist config EXPERIMENT` lists the keys",
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Compile, count, print."""
    from jaxdist.launch.script import refuse_keys, script_step

    found = script_step(args.experiment)
    if found is None:
        return _experiment(args)
    from jaxdist.partition.foreign import bytes_of

    refuse_keys("bytes", args.experiment, args.overrides)
    step, given = found
    return _print(bytes_of(step, *given), args, args.experiment)


def _experiment(args: Namespace) -> int:
    """Count the bytes of an experiment's step."""
    from jaxdist.launch.devices import prepare_devices
    from jaxdist.launch.resolve import resolve

    resolved = resolve(args.experiment, args.overrides)
    prepared = prepare_devices(resolved.config.plan, explicit=resolved.plan_is_explicit)

    # From here on jax is imported: it sees the devices that were just prepared.
    from jaxdist.launch.metering import layout_of, meter

    head = f"{resolved.source}    {prepared.plan.title}    {prepared.title}"
    return _print(meter(layout_of(resolved, prepared)), args, head)


def _print(found: "Meter", args: Namespace, head: str) -> int:
    from jaxdist.launch.console import print_json

    if args.json:
        print_json({"experiment": args.experiment, **found.tree()})
    else:
        sys.stdout.write(f"{head}\n\n{found}\n")
    return 0
