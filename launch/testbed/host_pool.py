"""Host pool: the hosts of a testbed, as an elastic launch uses them."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxdist.launch.launchers.local import LocalLaunch
from jaxdist.launch.launchers.processes.group import ProcessSpec

if TYPE_CHECKING:
    from jaxdist.launch.testbed.hosts import EmulatedCluster


@dataclass(frozen=True, kw_only=True)
class EmulatedPool:
    """Hosts of a testbed, of which those are there that reach most of the others."""

    testbed: "EmulatedCluster"
    """The testbed."""
    command: tuple[str, ...]
    """Words of the command line of each process."""
    planned_processes: int
    """How many processes the plan is written for."""
    devices_per_process: int | None = None
    """Fake devices of each; None leaves that to the command."""

    @property
    def slot_names(self) -> tuple[str, ...]:
        """As `testbed status` has them."""
        return tuple(f"h{host}" for host in range(self.testbed.num_hosts))

    def available(self, slots: Collection[int]) -> frozenset[int]:
        """Return those that are joined to most of the others."""
        from jaxdist.launch.testbed.reachability import connected_hosts

        return connected_hosts(self.testbed) & frozenset(slots)

    def process_specs(self, slots: Sequence[int], attempt: int) -> list[ProcessSpec]:
        """Return what is started, by rank."""
        each = LocalLaunch(
            command=self.command,
            num_processes=len(slots),
            devices_per_process=self.devices_per_process,
            coordinator=self.testbed.coordinator(attempt, slots[0]),
            planned_processes=self.planned_processes,
        )
        return self.testbed.place_processes(each.process_specs(os.environ), slots)
