"""`jaxdist launch HOW -- PROGRAM`: one program on several processes."""

import math
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdist.launch.cli.commands import status
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.cli.restart_options import (
    add_restart_options,
    feasible_counts_of_program,
    reject_rejoin_option,
)

if TYPE_CHECKING:
    from jaxdist.launch.launchers.local import LocalLaunch

summary = "start a program on several processes, joined by jax.distributed"
example = ""


def add_arguments(parser: CommandParser) -> None:
    """Take how to start, how many, and what; or what to show."""
    program = "-- train digits"
    local = parser.add_form(
        "local", "processes on this machine", example=f"-n 4 {program}"
    )
    add = local.add_argument
    add(
        "-n",
        metavar="N[:M]",
        required=True,
        help="how many processes; 2:4 continues with 2 where others are lost, and "
        "takes them back",
    )
    add("--port", type=int, help="where process 0 listens (a free port)")
    add_restart_options(local, rejoin=True)

    ssh = parser.add_form(
        "ssh", "one process a host", example=f"--hosts node1,node2 {program}"
    )
    add = ssh.add_argument
    add(
        "-n",
        metavar="N[:M]",
        help="how many of the hosts; 2:4 continues with 2 where others are lost, and "
        "takes them back (all)",
    )
    add("--ssh", metavar="WORDS", help="begins a remote command (ssh)")
    add("--port", type=int, help="where process 0 listens")
    add_restart_options(ssh, rejoin=True)

    slurm = parser.add_form("slurm", "a job of SLURM", example=f"--nodes 4 {program}")
    add = slurm.add_argument
    add(
        "--processes-per-node",
        type=int,
        default=1,
        metavar="N",
        help="processes a node, each with the GPU of its number (1, with all)",
    )
    add(
        "--requeues",
        type=int,
        metavar="N",
        help="queue the job again where it ends with 75, up to N times (100)",
    )
    _add_passed_option(slurm, "sbatch", "--time=2:00:00")

    k8s = parser.add_form(
        "k8s",
        "a JobSet of Kubernetes",
        example=f"--nodes 4 --image IMAGE --volume CLAIM {program}",
    )
    add = k8s.add_argument
    add(
        "--image",
        required=True,
        help="has Python, jax and jaxdist: jaxdist/launch/launchers/scripts/Dockerfile "
        "makes one",
    )
    add(
        "--volume",
        metavar="CLAIM",
        required=True,
        help="claim for a volume that all pods write",
    )
    add("--name", default="jaxdist", help="name of the set (jaxdist)")
    add("--gpus-per-node", type=int, default=0, metavar="N", help="GPUs of a pod (0)")
    _add_passed_option(k8s, "kubectl", "--context=NAME")
    add_restart_options(k8s, rejoin=False)

    mpi = parser.add_form("mpi", "under mpirun of Open MPI", example=f"-n 4 {program}")
    mpi.add_argument("-n", metavar="N", required=True, help="how many processes")
    _add_passed_option(mpi, "mpirun", "--oversubscribe")

    for form in (ssh, mpi):
        what = "a,b,c or a file with a host a line"
        # mpirun without hosts takes those of its batch job, or this machine.
        form.add_argument("--hosts", metavar="LIST", required=form is ssh, help=what)
    for form in (slurm, k8s):
        form.add_argument(
            "--nodes", type=int, metavar="N", required=True, help="how many nodes"
        )
    starts = (_start_local, _start_ssh, _start_slurm, _start_k8s, _start_mpi)
    for form, start in zip((local, ssh, slurm, k8s, mpi), starts, strict=True):
        form.add_argument(
            "--devices-per-process",
            type=int,
            metavar="N",
            help="virtual CPU devices of each (the plan's, divided among the "
            "processes)",
        )
        form.add_argument(
            "--print",
            action="store_true",
            dest="shows",
            help="print what would be started, and start nothing",
        )
        form.set_defaults(start=start)
        form.add_program()

    form = parser.add_form("status", status.summary, example="digits")
    status.add_arguments(form)
    form.set_defaults(start=status.run)


def _add_passed_option(form: CommandParser, program: str, example: str) -> None:
    """Add an option whose values are options of the program that the form runs."""
    form.add_argument(
        f"--{program}",
        action="append",
        default=[],
        metavar="OPTION",
        help=f"an option of {program}, as --{program}={example}; any number",
    )


def run(args: Namespace) -> int:
    """Start the processes, show their lines, and wait; or submit them."""
    return int(args.start(args))


def _command(args: Namespace) -> tuple[str, ...]:
    """Return the command line of each process."""
    from jaxdist.launch.cli.main import command_names
    from jaxdist.launch.launchers.program import program_command

    return program_command(args.program, command_names())


def _print_text(text: str) -> int:
    sys.stdout.write(text)
    return 0


