"""`jaxdist launch HOW -- PROGRAM`: one program on several processes."""

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.arguments import Parser, add_patience, add_program

if TYPE_CHECKING:
    from jaxdist.launch.local import Local

summary = "start a program on several processes, joined by jax.distributed"

_TAKES: Final = {
    "local": {"-n", "--devices-per-process", "--port", "--restarts", "--grace"},
    "mpi": {"-n", "--hosts", "--devices-per-process", "--mpirun"},
    "ssh": {
        *("--hosts", "--devices-per-process", "--port", "--ssh"),
        *("--restarts", "--grace"),
    },
    "slurm": {"--nodes", "--processes-per-node", "--devices-per-process", "--sbatch"},
}
_NEEDS: Final = {
    "local": "-n 4",
    "mpi": "-n 4",
    "ssh": "--hosts node1,node2",
    "slurm": "--nodes 4",
}


def add_arguments(parser: Parser) -> None:
    """Take where to start, how many, and what."""
    parser.usage = (
        "jaxdist launch local|ssh|slurm|mpi [options] -- train EXPERIMENT ..."
    )
    parser.add_argument(
        "how",
        choices=tuple(_TAKES),
        help="local: on this machine; ssh: one process a host; slurm: as a job; "
        "mpi: under mpirun of Open MPI",
    )
    add = parser.add_argument
    add("-n", type=int, metavar="N", help="local, mpi: how many processes")
    add("--hosts", metavar="LIST", help="ssh, mpi: a,b,c or a file with a host a line")
    add("--ssh", metavar="WORDS", help="ssh: what begins a remote command (ssh)")
    add("--nodes", type=int, metavar="N", help="slurm: how many nodes")
    add(
        "--processes-per-node",
        type=int,
        metavar="N",
        help="slurm: processes a node, each with the GPU of its number (1, with all)",
    )
    add(
        "--sbatch",
        action="append",
        metavar="OPTION",
        help="slurm: an option of sbatch, as --sbatch=--time=2:00:00; any number",
    )
    add(
        "--mpirun",
        action="append",
        metavar="OPTION",
        help="mpi: an option of mpirun, as --mpirun=--oversubscribe; any number",
    )
    add(
        "--devices-per-process",
        type=int,
        metavar="N",
        help="fake devices of each (the plan's, dealt out)",
    )
    add("--port", type=int, help="where process 0 listens (local: a free one)")
    add_patience(parser, "local, ssh: ")
    add(
        "--print",
        action="store_true",
        dest="shows",
        help="print what would be started, and start nothing",
    )
    add_program(parser)


def run(args: Namespace) -> int:
    """Start the processes, show their lines, and wait; or submit them."""
    from jaxdist.launch.cli import command_names
    from jaxdist.launch.request import command_of

    check_options(args)
    command = command_of(args.program, command_names())
    ways = {"local": _local, "mpi": _mpi, "ssh": _ssh, "slurm": _slurm}
    return ways[args.how](args, command)


def check_options(args: Namespace) -> None:
    """Refuse options of another way to start, and the lack of the one that is needed.

    Raises:
        BadInput: naming the option.
    """
    names = sorted(set().union(*_TAKES.values()))
    given = [n for n in names if getattr(args, _field(n)) is not None]
    needed = _NEEDS[args.how]
    strange = [name for name in given if name not in _TAKES[args.how]]
    missing = needed.split()[0] not in given
    if strange or missing:
        wrong = f"{strange[0]} is given" if strange else f"{needed.split()[0]} is not"
        raise BadInput(
            f"launch {args.how} is not started like that",
            rule=f"{args.how} takes {', '.join(sorted(_TAKES[args.how]))}",
            values=wrong,
            remedy=f"jaxdist launch {args.how} {needed} -- train digits",
        )


def _field(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _local(args: Namespace, command: tuple[str, ...]) -> int:
    from jaxdist.launch.local import local
    from jaxdist.launch.supervise import patience, run_supervised

    def found() -> "Local":
        return local(
            command, count=args.n, devices=args.devices_per_process, port=args.port
        )

    wanted = patience(args.restarts, args.grace)
    if args.shows:
        return _shown(found().text())
    # Each attempt finds itself a port.
    return run_supervised(lambda _: found().tasks(os.environ), wanted)


def _mpi(args: Namespace, command: tuple[str, ...]) -> int:
    from jaxdist.launch.mpi import mpi, run_mpi

    found = mpi(
        command,
        count=args.n,
        hosts=args.hosts,
        devices=args.devices_per_process,
        options=args.mpirun or (),
    )
    if args.shows:
        return _shown(found.text(os.environ))
    return run_mpi(found, os.environ)


def _ssh(args: Namespace, command: tuple[str, ...]) -> int:
    from jaxdist.launch.ssh import check_hosts, ssh
    from jaxdist.launch.supervise import patience, run_supervised

    found = ssh(
        command,
        args.hosts,
        folder=Path.cwd(),
        port=args.port,
        devices=args.devices_per_process,
        shell=args.ssh or "ssh",
    )
    if args.shows:
        return _shown(found.text(os.environ))
    wanted = patience(args.restarts, args.grace)
    check_hosts(found)
    return run_supervised(lambda n: found.attempt(n).tasks(os.environ), wanted)


def _slurm(args: Namespace, command: tuple[str, ...]) -> int:
    from jaxdist.launch.slurm import slurm, submit

    each = args.processes_per_node
    job = slurm(
        command,
        nodes=args.nodes,
        each=1 if each is None else each,
        devices=args.devices_per_process,
        options=args.sbatch or (),
    )
    return _shown(job.text() if args.shows else submit(job))


def _shown(text: str) -> int:
    sys.stdout.write(text)
    return 0
