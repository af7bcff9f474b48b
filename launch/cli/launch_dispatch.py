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


def start_local(args: Namespace, command: tuple[str, ...]) -> int:
    """Start processes on this machine."""
    from jaxdist.launch.launchers.elastic.process_range import read_span
    from jaxdist.launch.launchers.local import MOST, local
    from jaxdist.launch.launchers.processes.restart import patience, run_supervised

    span = read_span(args.n, MOST)
    if not span.is_fixed:
        return _local_elastic(args, command, span)
    refuse_back_after(args.back_after)

    def found() -> "LocalLaunch":
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


def _local_elastic(
    args: Namespace, command: tuple[str, ...], span: "ProcessRange"
) -> int:
    from jaxdist.launch.cli.elastic_options import able_of
    from jaxdist.launch.launchers.elastic.host_pool import LocalPool
    from jaxdist.launch.launchers.elastic.supervisor import run_asked

    ground = LocalPool(
        command=command,
        count=span.most,
        devices=args.devices_per_process,
        port=args.port,
    )
    able = able_of(args.program, span)
    if args.shows:
        return _shown(ground.processes(span.most).text())
    return run_asked(ground, able, args)


def start_mpi(args: Namespace, command: tuple[str, ...]) -> int:
    """Start processes under mpirun."""
    from jaxdist.launch.launchers.elastic.process_range import fixed
    from jaxdist.launch.launchers.mpi import mpi, run_mpi

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


def start_ssh(args: Namespace, command: tuple[str, ...]) -> int:
    """Start a process on each host."""
    from jaxdist.launch.launchers.processes.restart import patience, run_supervised
    from jaxdist.launch.launchers.ssh import check_hosts, ssh

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


def _ssh_elastic(args: Namespace, found: "SshLaunch") -> int:
    from jaxdist.launch.cli.elastic_options import able_of
    from jaxdist.launch.launchers.elastic.host_pool import SshPool
    from jaxdist.launch.launchers.elastic.process_range import read_span
    from jaxdist.launch.launchers.elastic.supervisor import run_asked

    span = read_span(args.n, len(found.hosts))
    able, found = able_of(args.program, span), replace(found, planned=span.most)
    if args.shows:
        first = replace(found, hosts=found.hosts[: span.most])
        return _shown(first.text(os.environ))
    return run_asked(SshPool(found=found), able, args)


def start_slurm(args: Namespace, command: tuple[str, ...]) -> int:
    """Submit a job."""
    from jaxdist.launch.launchers.slurm import slurm, submit

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


def start_k8s(args: Namespace, command: tuple[str, ...]) -> int:
    """Submit a JobSet."""
    from jaxdist.launch.launchers.kubernetes import GRACE_S, RESTARTS, JobSet, submit
    from jaxdist.launch.launchers.processes.restart import patience

    asked = patience(
        RESTARTS if args.restarts is None else args.restarts,
        GRACE_S if args.grace is None else args.grace,
    )
    job = JobSet(
        command=command,
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


def _shown(text: str) -> int:
    sys.stdout.write(text)
    return 0