def _start_local(args: Namespace) -> int:
    from jaxdist.launch.launchers.elastic.host_pool import LocalPool
    from jaxdist.launch.launchers.elastic.process_range import parse_process_range
    from jaxdist.launch.launchers.elastic.supervisor import run_elastic_from_args
    from jaxdist.launch.launchers.local import MAX_LOCAL_PROCESSES, local_launch
    from jaxdist.launch.launchers.processes.restart import (
        restart_policy,
        run_with_restarts,
    )

    command, span = _command(args), parse_process_range(args.n, MAX_LOCAL_PROCESSES)
    devices, count = args.devices_per_process, span.max_processes
    if not span.is_fixed:
        pool = LocalPool(
            command=command,
            num_slots=count,
            devices_per_process=devices,
            port=args.port,
        )
        feasible = feasible_counts_of_program(args.program, span)
        if args.shows:
            return _print_text(pool.local_launch(count).shell_text())
        return run_elastic_from_args(
            pool,
            feasible,
            restarts=args.restarts,
            grace=args.grace,
            rejoin_after=args.rejoin_after,
        )
    reject_rejoin_option(args.rejoin_after)

    def attempt() -> "LocalLaunch":
        return local_launch(
            command, num_processes=count, devices_per_process=devices, port=args.port
        )

    policy = restart_policy(args.restarts, args.grace)
    if args.shows:
        return _print_text(attempt().shell_text())
    # Each attempt finds itself a free port: the last one's may still be taken.
    return run_with_restarts(lambda _: attempt().process_specs(os.environ), policy)


def _start_ssh(args: Namespace) -> int:
    from jaxdist.launch.launchers.elastic.host_pool import SshPool
    from jaxdist.launch.launchers.elastic.process_range import parse_process_range
    from jaxdist.launch.launchers.elastic.supervisor import run_elastic_from_args
    from jaxdist.launch.launchers.processes.restart import (
        restart_policy,
        run_with_restarts,
    )
    from jaxdist.launch.launchers.ssh import check_hosts, ssh_launch

    launch = ssh_launch(
        _command(args),
        args.hosts,
        folder=Path.cwd(),
        port=args.port,
        devices_per_process=args.devices_per_process,
        remote_shell=args.ssh or "ssh",
    )
    if args.n is not None:
        span = parse_process_range(args.n, len(launch.hosts))
        feasible = feasible_counts_of_program(args.program, span)
        # The plan is made for the most processes; with fewer its axes shrink.
        launch = replace(launch, planned_processes=span.max_processes)
        if args.shows:
            # The other hosts are spare: they replace those that are lost.
            first = replace(launch, hosts=launch.hosts[: span.max_processes])
            return _print_text(first.shell_text(os.environ))
        return run_elastic_from_args(
            SshPool(launch=launch),
            feasible,
            restarts=args.restarts,
            grace=args.grace,
            rejoin_after=args.rejoin_after,
        )
    reject_rejoin_option(args.rejoin_after)
    if args.shows:
        return _print_text(launch.shell_text(os.environ))
    policy = restart_policy(args.restarts, args.grace)
    # A host that cannot be reached is named now, and not by a timeout of jax minutes
    # later.
    check_hosts(launch)
    return run_with_restarts(
        lambda n: launch.for_attempt(n).process_specs(os.environ), policy
    )


def _start_slurm(args: Namespace) -> int:
    from jaxdist.launch.launchers.slurm import SlurmJob, submit_slurm_job

    # SLURM starts jobs again itself, by `--requeues`, when they end with the code 75.
    job = SlurmJob(
        command=_command(args),
        nodes=args.nodes,
        processes_per_node=args.processes_per_node,
        devices_per_process=args.devices_per_process,
        max_requeues=args.requeues,
        sbatch_options=tuple(args.sbatch),
    )
    return _print_text(job.shell_text() if args.shows else submit_slurm_job(job))


def _start_k8s(args: Namespace) -> int:
    from jaxdist.launch.cli.main import command_names
    from jaxdist.launch.launchers.kubernetes import (
        DEFAULT_JOBSET_RESTARTS,
        TERMINATION_GRACE_S,
        JobSet,
        image_command,
        submit_jobset,
    )
    from jaxdist.launch.launchers.processes.restart import restart_policy

    # Kubernetes restarts the pods itself: its defaults are not those of a launcher that
    # stays.
    policy = restart_policy(
        DEFAULT_JOBSET_RESTARTS if args.restarts is None else args.restarts,
        TERMINATION_GRACE_S if args.grace is None else args.grace,
    )
    job = JobSet(
        # The image is elsewhere: what is on this PATH says nothing about it.
        command=image_command(args.program, command_names()),
        name=args.name,
        nodes=args.nodes,
        image=args.image,
        volume_claim=args.volume,
        gpus_per_node=args.gpus_per_node,
        devices_per_process=args.devices_per_process,
        max_restarts=policy.max_restarts,
        # A pod's terminationGracePeriodSeconds is a whole number.
        grace_s=math.ceil(policy.save_grace_s),
        kubectl_options=tuple(args.kubectl),
    )
    return _print_text(job.manifest_yaml() if args.shows else submit_jobset(job))


def _start_mpi(args: Namespace) -> int:
    from jaxdist.launch.launchers.elastic.process_range import parse_process_count
    from jaxdist.launch.launchers.mpi import MpiLaunch, run_mpi

    # A lost rank ends an MPI job, so there is one number of processes and no range.
    launch = MpiLaunch(
        command=_command(args),
        num_processes=parse_process_count(args.n, 100_000, "mpi"),
        hosts=args.hosts,
        devices_per_process=args.devices_per_process,
        mpirun_options=tuple(args.mpirun),
    )
    if args.shows:
        return _print_text(launch.shell_text(os.environ))
    return run_mpi(launch, os.environ)
