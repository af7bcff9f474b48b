"""`jaxdist testbed`: hosts in a box, made, used and removed by one command each."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_back_after,
    add_patience,
    add_program,
)
from jaxdist.launch.testbed.manager import NAME, option

if TYPE_CHECKING:
    from jaxdist.launch.launchers.processes.group import ProcessSpec
    from jaxdist.launch.testbed.hosts import EmulatedCluster

_HARM: Final = {
    "cut": "its link is cut",
    "kill": "its processes are killed",
    "stop": "its processes are stopped, and say nothing any more",
}
summary = "make several hosts in this machine, on links of a given rate"


def add_arguments(parser: CommandParser) -> None:
    """Take what to do, and with how many hosts."""
    parser.usage = (
        "jaxdist testbed up|status|run|fail|mend|down [HOST] [options] [-- PROGRAM ...]"
    )
    parser.add_argument(
        "action",
        choices=("up", "status", "run", "fail", "mend", "down"),
        help="up: make hosts; status: their links, and what they have counted; "
        "run: one process a host; fail: do harm to a host; mend: undo it; "
        "down: remove all of it, also what a crash left",
    )
    parser.add_argument(
        "host", nargs="?", metavar="HOST", help="fail, mend: which one: h0, h1, ..."
    )
    parser.add_argument(
        "--name", default=NAME, help=f"which testbed, where there are several ({NAME})"
    )
    parser.add_argument(
        "--hosts", type=int, default=4, metavar="N", help="up: how many (4)"
    )
    parser.add_argument(
        "--rate", help="up: of each link, both ways: 200mbit (no limit)"
    )
    parser.add_argument(
        "--delay", help="up: of each packet: 1ms, where the kernel has netem (none)"
    )
    harm = parser.add_mutually_exclusive_group()
    for how, what in _HARM.items():
        harm.add_argument(f"--{how}", action="store_true", help=f"fail: {what}")
    harm.add_argument("--slow", metavar="RATE", help="fail: its link has this rate")
    parser.add_argument(
        "--at-step",
        type=int,
        metavar="N",
        help="fail: when the run on the hosts has done so many steps (at once)",
    )
    parser.add_argument(
        "--devices-per-process",
        type=int,
        metavar="N",
        help="run: fake devices of each (the plan's, dealt out)",
    )
    parser.add_argument(
        "-n",
        metavar="N[:M]",
        help="run: on so many of the hosts; 2:4 goes on with 2 where others are lost, "
        "and takes them back (all)",
    )
    add_patience(parser, "run: ")
    add_back_after(parser, "run: ")
    add_program(parser)


def run(args: Namespace) -> int:
    """Do one of them."""
    actions = {
        **{"up": _up, "status": _status, "run": _run, "down": _down},
        **{"fail": _fail, "mend": _mend},
    }
    check_host(args)
    return actions[args.action](args)


def check_host(args: Namespace) -> None:
    """Refuse a host that is missing, or stands where none is taken.

    Raises:
        BadInput: naming what to type.
    """
    takes = args.action in ("fail", "mend")
    if takes == (args.host is not None):
        return
    how = " --cut" if args.action == "fail" else ""
    remedy = f"jaxdist testbed {args.action}{f' h1{how}' if takes else ''}"
    raise BadInput(
        "no host is named" if takes else f"{args.action} is for all hosts",
        rule="fail and mend take a host: h0, h1, ...; the others take none",
        values=f"testbed {args.action} {args.host or ''}".rstrip(),
        remedy=remedy,
    )


def _up(args: Namespace) -> int:
    from jaxdist.launch.testbed.manager import up

    _show(up(args.hosts, args.rate, args.delay, name=args.name), args.name)
    return 0


def _status(args: Namespace) -> int:
    from jaxdist.launch.testbed.manager import standing

    _show(standing(args.name), args.name)
    return 0


def _run(args: Namespace) -> int:
    from jaxdist.launch.cli.launch_dispatch import refuse_back_after
    from jaxdist.launch.cli.main import command_names
    from jaxdist.launch.launchers.local import LocalLaunch
    from jaxdist.launch.launchers.processes.restart import patience, run_supervised
    from jaxdist.launch.launchers.program import command_of
    from jaxdist.launch.testbed.manager import standing

    wanted, hosts = patience(args.restarts, args.grace), standing(args.name)
    command = command_of(args.program, command_names())
    if args.n is not None:
        return _run_elastic(args, command, hosts)
    refuse_back_after(args.back_after)

    def attempt(number: int) -> "list[ProcessSpec]":
        each = LocalLaunch(
            command=command,
            count=hosts.count,
            devices=args.devices_per_process,
            coordinator=hosts.coordinator(number),
        )
        return hosts.inside(each.tasks(os.environ))

    return run_supervised(attempt, wanted)


def _run_elastic(
    args: Namespace, command: tuple[str, ...], hosts: "EmulatedCluster"
) -> int:
    from jaxdist.launch.cli.elastic_options import able_of
    from jaxdist.launch.launchers.elastic.process_range import read_span
    from jaxdist.launch.launchers.elastic.supervisor import run_asked
    from jaxdist.launch.testbed.host_pool import TestbedPool

    span = read_span(args.n, hosts.count)
    ground = TestbedPool(
        hosts=hosts,
        command=command,
        planned=span.most,
        devices=args.devices_per_process,
    )
    return run_asked(ground, able_of(args.program, span), args)


def _fail(args: Namespace) -> int:
    from jaxdist.launch.testbed import faults
    from jaxdist.launch.testbed.link_shaping import bits_per_second
    from jaxdist.launch.testbed.manager import standing
    from jaxdist.launch.testbed.run_progress import wait_for

    how = next((how for how in _HARM if getattr(args, how)), "slow")
    if how == "slow" and args.slow is None:
        raise BadInput(
            "nothing is to be done to this host",
            rule=f"fail takes --{', --'.join(_HARM)} or --slow RATE",
            remedy=f"jaxdist testbed fail {args.host} --cut{option(args.name)}",
        )
    if args.slow is not None:
        bits_per_second(args.slow)
    hosts = standing(args.name)
    rank = faults.rank_of(hosts, args.host)
    if args.at_step is not None:
        wait_for(hosts, args.at_step)
    if how == "slow":
        done = faults.slow(hosts, rank, args.slow)
    elif how == "cut":
        done = faults.cut(hosts, rank)
    else:
        done = faults.signalled(hosts, rank, how)
    then = f"jaxdist testbed mend {args.host}{option(args.name)}"
    return _said(f"{args.host}: {done}", then)


def _mend(args: Namespace) -> int:
    from jaxdist.launch.testbed import faults
    from jaxdist.launch.testbed.manager import standing

    hosts = standing(args.name)
    done = faults.mend(hosts, faults.rank_of(hosts, args.host))
    return _said(f"{args.host}: {done}", f"jaxdist testbed status{option(args.name)}")


def _said(what: str, then: str) -> int:
    from jaxdist.launch.terminal.console import console, print_next

    out = console()
    out.print(f"testbed   {what}")
    print_next(out, then)
    return 0


def _down(args: Namespace) -> int:
    from jaxdist.launch.terminal.run_header import many
    from jaxdist.launch.testbed.manager import down

    gone = [name for name in down(args.name) if not name.endswith("-switch")]
    said = f"removed: {many(len(gone), 'host')}; nothing is left"
    sys.stdout.write(f"testbed   {said if gone else 'there was none'}\n")
    return 0


def _show(hosts: "EmulatedCluster", name: str) -> None:
    """Print the hosts, their links, and what is to be done with them."""
    from jaxdist.core.text.formatting import size
    from jaxdist.launch.terminal.console import console, print_next, print_table, table
    from jaxdist.launch.terminal.run_header import many
    from jaxdist.launch.testbed.health import condition

    out, rate = console(), hosts.rate or "no limit"
    out.print(f"testbed   {many(hosts.count, 'host')} on one switch, {rate} each way\n")
    heads = ("host", "address", "sent", "received", "link")
    rows = table(*heads, right=("sent", "received"))
    for rank, counter in enumerate(hosts.counters()):
        bytes_ = size(counter.sent), size(counter.received)
        state = condition(hosts, rank)
        rows.add_row(f"h{rank}", hosts.address(rank), *bytes_, state)
    print_table(out, rows)
    words = option(name)
    print_next(
        out,
        f"jaxdist testbed run{words} -- train digits",
        f"jaxdist testbed down{words}",
    )
