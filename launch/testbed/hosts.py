"""Hosts in a box: network namespaces of this machine on one switch, over shaped links.

Each host has an interface of its own, so a queue and counters of its own. The switch is
a bridge in another namespace, so nothing of this touches the machine's own network.
Where processors divide over hosts, each has its own
(`jaxdist/launch/testbed/cpu_affinity.py`).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final

from jaxdist.launch.launchers.processes.group import (
    ProcessResult,
    ProcessSpec,
    run_together,
)
from jaxdist.launch.launchers.processes.loopback import checked_count, tasks_for
from jaxdist.launch.testbed.cpu_affinity import shares
from jaxdist.launch.testbed.iproute import attempt, check_delays, check_machine, do
from jaxdist.launch.testbed.link_shaping import InterfaceCounters, bucket, counter, lag
from jaxdist.launch.testbed.namespaces import own_name, remove, sweep, write_names

_NETWORK: Final = "10.77.0"
_PORT: Final = 29500


class EmulatedCluster:
    """Several hosts in one machine, as a context: up inside it, gone after it.

    What a process that was killed left behind is removed when the next one comes up.

    Args:
        count: how many hosts.
        rate: bits a second of each link, both ways: `100mbit`; None is no limit.
        delay: of each packet, on its way to any host: `1ms`; None is none.
        frames: whether processes hand over whole frames, so that counters see every
            header; without it the kernel cuts packets of up to 64 KiB after counting,
            which costs less of the processor.
        name: begins the names of what is made; without one they are this process's,
            and are removed by others when it is gone.

    Raises:
        BadInput: not Linux, not root, no `ip` and `tc`, values that cannot be, or
            delays where the kernel has none.
    """

    def __init__(
        self,
        count: int,
        rate: str | None = None,
        *,
        delay: str | None = None,
        frames: bool = False,
        name: str | None = None,
    ) -> None:
        self.count = checked_count(count)
        self.rate, self.frames = rate, frames
        _shaping(rate)
        self._lag = None if delay is None else lag(delay)
        self.name = name or own_name()
        check_machine()

    def __enter__(self) -> "EmulatedCluster":
        sweep()
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def up(self) -> None:
        """Make the hosts, all or none."""
        try:
            self._make()
        except BaseException:
            self.down()
            raise

    def address(self, rank: int) -> str:
        """Return the address of a host."""
        return f"{_NETWORK}.{rank + 1}"

    def coordinator(self, attempt: int = 0, host: int = 0) -> str:
        """Return where process 0 listens: `address:port`, another each attempt."""
        return f"{self.address(host)}:{_PORT + attempt}"

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
        tasks = tasks_for(commands, self.count, self.coordinator(), env or {})
        return run_together(self.inside(tasks), timeout=timeout)

    def inside(
        self, tasks: Sequence[ProcessSpec], hosts: Sequence[int] | None = None
    ) -> list[ProcessSpec]:
        """Return the same tasks, one on each host, or on those that are named."""
        own = shares(os.sched_getaffinity(0), self.count)
        return [
            replace(task, command=self.words(host, *task.command), processors=own[host])
            for host, task in zip(range(self.count) if hosts is None else hosts, tasks)
        ]

    def words(self, host: int, *words: str) -> tuple[str, ...]:
        """Return the words that run a command on a host."""
        return *self._inside(host), *words

    def counters(self) -> tuple[InterfaceCounters, ...]:
        """Read what each host's interface has sent and received."""
        read = ("cat", "/proc/net/dev")
        return tuple(
            counter(do(*self._inside(rank), *read), "eth0")
            for rank in range(self.count)
        )

    def shape(self, rate: str | None) -> None:
        """Change the rate of all links.

        Raises:
            BadInput: it is no rate.
        """
        _shaping(rate)
        self.rate = rate
        for rank in range(self.count):
            self.shape_one(rank, rate)

    def shape_one(self, rank: int, rate: str | None) -> None:
        """Change the rate of one host's link, both ways.

        Raises:
            BadInput: it is no rate.
        """
        words, (host, port) = _shaping(rate), self.ends(rank)
        _queue(port, "root", *words)
        if self._lag is None:
            _queue(host, "root", *words)
        elif rate is None:
            _queue(host, "root", *self._lag)
        else:
            _queue(host, "root", "handle", "1:", *words)
            _queue(host, "parent", "1:1", "handle", "10:", *self._lag)

    def ends(self, rank: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the ends of a host's cable, its own first: namespace, interface."""
        return (self.space(rank), "eth0"), (self._switch, f"p{rank}")

    def down(self) -> None:
        """Remove the hosts and end what runs on them; nothing where they are gone."""
        remove(self.name)

    @property
    def _switch(self) -> str:
        return f"{self.name}-switch"

    def space(self, rank: int) -> str:
        """Return the name of a host's network namespace."""
        return f"{self.name}-{rank}"

    def pids(self, rank: int) -> tuple[int, ...]:
        """Return the processes that run on a host."""
        done = attempt("ip", "netns", "pids", self.space(rank))
        return tuple(map(int, done.stdout.split()))

    def _inside(self, rank: int) -> tuple[str, ...]:
        """Return the words that run a command on a host."""
        return "ip", "netns", "exec", self.space(rank)

    def _make(self) -> None:
        switch = self._switch
        if self._lag is not None:
            check_delays(f"{own_name()}-delay")
        do("ip", "netns", "add", switch)
        do("ip", "-n", switch, "link", "add", "name", "switch", "type", "bridge")
        do("ip", "-n", switch, "link", "set", "dev", "switch", "up")
        for rank in range(self.count):
            self._plug_in(rank)
        self.shape(self.rate)

    def _plug_in(self, rank: int) -> None:
        """Make one host and its cable."""
        host, port, switch = self.space(rank), f"p{rank}", self._switch
        do("ip", "netns", "add", host)
        write_names(host, self.address(rank))
        ends = ("type", "veth", "peer", "name", port, "netns", switch)
        do("ip", "link", "add", "name", "eth0", "netns", host, *ends)
        at = ("ip", "-n", host)
        do(*at, "link", "set", "dev", "lo", "up")
        do(*at, "address", "add", f"{self.address(rank)}/24", "dev", "eth0")
        if self.frames:
            do(*at, "link", "set", "dev", "eth0", "gso_max_segs", "1")
        do(*at, "link", "set", "dev", "eth0", "up")
        plug = ("link", "set", "dev", port, "master", "switch")
        do("ip", "-n", switch, *plug, "up")


def _queue(end: tuple[str, str], *words: str) -> None:
    """Give an interface a queue in place of the one that it has there."""
    space, link = end
    do("tc", "-n", space, "qdisc", "replace", "dev", link, *words)


def _shaping(rate: str | None) -> tuple[str, ...]:
    return ("noqueue",) if rate is None else bucket(rate)
