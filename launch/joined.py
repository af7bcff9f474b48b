"""Joined processes: what makes several processes one jax program on the processor.

Whoever starts them gives each the environment of its rank; each calls `join()` first.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.company import company
from jaxdist.launch.placed import CLUSTER, START, environment, place
from jaxdist.launch.reachable import wait_until_reached
from jaxdist.launch.together import Finished, Task, run_together

_START_S: Final = 60
_REACHED_S: Final = _START_S - 5
"""Seconds until process 0 must listen: before it has given up waiting for the rest."""
_SILENCE_S: Final = 30
"""Seconds without a word after which jax ends all other processes."""
WATCHED_S: Final = 600
"""The same where the processes watch each other, and say what they see."""


def join(silence_s: int = _SILENCE_S) -> int:
    """Join the other processes, and return the rank of this one.

    Call it before anything computes: jax then sees one device of each process.

    Args:
        silence_s: seconds without a word after which a process counts as dead.

    Raises:
        BadInput: nobody started this process as one of several.
        TryAgain: process 0 is not reached.
    """
    if method := os.environ.get(CLUSTER):
        _initialize(silence_s, method=method)
        return company().rank
    rank, count, coordinator = place()
    if rank:
        wait_until_reached(rank, coordinator, _REACHED_S)
    if count > 1:
        _initialize(silence_s, coordinator, count, rank)
    return rank


def _initialize(
    silence_s: int,
    coordinator: str | None = None,
    count: int | None = None,
    rank: int | None = None,
    method: str | None = None,
) -> None:
    import jax

    # That service would take SIGTERM from processes that have nothing to save yet, and
    # from programs that never ask it; and a process on its own has none.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        count,
        rank,
        # Who was told its place asks no scheduler, which might give it fewer devices.
        cluster_detection_method=method or "deactivate",
        initialization_timeout=int(os.environ.get(START, _START_S)),
        heartbeat_timeout_seconds=silence_s,
    )


class Loopback:
    """Processes on this machine's loopback: anywhere, without root, unshaped.

    Args:
        count: how many processes.

    Raises:
        BadInput: fewer than one.
    """

    def __init__(self, count: int) -> None:
        self.count = checked_count(count)

    def run(
        self,
        *commands: Sequence[str],
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> tuple[Finished, ...]:
        """Run one process a host and wait for all.

        Args:
            commands: one for all, or one for each.
            timeout: seconds until all must be done.
            env: variables to add.

        Raises:
            ProcessesFailed: a process failed or was late; all were ended.
        """
        coordinator = f"127.0.0.1:{free_port()}"
        tasks = tasks_for(commands, self.count, coordinator, env or {})
        return run_together(tasks, timeout=timeout)


def tasks_for(
    commands: Sequence[Sequence[str]],
    count: int,
    coordinator: str,
    env: Mapping[str, str],
) -> list[Task]:
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
        Task(
            command=tuple(command),
            env={
                **environment(
                    os.environ, rank=rank, count=count, coordinator=coordinator
                ),
                **env,
            },
        )
        for rank, command in enumerate(for_each(commands, count))
    ]


def checked_count(count: int, most: int = 64) -> int:
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


def for_each(commands: Sequence[Sequence[str]], count: int) -> list[list[str]]:
    """Give each host its command.

    >>> for_each([["hostname"]], 2)
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
