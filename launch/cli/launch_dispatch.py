"""Ways: from the words of `jaxdist launch` to the processes that each way starts.

A way shows what it would start, where that is asked for, or starts it and returns the
exit code.
"""

import math
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput

if TYPE_CHECKING:
    from jaxdist.launch.launchers.elastic.process_range import ProcessRange
    from jaxdist.launch.launchers.local import LocalLaunch
    from jaxdist.launch.launchers.ssh import SshLaunch


def reject_rejoin_option(given: float | None) -> None:
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


def start_local(args: Namespace, command: tuple[str, ...]) -> int:
    """Start processes on this machine."""
    from jaxdist.launch.launchers.elastic.process_range import parse_process_range
    from jaxdist.launch.launchers.local import MAX_LOCAL_PROCESSES, local_launch
    from jaxdist.launch.launchers.processes.restart import (
        restart_policy,
        run_with_restarts,
    )

    span = parse_process_range(args.n, MAX_LOCAL_PROCESSES)
    if not span.is_fixed:
        return _start_local_elastic(args, command, span)
    reject_rejoin_option(args.back_after)

    def found() -> "LocalLaunch":
        return local_launch(
            command,
            num_processes=span.max_processes,
            devices_per_process=args.devices_per_process,
            port=args.port,
        )

    wanted = restart_policy(args.restarts, args.grace)
    if args.shows:
        return _print_text(found().shell_text())
    # Each attempt finds itself a port.
    return run_with_restarts(lambda _: found().process_specs(os.environ), wanted)


def _start_local_elastic(
    args: Namespace, command: tuple[str, ...], span: "ProcessRange"
) -> int:
    from jaxdist.launch.cli.elastic_options import feasible_counts_of_program
    from jaxdist.launch.launchers.elastic.host_pool import LocalPool
    from jaxdist.launch.launchers.elastic.supervisor import run_elastic_from_args

    ground = LocalPool(
        command=command,
        num_slots=span.max_processes,
        devices_per_process=args.devices_per_process,
        port=args.port,
    )
    able = feasible_counts_of_program(args.program, span)
    if args.shows:
        return _print_text(ground.local_launch(span.max_processes).shell_text())
    return run_elastic_from_args(ground, able, args)


def start_mpi(args: Namespace, command: tuple[str, ...]) -> int:
    """Start processes under mpirun."""
    from jaxdist.launch.launchers.elastic.process_range import parse_process_count
    from jaxdist.launch.launchers.mpi import MpiLaunch, run_mpi

    found = MpiLaunch(
        command=command,
        num_processes=parse_process_count(args.n, 100_000, "mpi"),
        hosts=args.hosts,
        devices_per_process=args.devices_per_process,
        mpirun_options=tuple(args.mpirun or ()),
    )
    if args.shows:
        return _print_text(found.shell_text(os.environ))
    return run_mpi(found, os.environ)


def start_ssh(args: Namespace, command: tuple[str, ...]) -> int:
    """Start a process on each host."""
    from jaxdist.launch.launchers.processes.restart import (
        restart_policy,
        run_with_restarts,
    )
    from jaxdist.launch.launchers.ssh import check_hosts, ssh_launch

    found = ssh_launch(
        command,
        args.hosts,
        folder=Path.cwd(),
        port=args.port,
        devices_per_process=args.devices_per_process,
        remote_shell=args.ssh or "ssh",
    )
    if args.n is not None:
        return _start_ssh_elastic(args, found)
    reject_rejoin_option(args.back_after)
    if args.shows:
        return _print_text(found.shell_text(os.environ))
    wanted = restart_policy(args.restarts, args.grace)
    check_hosts(found)
    return run_with_restarts(
        lambda n: found.for_attempt(n).process_specs(os.environ), wanted
    )


def _start_ssh_elastic(args: Namespace, found: "SshLaunch") -> int:
    from jaxdist.launch.cli.elastic_options import feasible_counts_of_program
    from jaxdist.launch.launchers.elastic.host_pool import SshPool
    from jaxdist.launch.launchers.elastic.process_range import parse_process_range
    from jaxdist.launch.launchers.elastic.supervisor import run_elastic_from_args

    span = parse_process_range(args.n, len(found.hosts))
    able, found = (
        feasible_counts_of_program(args.program, span),
        replace(found, planned_processes=span.max_processes),
    )
    if args.shows:
        first = replace(found, hosts=found.hosts[: span.max_processes])
        return _print_text(first.shell_text(os.environ))
    return run_elastic_from_args(SshPool(launch=found), able, args)


def start_slurm(args: Namespace, command: tuple[str, ...]) -> int:
    """Submit a job."""
    from jaxdist.launch.launchers.slurm import SlurmJob, submit_slurm_job

    each = args.processes_per_node
    job = SlurmJob(
        command=command,
        nodes=args.nodes,
        processes_per_node=1 if each is None else each,
        devices_per_process=args.devices_per_process,
        max_requeues=args.requeues,
        sbatch_options=tuple(args.sbatch or ()),
    )
    return _print_text(job.shell_text() if args.shows else submit_slurm_job(job))


def start_k8s(args: Namespace, command: tuple[str, ...]) -> int:
    """Submit a JobSet."""
    from jaxdist.launch.launchers.kubernetes import (
        DEFAULT_JOBSET_RESTARTS,
        TERMINATION_GRACE_S,
        JobSet,
        submit_jobset,
    )
    from jaxdist.launch.launchers.processes.restart import restart_policy

    asked = restart_policy(
        DEFAULT_JOBSET_RESTARTS if args.restarts is None else args.restarts,
        TERMINATION_GRACE_S if args.grace is None else args.grace,
    )
    job = JobSet(
        command=command,
        name=args.name or "jaxdist",
        nodes=args.nodes,
        image=args.image,
        volume_claim=args.volume,
        gpus_per_node=args.gpus_per_node or 0,
        devices_per_process=args.devices_per_process,
        max_restarts=asked.max_restarts,
        grace_s=math.ceil(asked.save_grace_s),
        kubectl_options=tuple(args.kubectl or ()),
    )
    return _print_text(job.manifest_yaml() if args.shows else submit_jobset(job))


def _print_text(text: str) -> int:
    sys.stdout.write(text)
    return 0
