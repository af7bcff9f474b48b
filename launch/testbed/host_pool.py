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

    hosts: "EmulatedCluster"
    """The testbed."""
    command: tuple[str, ...]
    """Words of the command line of each process."""
    planned: int
    """How many processes the plan is written for."""
    devices: int | None = None
    """Fake devices of each; None leaves that to the command."""

    @property
    def names(self) -> tuple[str, ...]:
        """As `testbed status` has them."""
        return tuple(f"h{host}" for host in range(self.hosts.count))

    def there(self, places: Collection[int]) -> frozenset[int]:
        """Return those that are joined to most of the others."""
        from jaxdist.launch.testbed.reachability import connected_hosts

        return connected_hosts(self.hosts) & frozenset(places)

    def tasks(self, places: Sequence[int], attempt: int) -> list[ProcessSpec]:
        """Return what is started, by rank."""
        each = LocalLaunch(
            command=self.command,
            count=len(places),
            devices=self.devices,
            coordinator=self.hosts.coordinator(attempt, places[0]),
            planned=self.planned,
        )
        return self.hosts.inside(each.tasks(os.environ), places)
