"""`jaxdist testbed`: hosts in a box, made, used and removed by one command each."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_program_arguments,
    add_rejoin_option,
    add_restart_options,
)
from jaxdist.launch.testbed.manager import DEFAULT_NAME, name_option

if TYPE_CHECKING:
    from jaxdist.launch.launchers.processes.group import ProcessSpec
    from jaxdist.launch.testbed.hosts import EmulatedCluster

_FAULTS: Final = {
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
        "--name",
        default=DEFAULT_NAME,
        help=f"which testbed, where there are several ({DEFAULT_NAME})",
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
    for how, what in _FAULTS.items():
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
    add_restart_options(parser, "run: ")
    add_rejoin_option(parser, "run: ")
    add_program_arguments(parser)


def run(args: Namespace) -> int:
    """Do one of them."""
    actions = {
        **{"up": _create, "status": _status, "run": _run, "down": _remove},
        **{"fail": _inject_fault, "mend": _clear_faults},
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


def _create(args: Namespace) -> int:
    from jaxdist.launch.testbed.manager import create_testbed

    _print_hosts(
        create_testbed(args.hosts, args.rate, args.delay, name=args.name), args.name
    )
    return 0


def _status(args: Namespace) -> int:
    from jaxdist.launch.testbed.manager import load_testbed

    _print_hosts(load_testbed(args.name), args.name)
    return 0


def _run(args: Namespace) -> int:
    from jaxdist.launch.cli.launch_dispatch import reject_rejoin_option
    from jaxdist.launch.cli.main import command_names
    from jaxdist.launch.launchers.local import LocalLaunch
    from jaxdist.launch.launchers.processes.restart import (
        restart_policy,
        run_with_restarts,
    )
    from jaxdist.launch.launchers.program import program_command
    from jaxdist.launch.testbed.manager import load_testbed

    wanted, hosts = restart_policy(args.restarts, args.grace), load_testbed(args.name)
    command = program_command(args.program, command_names())
    if args.n is not None:
        return _run_elastic(args, command, hosts)
    reject_rejoin_option(args.back_after)

    def attempt(number: int) -> "list[ProcessSpec]":
        each = LocalLaunch(
            command=command,
            num_processes=hosts.num_hosts,
            devices_per_process=args.devices_per_process,
            coordinator=hosts.coordinator(number),
        )
        return hosts.place_processes(each.process_specs(os.environ))

    return run_with_restarts(attempt, wanted)


def _run_elastic(
    args: Namespace, command: tuple[str, ...], hosts: "EmulatedCluster"
) -> int:
    from jaxdist.launch.cli.elastic_options import feasible_counts_of_program
    from jaxdist.launch.launchers.elastic.process_range import parse_process_range
    from jaxdist.launch.launchers.elastic.supervisor import run_elastic_from_args
    from jaxdist.launch.testbed.host_pool import EmulatedPool

    span = parse_process_range(args.n, hosts.num_hosts)
    ground = EmulatedPool(
        testbed=hosts,
        command=command,
        planned_processes=span.max_processes,
        devices_per_process=args.devices_per_process,
    )
    return run_elastic_from_args(
        ground, feasible_counts_of_program(args.program, span), args
    )


def _inject_fault(args: Namespace) -> int:
    from jaxdist.launch.testbed import faults
    from jaxdist.launch.testbed.link_shaping import parse_link_rate
    from jaxdist.launch.testbed.manager import load_testbed
    from jaxdist.launch.testbed.run_progress import wait_for_step

    how = next((how for how in _FAULTS if getattr(args, how)), "slow")
    if how == "slow" and args.slow is None:
        raise BadInput(
            "nothing is to be done to this host",
            rule=f"fail takes --{', --'.join(_FAULTS)} or --slow RATE",
            remedy=f"jaxdist testbed fail {args.host} --cut{name_option(args.name)}",
        )
    if args.slow is not None:
        parse_link_rate(args.slow)
    hosts = load_testbed(args.name)
    rank = faults.parse_host(hosts, args.host)
    if args.at_step is not None:
        wait_for_step(hosts, args.at_step)
    if how == "slow":
        done = faults.limit_link_rate(hosts, rank, args.slow)
    elif how == "cut":
        done = faults.cut_link(hosts, rank)
    else:
        done = faults.signal_host(hosts, rank, how)
    then = f"jaxdist testbed mend {args.host}{name_option(args.name)}"
    return _print_action(f"{args.host}: {done}", then)


def _clear_faults(args: Namespace) -> int:
    from jaxdist.launch.testbed import faults
    from jaxdist.launch.testbed.manager import load_testbed

    hosts = load_testbed(args.name)
    done = faults.clear_faults(hosts, faults.parse_host(hosts, args.host))
    return _print_action(
        f"{args.host}: {done}", f"jaxdist testbed status{name_option(args.name)}"
    )


def _print_action(message: str, next_command: str) -> int:
    from jaxdist.launch.terminal.console import console, print_next_commands

    out = console()
    out.print(f"testbed   {message}")
    print_next_commands(out, next_command)
    return 0


def _remove(args: Namespace) -> int:
    from jaxdist.launch.terminal.run_header import pluralize
    from jaxdist.launch.testbed.manager import remove_testbed

    gone = [name for name in remove_testbed(args.name) if not name.endswith("-switch")]
    said = f"removed: {pluralize(len(gone), 'host')}; nothing is left"
    sys.stdout.write(f"testbed   {said if gone else 'there was none'}\n")
    return 0


def _print_hosts(hosts: "EmulatedCluster", name: str) -> None:
    """Print the hosts, their links, and what is to be done with them."""
    from jaxdist.core.text.formatting import format_size
    from jaxdist.launch.terminal.console import (
        console,
        make_table,
        print_next_commands,
        print_table,
    )
    from jaxdist.launch.terminal.run_header import pluralize
    from jaxdist.launch.testbed.health import host_health

    out, rate = console(), hosts.rate or "no limit"
    out.print(
        f"testbed   {pluralize(hosts.num_hosts, 'host')} on one switch, {rate} each "
        "way\n"
    )
    heads = ("host", "address", "sent", "received", "link")
    rows = make_table(*heads, right=("sent", "received"))
    for rank, counter in enumerate(hosts.read_counters()):
        bytes_ = format_size(counter.tx_bytes), format_size(counter.rx_bytes)
        state = host_health(hosts, rank)
        rows.add_row(f"h{rank}", hosts.address(rank), *bytes_, state)
    print_table(out, rows)
    words = name_option(name)
    print_next_commands(
        out,
        f"jaxdist testbed run{words} -- train digits",
        f"jaxdist testbed down{words}",
    )
