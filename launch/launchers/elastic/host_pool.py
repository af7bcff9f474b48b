"""Pools of places where an elastic run may have processes, and which are there."""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from jaxdist.launch.launchers.local import LocalLaunch, local_launch
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.launchers.ssh import (
    SshLaunch,
    check_ssh_installed,
    remote_python_error,
)


class HostPool(Protocol):
    """Places, one process each, counted from 0."""

    @property
    def slot_names(self) -> tuple[str, ...]:
        """What people call each place."""

    def available(self, slots: Collection[int]) -> frozenset[int]:
        """Return which of these places can take a process now; may take seconds."""

    def process_specs(self, slots: Sequence[int], attempt: int) -> list[ProcessSpec]:
        """Return what is started, a process on each of these places, by rank."""


@dataclass(frozen=True, kw_only=True)
class LocalPool:
    """Places of this machine, all of which are always there."""

    command: tuple[str, ...]
    """Words of the command line of each process."""
    num_slots: int
    """How many places, for which the plan is written."""
    devices_per_process: int | None = None
    """Fake devices of each; None leaves that to the command."""
    port: int | None = None
    """Of loopback, for process 0; None finds one for each attempt."""

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Their numbers."""
        return tuple(f"place {place}" for place in range(self.num_slots))

    def available(self, slots: Collection[int]) -> frozenset[int]:
        """Return all."""
        return frozenset(slots)

    def process_specs(self, slots: Sequence[int], attempt: int) -> list[ProcessSpec]:
        """Return what is started, by rank."""
        return self.local_launch(len(slots)).process_specs(os.environ)

    def local_launch(self, num_processes: int) -> LocalLaunch:
        """Return so many processes."""
        return local_launch(
            self.command,
            num_processes=num_processes,
            devices_per_process=self.devices_per_process,
            port=self.port,
            planned_processes=self.num_slots,
        )


@dataclass(frozen=True, kw_only=True)
class SshPool:
    """Hosts that are there when ssh reaches them and finds folder and Python."""

    launch: SshLaunch
    """One process a host, on all of them."""

    def __post_init__(self) -> None:
        check_ssh_installed(self.launch)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """As they were given."""
        return self.launch.hosts

    def available(self, slots: Collection[int]) -> frozenset[int]:
        """Return those that can be reached."""
        asked = sorted(slots)
        # At once: a host that is gone takes the whole connection timeout.
        with ThreadPoolExecutor(max(len(asked), 1)) as pool:
            errors = pool.map(partial(remote_python_error, self.launch), asked)
            return frozenset(slot for slot, why in zip(asked, errors) if not why)

    def process_specs(self, slots: Sequence[int], attempt: int) -> list[ProcessSpec]:
        """Return what is started from here, by rank."""
        hosts = tuple(self.launch.hosts[slot] for slot in slots)
        launch = replace(self.launch, hosts=hosts).for_attempt(attempt)
        return launch.process_specs(os.environ)
