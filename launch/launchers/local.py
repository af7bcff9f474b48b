"""Local: a command started several times on this machine, as one jax program."""

import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.environment import (
    CPU_BACKEND_VARS,
    rank_variables,
    without_proxies,
)
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.launchers.processes.loopback import free_port
from jaxdist.launch.launchers.program import check_option_range

MAX_LOCAL_PROCESSES: Final = 64
"""The most processes that one machine is asked for."""


@dataclass(frozen=True, kw_only=True)
class LocalLaunch:
    """Several processes of one command on this machine."""

    command: tuple[str, ...]
    """Words of the command line of each."""
    num_processes: int
    """How many processes."""
    devices_per_process: int | None = None
    """Fake devices of each; None leaves that to the command."""
    coordinator: str
    """`address:port` at which process 0 listens."""
    planned_processes: int | None = None
    """How many the plan is written for; None: as many as there are."""

    def env_vars(self, rank: int) -> dict[str, str]:
        """Return the variables that a process has besides ours."""
        mine = rank_variables(
            rank=rank,
            num_processes=self.num_processes,
            coordinator=self.coordinator,
            devices_per_process=self.devices_per_process,
            planned_processes=self.planned_processes,
        )
        # On the CPU: jax takes a GPU's whole memory, so processes cannot share it.
        return {**CPU_BACKEND_VARS, **mine}

    def process_specs(self, environ: Mapping[str, str]) -> list[ProcessSpec]:
        """Return what is started, by rank."""
        return [
            ProcessSpec(
                command=self.command,
                env={**without_proxies(environ), **self.env_vars(rank)},
            )
            for rank in range(self.num_processes)
        ]

    def shell_text(self) -> str:
        """Return the same as lines for a shell, one for each process."""
        rows = (
            [*(f"{k}={v}" for k, v in self.env_vars(rank).items()), *self.command]
            for rank in range(self.num_processes)
        )
        return "".join(f"{shlex.join(row)}\n" for row in rows)


def local_launch(
    command: Sequence[str],
    *,
    num_processes: int,
    devices_per_process: int | None = None,
    port: int | None = None,
    planned_processes: int | None = None,
) -> LocalLaunch:
    """Return several processes of a command on this machine.

    Args are those of `LocalLaunch`, but for the port of process 0: None finds one.

    Raises:
        BadInput: numbers that cannot be, or a port that is taken.
    """
    most = MAX_LOCAL_PROCESSES
    check_option_range("-n", num_processes, most)
    check_option_range("--devices-per-process", devices_per_process, most)
    if port is not None:
        try:
            with socket.socket() as tried:
                # As process 0 will: a port in TIME_WAIT is free for it.
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise BadInput(
                f"process 0 cannot listen at port {port}",
                rule="--port is free, and between 1024 and 65535",
                values=str(error),
                remedy="leave it out: a free one is found",
            ) from error
    return LocalLaunch(
        command=tuple(command),
        num_processes=num_processes,
        devices_per_process=devices_per_process,
        coordinator=f"127.0.0.1:{port or free_port()}",
        planned_processes=planned_processes,
    )
