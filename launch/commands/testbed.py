"""`jaxdist testbed`: hosts in a box, made, used and removed by one command each."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.launch.arguments import Parser, add_patience, add_program

if TYPE_CHECKING:
    from jaxdist.launch.testbed import Hosts
    from jaxdist.launch.together import Task

summary = "make several hosts in this machine, on links of a given rate"


def add_arguments(parser: Parser) -> None:
    """Take what to do, and with how many hosts."""
    parser.usage = "jaxdist testbed up|status|run|down [options] [-- PROGRAM ...]"
    parser.add_argument(
        "action",
        choices=("up", "status", "run", "down"),
        help="up: make hosts; status: their links, and what they have counted; "
        "run: one process a host; down: remove all of it, also what a crash left",
    )
    parser.add_argument(
        "--hosts", type=int, default=4, metavar="N", help="up: how many (4)"
    )
    parser.add_argument(
        "--rate", help="up: of each link, both ways: 200mbit (no limit)"
    )
    parser.add_argument(
        "--devices-per-process",
        type=int,
        metavar="N",
        help="run: fake devices of each (the plan's, dealt out)",
    )
    add_patience(parser, "run: ")
    add_program(parser)


def run(args: Namespace) -> int:
    """Do one of the four."""
    actions = {"up": _up, "status": _status, "run": _run, "down": _down}
    return actions[args.action](args)


def _up(args: Namespace) -> int:
    from jaxdist.launch.standing import up

    _show(up(args.hosts, args.rate))
    return 0


def _status(args: Namespace) -> int:
    from jaxdist.launch.standing import standing

    _show(standing())
    return 0


def _run(args: Namespace) -> int:
    from jaxdist.launch.cli import command_names
    from jaxdist.launch.local import Local
    from jaxdist.launch.request import command_of
    from jaxdist.launch.standing import standing
    from jaxdist.launch.supervise import patience, run_supervised

    wanted, hosts = patience(args.restarts, args.grace), standing()
    command = command_of(args.program, command_names())

    def attempt(number: int) -> "list[Task]":
        each = Local(
            command=command,
            count=hosts.count,
            devices=args.devices_per_process,
            coordinator=hosts.coordinator(number),
        )
        return hosts.inside(each.tasks(os.environ))

    return run_supervised(attempt, wanted)


def _down(args: Namespace) -> int:
    from jaxdist.launch.opening import many
    from jaxdist.launch.standing import down

    gone = [name for name in down() if not name.endswith("-switch")]
    said = f"removed: {many(len(gone), 'host')}; nothing is left"
    sys.stdout.write(f"testbed   {said if gone else 'there was none'}\n")
    return 0


def _show(hosts: "Hosts") -> None:
    """Print the hosts, their links, and what is to be done with them."""
    from jaxdist.core.units import size
    from jaxdist.launch.console import console, print_next, print_table, table
    from jaxdist.launch.opening import many

    out, rate = console(), hosts.rate or "no limit"
    out.print(f"testbed   {many(hosts.count, 'host')} on one switch, {rate} each way\n")
    rows = table("host", "address", "sent", "received", right=("sent", "received"))
    for rank, counter in enumerate(hosts.counters()):
        bytes_ = size(counter.sent), size(counter.received)
        rows.add_row(f"h{rank}", hosts.address(rank), *bytes_)
    print_table(out, rows)
    print_next(out, "jaxdist testbed run -- train digits", "jaxdist testbed down")
