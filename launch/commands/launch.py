"""`jaxdist launch HOW -- PROGRAM`: one program on several processes."""

import os
import sys
from argparse import Namespace

from jaxdist.launch.arguments import Parser, add_program

summary = "start a program on several processes, joined by jax.distributed"


def add_arguments(parser: Parser) -> None:
    """Take where to start, how many, and what."""
    parser.usage = "jaxdist launch local -n N [options] -- train EXPERIMENT ..."
    parser.add_argument("how", choices=("local",), help="local: on this machine")
    parser.add_argument(
        "-n", type=int, required=True, metavar="N", help="how many processes"
    )
    parser.add_argument(
        "--devices-per-process",
        type=int,
        metavar="N",
        help="fake devices of each (the plan's, dealt out; for other programs one)",
    )
    parser.add_argument(
        "--port", type=int, help="of loopback, where process 0 listens (a free one)"
    )
    parser.add_argument(
        "--print",
        action="store_true",
        dest="shows",
        help="print what would be started, and start nothing",
    )
    add_program(parser)


def run(args: Namespace) -> int:
    """Start the processes, show their lines, and wait."""
    from jaxdist.launch.cli import command_names
    from jaxdist.launch.local import local, run_local

    found = local(
        args.program,
        command_names(),
        count=args.n,
        devices=args.devices_per_process,
        port=args.port,
    )
    if args.shows:
        sys.stdout.write(found.text())
        return 0
    return run_local(found.tasks(os.environ))
