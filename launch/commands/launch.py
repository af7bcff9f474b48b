"""`jaxdist launch HOW -- PROGRAM`: one program on several processes."""

import math
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.arguments import Parser, add_back_after, add_patience, add_program

if TYPE_CHECKING:
    from jaxdist.launch.local import Local
    from jaxdist.launch.span import Span
    from jaxdist.launch.ssh import Ssh

summary = "start a program on several processes, joined by jax.distributed"

_TAKES: Final = {
    "local": {
        *("-n", "--devices-per-process", "--port"),
        *("--restarts", "--grace", "--back-after"),
    },
    "mpi": {"-n", "--hosts", "--devices-per-process", "--mpirun"},
    "ssh": {
        *("--hosts", "-n", "--devices-per-process", "--port", "--ssh"),
        *("--restarts", "--grace", "--back-after"),
    },
    "slurm": {
        *("--nodes", "--processes-per-node", "--devices-per-process"),
        *("--requeues", "--sbatch"),
    },
    "k8s": {
        *("--nodes", "--image", "--volume", "--name", "--gpus-per-node", "--kubectl"),
        *("--devices-per-process", "--restarts", "--grace"),
    },
    "status": {"--dir", "--json"},
}
_NEEDS: Final = {
    "local": "-n 4",
    "mpi": "-n 4",
    "ssh": "--hosts node1,node2",
    "slurm": "--nodes 4",
    "k8s": "--nodes 4 --image IMAGE --volume CLAIM",
    "status": "",
}


