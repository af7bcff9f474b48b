"""Joined processes: what makes several processes one jax program on the processor.

Whoever starts them gives each the environment of its rank; each calls `join()` first.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.company import company
from jaxdist.launch.reachable import wait_until_reached
from jaxdist.launch.together import Finished, Task, run_together

RANK: Final = "JAXDIST_RANK"
"""Says which process this is."""
_HOSTS: Final = "JAXDIST_HOSTS"
_COORDINATOR: Final = "JAXDIST_COORDINATOR"
_PLANNED: Final = "JAXDIST_PLANNED"
"""Says how many processes the plan is written for, where there may be fewer."""
_CLUSTER: Final = "JAXDIST_CLUSTER"
"""Says which scheduler jax asks for the place of this process: `slurm`."""

START: Final = "JAXDIST_START_S"
"""Says how many seconds processes wait for each other, where not _START_S."""

# A host of a testbed has one thread, as its share of this machine's processors.
ONE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
_QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
ON_PROCESSOR: Final = {
    "JAX_PLATFORMS": "cpu",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
}
"""Variables by which jax computes on the processor alone."""
_START_S: Final = 60
_REACHED_S: Final = _START_S - 5
"""Seconds until process 0 must listen: before it has given up waiting for the rest."""
_SILENCE_S: Final = 30
"""Seconds without a word after which jax ends all other processes."""
WATCHED_S: Final = 600
"""The same where the processes watch each other, and say what they see."""


def environment(
    environ: Mapping[str, str], *, rank: int, count: int, coordinator: str
) -> dict[str, str]:
    """Return the environment of one of several joined processes.

    Settings of jax that this process runs under are its own affair, so they are left
    out; and a process has one thread and one device.

    Args:
        environ: the environment as it is.
        rank: which process.
        count: how many there are.
        coordinator: `address:port` at which process 0 listens.
    """
    kept = {name: text for name, text in environ.items() if not name.startswith("JAX_")}
    mine = place_words(rank=rank, count=count, coordinator=coordinator, devices=1)
    return {**direct(kept), **ON_PROCESSOR, **ONE_THREAD, **mine}


def direct(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without proxies.

    They would stand between processes that speak to each other directly.

    >>> direct({"HOME": "/me", "http_proxy": "there"})
    {'HOME': '/me'}
    """
    return {k: text for k, text in environ.items() if not k.lower().endswith("_proxy")}


def place_words(
    *,
    rank: int,
    count: int,
    coordinator: str,
    devices: int | None = None,
    planned: int | None = None,
) -> dict[str, str]:
    """Return the variables that make a process one of several, on any device.

    Args:
        rank: which process.
        count: how many there are.
        coordinator: `address:port` at which process 0 listens.
        devices: fake devices of the process; None leaves them to its command.
        planned: how many the plan is written for; None: as many as there are.
    """
    each = {} if devices is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    each |= {} if planned is None else {_PLANNED: str(planned)}
    mine = {RANK: str(rank), _HOSTS: str(count), _COORDINATOR: coordinator}
    return {**each, **_QUIET, **mine}


def join(silence_s: int = _SILENCE_S) -> int:
    """Join the other processes, and return the rank of this one.

    Call it before anything computes: jax then sees one device of each process.

    Args:
        silence_s: seconds without a word after which a process counts as dead.

    Raises:
        BadInput: nobody started this process as one of several.
        TryAgain: process 0 is not reached.
    """
    if method := os.environ.get(_CLUSTER):
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


def was_placed(environ: Mapping[str, str]) -> bool:
    """Tell whether a process with this environment is one of several."""
    return RANK in environ or _CLUSTER in environ


def planned(environ: Mapping[str, str], count: int) -> int:
    """Return for how many processes the plan is written.

    Args:
        environ: the environment of one of them.
        count: how many there are.

    >>> planned({"JAXDIST_PLANNED": "4"}, 3), planned({}, 3)
    (4, 3)
    """
    return int(environ.get(_PLANNED, count))


def is_launched(environ: Mapping[str, str]) -> bool:
    """Tell whether a launcher of ours started this process, and reads its lines."""
    return RANK in environ


def was_planned(environ: Mapping[str, str]) -> bool:
    """Tell whether a process with this environment may be one of fewer."""
    return _PLANNED in environ


def place() -> tuple[int, int, str]:
    """Return (rank, processes, address of the coordinator) of this process.

    Raises:
        BadInput: nobody started this process as one of several.
    """
    try:
        rank, count = int(os.environ[RANK]), int(os.environ[_HOSTS])
        return rank, count, os.environ[_COORDINATOR]
    except KeyError as error:
        raise BadInput(
            "this process is not one of several",
            rule="joined processes are started by a testbed or on loopback",
            values=f"{error.args[0]} is not set",
            remedy=f"Loopback(2).run([{sys.executable!r}, {sys.argv[0]!r}])",
        ) from error


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
