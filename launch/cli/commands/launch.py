"""`jaxdist launch HOW -- PROGRAM`: one program on several processes."""

import sys
from argparse import Namespace
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_program_arguments,
    add_rejoin_option,
    add_restart_options,
)

summary = "start a program on several processes, joined by jax.distributed"

_ALLOWED_OPTIONS: Final = {
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
_REQUIRED_OPTIONS: Final = {
    "local": "-n 4",
    "mpi": "-n 4",
    "ssh": "--hosts node1,node2",
    "slurm": "--nodes 4",
    "k8s": "--nodes 4 --image IMAGE --volume CLAIM",
    "status": "",
}


def add_arguments(parser: CommandParser) -> None:
    """Take where to start, how many, and what."""
    parser.usage = (
        "jaxdist launch local|ssh|slurm|k8s|mpi [options] -- train EXPERIMENT ...\n"
        "       jaxdist launch status [RUN] [--dir FOLDER] [--json]"
    )
    parser.add_argument(
        "how",
        choices=tuple(_ALLOWED_OPTIONS),
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
    add_restart_options(parser, "local, ssh, k8s: ")
    add_rejoin_option(parser, "local, ssh: ")
    add(
        "--print",
        action="store_true",
        dest="shows",
        help="print what would be started, and start nothing",
    )
    add_program_arguments(parser)


def run(args: Namespace) -> int:
    """Start the processes, show their lines, and wait; or submit them."""
    from jaxdist.launch.cli import launch_dispatch
    from jaxdist.launch.cli.main import command_names
    from jaxdist.launch.launchers.kubernetes import image_command
    from jaxdist.launch.launchers.program import program_command

    check_options(args)
    if args.how == "status":
        return _print_status(args)
    if args.how == "k8s":
        return launch_dispatch.start_k8s(
            args, image_command(args.program, command_names())
        )
    start = {
        "local": launch_dispatch.start_local,
        "mpi": launch_dispatch.start_mpi,
        "ssh": launch_dispatch.start_ssh,
        "slurm": launch_dispatch.start_slurm,
    }
    return start[args.how](args, program_command(args.program, command_names()))


def check_options(args: Namespace) -> None:
    """Refuse options of another way to start, and the lack of the one that is needed.

    Raises:
        BadInput: naming the option.
    """
    names = sorted(set().union(*_ALLOWED_OPTIONS.values()))
    given = [n for n in names if getattr(args, _namespace_field(n)) is not None]
    needed = _REQUIRED_OPTIONS[args.how]
    strange = [name for name in given if name not in _ALLOWED_OPTIONS[args.how]]
    strange += [args.run] if args.run and args.how != "status" else []
    missing = [w for w in needed.split() if w.startswith("-") and w not in given]
    if strange or missing:
        wrong = f"{strange[0]} is given" if strange else f"{missing[0]} is not"
        raise BadInput(
            f"launch {args.how} is not started like that",
            rule=f"{args.how} takes {', '.join(sorted(_ALLOWED_OPTIONS[args.how]))}",
            values=wrong,
            remedy=f"jaxdist launch {args.how} {needed} -- train digits"
            if needed
            else f"jaxdist launch {args.how}",
        )


def _namespace_field(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _print_status(args: Namespace) -> int:
    from jaxdist.launch.cli.status_table import (
        print_run_status,
        print_run_table,
        status_tree,
    )
    from jaxdist.launch.run_folder.status import (
        find_started_run,
        list_started_runs,
        read_run_status,
    )
    from jaxdist.launch.terminal.console import print_json

    folder = "runs" if args.dir is None else args.dir
    if args.run is not None:
        found = read_run_status(find_started_run(args.run, folder))
        print_json(status_tree(found)) if args.json else print_run_status(found)
        return 0
    states = [read_run_status(run) for run in list_started_runs(folder)]
    if args.json:
        print_json({"runs": [status_tree(state) for state in states]})
    elif states:
        print_run_table(states)
    else:
        sys.stdout.write(
            f"no runs in {folder}/; start one with: jaxdist train digits\n"
        )
    return 0