def add_arguments(parser: Parser) -> None:
    """Take where to start, how many, and what."""
    parser.usage = (
        "jaxdist launch local|ssh|slurm|k8s|mpi [options] -- train EXPERIMENT ...\n"
        "       jaxdist launch status [RUN] [--dir FOLDER] [--json]"
    )
    parser.add_argument(
        "how",
        choices=tuple(_TAKES),
        help="local: on this machine; ssh: one process a host; slurm: as a job; "
        "k8s: as a JobSet; mpi: under mpirun of Open MPI; status: what has become of "
        "runs",
    )
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", help="status: one run (all in the folder)")
    add("--dir", metavar="FOLDER", help="status: folder of the runs (runs)")
    add("--json", action="store_true", default=None, help="status: print JSON")
    add(
        "-n",
        metavar="N[:M]",
        help="local, mpi: how many processes; local, ssh: 2:4 goes on with 2 where "
        "others are lost, and takes them back (ssh: one a host)",
    )
    add("--hosts", metavar="LIST", help="ssh, mpi: a,b,c or a file with a host a line")
    add("--ssh", metavar="WORDS", help="ssh: what begins a remote command (ssh)")
    add("--nodes", type=int, metavar="N", help="slurm, k8s: how many nodes")
    add("--image", help="k8s: image with Python, jax and jaxdist")
    add("--volume", metavar="CLAIM", help="k8s: claim for a volume that all pods write")
    add("--name", help="k8s: name of the set (jaxdist)")
    add("--gpus-per-node", type=int, metavar="N", help="k8s: GPUs of each pod (0)")
    add(
        "--kubectl",
        action="append",
        metavar="OPTION",
        help="k8s: an option of kubectl, as --kubectl=--context=NAME; any number",
    )
    add(
        "--processes-per-node",
        type=int,
        metavar="N",
        help="slurm: processes a node, each with the GPU of its number (1, with all)",
    )
    add(
        "--requeues",
        type=int,
        metavar="N",
        help="slurm: queue the job again where it ends with 75, up to N times (100)",
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
    add_patience(parser, "local, ssh, k8s: ")
    add_back_after(parser, "local, ssh: ")
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
    if args.how == "status":
        return _status(args)
    if args.how == "k8s":
        return _k8s(args)
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
    strange += [args.run] if args.run and args.how != "status" else []
    missing = [w for w in needed.split() if w.startswith("-") and w not in given]
    if strange or missing:
        wrong = f"{strange[0]} is given" if strange else f"{missing[0]} is not"
        raise BadInput(
            f"launch {args.how} is not started like that",
            rule=f"{args.how} takes {', '.join(sorted(_TAKES[args.how]))}",
            values=wrong,
            remedy=f"jaxdist launch {args.how} {needed} -- train digits"
            if needed
            else f"jaxdist launch {args.how}",
        )


def refuse_back_after(given: float | None) -> None:
    """Refuse when to take places back where none is left out.

    Raises:
        BadInput: it is given.
    """
    if given is not None:
        raise BadInput(
            "nothing is left out that could come back",
            rule="--back-after is for a range of processes",
            values=f"--back-after {given:g}",
            remedy="-n 2:4, or without --back-after",
        )


def _field(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _local(args: Namespace, command: tuple[str, ...]) -> int:
    from jaxdist.launch.local import MOST, local
    from jaxdist.launch.span import read_span
    from jaxdist.launch.supervise import patience, run_supervised

    span = read_span(args.n, MOST)
    if not span.is_fixed:
        return _local_elastic(args, command, span)
    refuse_back_after(args.back_after)

    def found() -> "Local":
        return local(
            command,
            count=span.most,
            devices=args.devices_per_process,
            port=args.port,
        )

    wanted = patience(args.restarts, args.grace)
    if args.shows:
        return _shown(found().text())
    # Each attempt finds itself a port.
    return run_supervised(lambda _: found().tasks(os.environ), wanted)


def _local_elastic(args: Namespace, command: tuple[str, ...], span: "Span") -> int:
    from jaxdist.launch.able import able_of
    from jaxdist.launch.elastic import run_asked
    from jaxdist.launch.grounds import OnThis

    ground = OnThis(
        command=command,
        count=span.most,
        devices=args.devices_per_process,
        port=args.port,
    )
    able = able_of(args.program, span)
    if args.shows:
        return _shown(ground.processes(span.most).text())
    return run_asked(ground, able, args)


def _mpi(args: Namespace, command: tuple[str, ...]) -> int:
    from jaxdist.launch.mpi import mpi, run_mpi
    from jaxdist.launch.span import fixed

    found = mpi(
        command,
        count=fixed(args.n, 100_000, "mpi"),
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
    if args.n is not None:
        return _ssh_elastic(args, found)
    refuse_back_after(args.back_after)
    if args.shows:
        return _shown(found.text(os.environ))
    wanted = patience(args.restarts, args.grace)
    check_hosts(found)
    return run_supervised(lambda n: found.attempt(n).tasks(os.environ), wanted)


def _ssh_elastic(args: Namespace, found: "Ssh") -> int:
    from jaxdist.launch.able import able_of
    from jaxdist.launch.elastic import run_asked
    from jaxdist.launch.grounds import OverSsh
    from jaxdist.launch.span import read_span

    span = read_span(args.n, len(found.hosts))
    able, found = able_of(args.program, span), replace(found, planned=span.most)
    if args.shows:
        first = replace(found, hosts=found.hosts[: span.most])
        return _shown(first.text(os.environ))
    return run_asked(OverSsh(found=found), able, args)


def _slurm(args: Namespace, command: tuple[str, ...]) -> int:
    from jaxdist.launch.slurm import slurm, submit

    each = args.processes_per_node
    job = slurm(
        command,
        nodes=args.nodes,
        each=1 if each is None else each,
        devices=args.devices_per_process,
        requeues=args.requeues,
        options=args.sbatch or (),
    )
    return _shown(job.text() if args.shows else submit(job))


def _k8s(args: Namespace) -> int:
    from jaxdist.launch.cli import command_names
    from jaxdist.launch.kubernetes import GRACE_S, RESTARTS, JobSet, in_image, submit
    from jaxdist.launch.supervise import patience

    asked = patience(
        RESTARTS if args.restarts is None else args.restarts,
        GRACE_S if args.grace is None else args.grace,
    )
    job = JobSet(
        command=in_image(args.program, command_names()),
        name=args.name or "jaxdist",
        nodes=args.nodes,
        image=args.image,
        volume=args.volume,
        gpus=args.gpus_per_node or 0,
        devices=args.devices_per_process,
        restarts=asked.restarts,
        grace_s=math.ceil(asked.saving_s),
        options=tuple(args.kubectl or ()),
    )
    return _shown(job.text() if args.shows else submit(job))


def _status(args: Namespace) -> int:
    from jaxdist.launch.console import print_json
    from jaxdist.launch.state import find_started, started, state_of
    from jaxdist.launch.state_tables import print_run, print_runs, tree

    folder = "runs" if args.dir is None else args.dir
    if args.run is not None:
        found = state_of(find_started(args.run, folder))
        print_json(tree(found)) if args.json else print_run(found)
        return 0
    states = [state_of(run) for run in started(folder)]
    if args.json:
        print_json({"runs": [tree(state) for state in states]})
    elif states:
        print_runs(states)
    else:
        sys.stdout.write(
            f"no runs in {folder}/; start one with: jaxdist train digits\n"
        )
    return 0


def _shown(text: str) -> int:
    sys.stdout.write(text)
    return 0
