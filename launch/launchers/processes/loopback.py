"""Loopback: processes of one program on this machine, joined over 127.0.0.1."""

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
        tasks = process_specs(commands, self.num_processes, coordinator, env or {})
        return run_and_collect(tasks, timeout=timeout)


def process_specs(
    commands: Sequence[Sequence[str]],
    count: int,
    coordinator: str,
    env: Mapping[str, str],
) -> list[ProcessSpec]:
    """Make the tasks of joined processes.

    Args:
        commands: one for all, or one for each.
        count: how many processes.
        coordinator: `address:port` at which process 0 listens.
        env: variables to add to each environment.

    Raises:
        BadInput: neither one command nor one for each.
    """
    return [
        ProcessSpec(
            command=tuple(command),
            env={
                **process_environment(
                    os.environ, rank=rank, num_processes=count, coordinator=coordinator
                ),
                **env,
            },
        )
        for rank, command in enumerate(commands_by_rank(commands, count))
    ]


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


def commands_by_rank(commands: Sequence[Sequence[str]], count: int) -> list[list[str]]:
    """Give each host its command.

    >>> commands_by_rank([["hostname"]], 2)
    [['hostname'], ['hostname']]

    Raises:
        BadInput: neither one command nor one for each.
    """
    given = [list(command) for command in commands]
    if len(given) == 1:
        return given * count
    if len(given) == count:
        return given
    raise BadInput(
        "commands and hosts do not match",
        rule="there is one command for all hosts, or one for each",
        values=f"{len(given)} commands, {count} hosts",
        remedy=f"run(command), or run(*commands) with {count} of them",
    )


def free_port() -> int:
    """Find a port of loopback that nobody listens at now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
