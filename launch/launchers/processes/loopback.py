"""Processes of one program on this machine, joined over the loopback interface."""

import os
import socket
from collections.abc import Mapping, Sequence

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.environment import process_environment
from jaxdist.launch.launchers.processes.group import (
    ProcessResult,
    ProcessSpec,
    run_and_collect,
)


class Loopback:
    """Processes on this machine's loopback: anywhere, without root, unshaped.

    Args:
        num_processes: how many processes.

    Raises:
        BadInput: fewer than one.
    """

    def __init__(self, num_processes: int) -> None:
        self.num_processes = check_host_count(num_processes)

    def run(
        self,
        *commands: Sequence[str],
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> tuple[ProcessResult, ...]:
        """Run one process a host and wait for all.

        Args:
            commands: one for all, or one for each.
            timeout: seconds until all must be done.
            env: variables to add.

        Raises:
            ProcessesFailed: a process failed or was late; all were ended.
        """
        coordinator = f"127.0.0.1:{free_port()}"
        specs = process_specs(commands, self.num_processes, coordinator, env or {})
        return run_and_collect(specs, timeout=timeout)


def process_specs(
    commands: Sequence[Sequence[str]],
    count: int,
    coordinator: str,
    env: Mapping[str, str],
) -> list[ProcessSpec]:
    """Return the processes of one jax program on the CPU, each with its rank.

    Args:
        commands: one for all, or one for each.
        count: how many processes.
        coordinator: `address:port` at which process 0 listens.
        env: variables to add to each environment.

    Raises:
        BadInput: there is neither one command nor one for each.
    """
    if len(commands) not in (1, count):
        raise BadInput(
            "commands and hosts do not match",
            rule="there is one command for all hosts, or one for each",
            values=f"{len(commands)} commands, {count} hosts",
            remedy=f"run(command), or run(*commands) with {count} of them",
        )
    specs = []
    for rank in range(count):
        command = tuple(commands[rank if len(commands) > 1 else 0])
        place = process_environment(
            os.environ, rank=rank, num_processes=count, coordinator=coordinator
        )
        specs.append(ProcessSpec(command=command, env={**place, **env}))
    return specs


def check_host_count(count: int, most: int = 64) -> int:
    """Return a number of hosts that can be made.

    Raises:
        BadInput: it is not between 1 and the most.
    """
    if 1 <= count <= most:
        return count
    raise BadInput(
        f"{count} hosts cannot be made",
        rule=f"there are 1 to {most} hosts",
        values=f"count={count}",
        remedy="count=4",
    )


def free_port() -> int:
    """Return a port of loopback that nobody listens at now."""
    # Another process may take it before process 0 listens; a port cannot be reserved
    # for somebody else, and a clash only fails this attempt.
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
