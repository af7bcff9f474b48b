"""`jaxdist testbed`: emulated hosts, made, used and removed by one command each."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from jaxdist.core.text.formatting import format_size
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.cli.restart_options import (
    add_restart_options,
    feasible_counts_of_program,
    reject_rejoin_option,
)
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_next_commands,
    print_table,
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
example = ""


def add_arguments(parser: CommandParser) -> None:
    """Take what to do, and with which hosts."""
    up = parser.add_form("up", "make hosts", example="--hosts 4 --rate 200mbit")
    add = up.add_argument
    add("--hosts", type=int, default=4, metavar="N", help="how many (4)")
    add("--rate", help="of each link, both ways: 200mbit (no limit)")
    add("--delay", help="of each packet: 1ms, where the kernel has netem (none)")

    status = parser.add_form(
        "status", "the links of hosts, and what they have counted", example=""
    )

    start = parser.add_form(
        "run", "run a program, one process a host", example="-- train digits"
    )
    add = start.add_argument
    add(
        "--devices-per-process",
        type=int,
        metavar="N",
        help="virtual CPU devices of each (the plan's, divided among the processes)",
    )
    add(
        "-n",
        metavar="N[:M]",
        help="on so many of the hosts; 2:4 continues with 2 where others are lost, and "
        "takes them back (all)",
    )
    add_restart_options(start, rejoin=True)
    start.add_program()

    fail = parser.add_form("fail", "inject a fault into a host", example="h1 --cut")
    # One fault at a time: `mend` undoes whatever was done to the host.
    fault = fail.add_mutually_exclusive_group(required=True)
    for how, what in _FAULTS.items():
        fault.add_argument(
            f"--{how}", action="store_const", const=how, dest="fault", help=what
        )
    fault.add_argument("--slow", metavar="RATE", help="its link has this rate")
    fail.add_argument(
        "--at-step",
        type=int,
        metavar="N",
        help="when the run on the hosts has done so many steps (at once)",
    )

    mend = parser.add_form("mend", "undo the faults of a host", example="h1")
    down = parser.add_form(
        "down", "remove all of it, also what a crash left", example=""
    )
    for form in (fail, mend):
        form.add_argument("host", metavar="HOST", help="which one: h0, h1, ...")
    for form, act in {
        **{up: _create, status: _status, start: _run},
        **{fail: _inject_fault, mend: _clear_faults, down: _remove},
    }.items():
        form.set_defaults(act=act)
        form.add_argument(
            "--name",
            default=DEFAULT_NAME,
            help=f"which testbed, where there are several ({DEFAULT_NAME})",
        )


def run(args: Namespace) -> int:
    """Do one of them."""
    return int(args.act(args))


def _create(args: Namespace) -> int:
    from jaxdist.launch.testbed.manager import create_testbed

    hosts = create_testbed(args.hosts, args.rate, args.delay, name=args.name)
    return _print_hosts(hosts, args.name)


def _status(args: Namespace) -> int:
    from jaxdist.launch.testbed.manager import load_testbed

    return _print_hosts(load_testbed(args.name), args.name)


def _run(args: Namespace) -> int:
    from jaxdist.launch.cli.main import command_names
    from jaxdist.launch.launchers.elastic.process_range import parse_process_range
    from jaxdist.launch.launchers.elastic.supervisor import run_elastic_from_args
    from jaxdist.launch.launchers.local import LocalLaunch
    from jaxdist.launch.launchers.processes.restart import (
        restart_policy,
        run_with_restarts,
    )
    from jaxdist.launch.launchers.program import program_command
    from jaxdist.launch.testbed.host_pool import EmulatedPool
    from jaxdist.launch.testbed.manager import load_testbed

    # The hosts are looked up first: without root there are none, whatever is run.
    policy, hosts = restart_policy(args.restarts, args.grace), load_testbed(args.name)
    command = program_command(args.program, command_names())
    devices = args.devices_per_process
    if args.n is not None:
        span = parse_process_range(args.n, hosts.num_hosts)
        pool = EmulatedPool(
            testbed=hosts,
            command=command,
            planned_processes=span.max_processes,
            devices_per_process=devices,
        )
        return run_elastic_from_args(
            pool,
            feasible_counts_of_program(args.program, span),
            restarts=args.restarts,
            grace=args.grace,
            rejoin_after=args.rejoin_after,
        )
    reject_rejoin_option(args.rejoin_after)

    def attempt(number: int) -> "list[ProcessSpec]":
        # Another port each time: the last coordinator's may not be free yet.
        launch = LocalLaunch(
            command=command,
            num_processes=hosts.num_hosts,
            devices_per_process=devices,
            coordinator=hosts.coordinator(number),
        )
        return hosts.place_processes(launch.process_specs(os.environ))

    return run_with_restarts(attempt, policy)


def _inject_fault(args: Namespace) -> int:
    from jaxdist.launch.testbed import faults
    from jaxdist.launch.testbed.link_shaping import parse_link_rate
    from jaxdist.launch.testbed.manager import load_testbed
    from jaxdist.launch.testbed.run_progress import wait_for_step

    # What is wrong with the words is said before a step is waited for.
    if args.slow is not None:
        parse_link_rate(args.slow)
    hosts = load_testbed(args.name)
    rank = faults.parse_host(hosts, args.host)
    if args.at_step is not None:
        wait_for_step(hosts, args.at_step)
    if args.slow is not None:
        done = faults.limit_link_rate(hosts, rank, args.slow)
    elif args.fault == "cut":
        done = faults.cut_link(hosts, rank)
    else:
        done = faults.signal_host(hosts, rank, args.fault)
    then = f"jaxdist testbed mend {args.host}{name_option(args.name)}"
    return _print_action(f"{args.host}: {done}", then)


def _clear_faults(args: Namespace) -> int:
    from jaxdist.launch.testbed import faults
    from jaxdist.launch.testbed.manager import load_testbed

    hosts = load_testbed(args.name)
    done = faults.clear_faults(hosts, faults.parse_host(hosts, args.host))
    then = f"jaxdist testbed status{name_option(args.name)}"
    return _print_action(f"{args.host}: {done}", then)


def _print_action(message: str, next_command: str) -> int:

    out = console()
    out.print(f"testbed   {message}")
    print_next_commands(out, next_command)
    return 0


def _remove(args: Namespace) -> int:
    from jaxdist.launch.terminal.run_summary import pluralize
    from jaxdist.launch.testbed.manager import remove_testbed

    # The switch is a network namespace too, and no host.
    gone = [name for name in remove_testbed(args.name) if not name.endswith("-switch")]
    said = f"removed: {pluralize(len(gone), 'host')}; nothing is left"
    sys.stdout.write(f"testbed   {said if gone else 'there was none'}\n")
    return 0


def _print_hosts(hosts: "EmulatedCluster", name: str) -> int:
    """Print the hosts, their links, and what is to be done with them."""
    from jaxdist.launch.terminal.run_summary import pluralize
    from jaxdist.launch.testbed.health import host_health

    out, rate = console(), hosts.rate or "no limit"
    count = pluralize(hosts.num_hosts, "host")
    out.print(f"testbed   {count} on one switch, {rate} each way\n")
    heads = ("host", "address", "sent", "received", "link")
    rows = make_table(*heads, right=("sent", "received"))
    # Counters of the hosts' interfaces, headers included, since `up`.
    for rank, counter in enumerate(hosts.read_counters()):
        sizes = format_size(counter.tx_bytes), format_size(counter.rx_bytes)
        state = host_health(hosts, rank)
        rows.add_row(f"h{rank}", hosts.address(rank), *sizes, state)
    print_table(out, rows)
    words = name_option(name)
    print_next_commands(
        out,
        f"jaxdist testbed run{words} -- train digits",
        f"jaxdist testbed down{words}",
    )
    return 0
