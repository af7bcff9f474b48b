"""Host pool: the hosts of a testbed that reach each other, for an elastic launch."""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from jaxdist.launch.launchers.local import LocalLaunch
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.testbed.hosts import EmulatedCluster

_PROBE_SCRIPT: Final = """\
import errno, select, socket, sys
answers, asked = (0, errno.ECONNREFUSED), {}
for name in sys.argv[1:]:
    one = socket.socket()
    one.setblocking(False)
    said = one.connect_ex((name, 9))
    if said == errno.EINPROGRESS:
        asked[one] = name
    elif said in answers:
        print(name)
while asked:
    _, done, _ = select.select([], list(asked), [], 2)
    if not done:
        break
    for one in done:
        name = asked.pop(one)
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in answers:
            print(name)
"""
"""Connects to port 9 of each host that is named, and prints those that answer. Nobody
listens there: a refusal has come over the link as well as an answer would have.
"""


@dataclass(frozen=True, kw_only=True)
class EmulatedPool:
    """The hosts of a testbed as slots, available where they reach most others."""

    testbed: EmulatedCluster
    """The testbed."""
    command: tuple[str, ...]
    """Command line of each process."""
    planned_processes: int
    """How many processes the plan is written for."""
    devices_per_process: int | None = None
    """Virtual devices of each; None leaves that to the command."""

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the hosts, as `testbed status` prints them."""
        return tuple(f"h{host}" for host in range(self.testbed.num_hosts))

    def available(self, slots: Collection[int]) -> frozenset[int]:
        """Return those of some slots that reach most other hosts; takes 2 s at most."""
        hosts, asking = range(self.testbed.num_hosts), {}
        number = {self.testbed.address(host): host for host in hosts}
        # Isolated and without site packages, Python starts in a fraction of the time.
        script = (sys.executable, "-I", "-S", "-c", _PROBE_SCRIPT, *number)
        for host in hosts:
            asking[host] = subprocess.Popen(
                self.testbed.host_argv(host, *script),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        # All ask at once, so that those that wait for no answer wait together.
        reached: dict[int, set[int]] = {}
        for host, child in asking.items():
            answers = child.communicate()[0].split()
            if child.returncode == 0:
                reached[host] = {number[address] for address in answers}
        return _largest_group(reached) & frozenset(slots)

    def process_specs(self, slots: Sequence[int], attempt: int) -> list[ProcessSpec]:
        """Return the processes to start, by rank."""
        each = LocalLaunch(
            command=self.command,
            num_processes=len(slots),
            devices_per_process=self.devices_per_process,
            # Rank 0 listens on the first of these hosts: host 0 may be the one that is
            # lost.
            coordinator=self.testbed.coordinator(attempt, slots[0]),
            planned_processes=self.planned_processes,
        )
        return self.testbed.place_processes(each.process_specs(os.environ), slots)


def _largest_group(reachability: Mapping[int, Set[int]]) -> frozenset[int]:
    """Return the largest group of hosts, of equal ones that with the first host.

    Args:
        reachability: the hosts that each one reaches.

    >>> sorted(_largest_group({0: {2}, 1: set(), 2: {0}}))
    [0, 2]
    >>> sorted(_largest_group({0: set(), 1: set()}))
    [0]
    """
    # A pair counts where each reaches the other: packets may be lost one way only.
    groups = [
        frozenset(
            {host, *(other for other in others if host in reachability.get(other, ()))}
        )
        for host, others in sorted(reachability.items())
    ]
    return max(groups, key=len, default=frozenset())
