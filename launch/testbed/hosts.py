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
    run_and_collect,
)
from jaxdist.launch.launchers.processes.loopback import check_host_count, process_specs
from jaxdist.launch.testbed.cpu_affinity import cpus_per_host
from jaxdist.launch.testbed.iproute import (
    check_netem_support,
    check_netns_support,
    run_command,
    try_command,
)
from jaxdist.launch.testbed.link_shaping import (
    InterfaceCounters,
    netem_delay,
    parse_counters,
    token_bucket,
)
from jaxdist.launch.testbed.namespaces import (
    remove_orphans,
    remove_with_prefix,
    temporary_prefix,
    write_hosts_file,
)

_SUBNET: Final = "10.77.0"
_COORDINATOR_PORT: Final = 29500


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
        self.count = check_host_count(count)
        self.rate, self.frames = rate, frames
        _rate_qdisc(rate)
        self._lag = None if delay is None else netem_delay(delay)
        self.name = name or temporary_prefix()
        check_netns_support()

    def __enter__(self) -> "EmulatedCluster":
        remove_orphans()
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
        return f"{_SUBNET}.{rank + 1}"

    def coordinator(self, attempt: int = 0, host: int = 0) -> str:
        """Return where process 0 listens: `address:port`, another each attempt."""
        return f"{self.address(host)}:{_COORDINATOR_PORT + attempt}"

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
        tasks = process_specs(commands, self.count, self.coordinator(), env or {})
        return run_and_collect(self.inside(tasks), timeout=timeout)

    def inside(
        self, tasks: Sequence[ProcessSpec], hosts: Sequence[int] | None = None
    ) -> list[ProcessSpec]:
        """Return the same tasks, one on each host, or on those that are named."""
        own = cpus_per_host(os.sched_getaffinity(0), self.count)
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
            parse_counters(run_command(*self._inside(rank), *read), "eth0")
            for rank in range(self.count)
        )

    def shape(self, rate: str | None) -> None:
        """Change the rate of all links.

        Raises:
            BadInput: it is no rate.
        """
        _rate_qdisc(rate)
        self.rate = rate
        for rank in range(self.count):
            self.shape_one(rank, rate)

    def shape_one(self, rank: int, rate: str | None) -> None:
        """Change the rate of one host's link, both ways.

        Raises:
            BadInput: it is no rate.
        """
        words, (host, port) = _rate_qdisc(rate), self.ends(rank)
        _replace_qdisc(port, "root", *words)
        if self._lag is None:
            _replace_qdisc(host, "root", *words)
        elif rate is None:
            _replace_qdisc(host, "root", *self._lag)
        else:
            _replace_qdisc(host, "root", "handle", "1:", *words)
            _replace_qdisc(host, "parent", "1:1", "handle", "10:", *self._lag)

    def ends(self, rank: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the ends of a host's cable, its own first: namespace, interface."""
        return (self.space(rank), "eth0"), (self._switch, f"p{rank}")

    def down(self) -> None:
        """Remove the hosts and end what runs on them; nothing where they are gone."""
        remove_with_prefix(self.name)

    @property
    def _switch(self) -> str:
        return f"{self.name}-switch"

    def space(self, rank: int) -> str:
        """Return the name of a host's network namespace."""
        return f"{self.name}-{rank}"

    def pids(self, rank: int) -> tuple[int, ...]:
        """Return the processes that run on a host."""
        done = try_command("ip", "netns", "pids", self.space(rank))
        return tuple(map(int, done.stdout.split()))

    def _inside(self, rank: int) -> tuple[str, ...]:
        """Return the words that run a command on a host."""
        return "ip", "netns", "exec", self.space(rank)

    def _make(self) -> None:
        switch = self._switch
        if self._lag is not None:
            check_netem_support(f"{temporary_prefix()}-delay")
        run_command("ip", "netns", "add", switch)
        run_command(
            "ip", "-n", switch, "link", "add", "name", "switch", "type", "bridge"
        )
        run_command("ip", "-n", switch, "link", "set", "dev", "switch", "up")
        for rank in range(self.count):
            self._plug_in(rank)
        self.shape(self.rate)

    def _plug_in(self, rank: int) -> None:
        """Make one host and its cable."""
        host, port, switch = self.space(rank), f"p{rank}", self._switch
        run_command("ip", "netns", "add", host)
        write_hosts_file(host, self.address(rank))
        ends = ("type", "veth", "peer", "name", port, "netns", switch)
        run_command("ip", "link", "add", "name", "eth0", "netns", host, *ends)
        at = ("ip", "-n", host)
        run_command(*at, "link", "set", "dev", "lo", "up")
        run_command(*at, "address", "add", f"{self.address(rank)}/24", "dev", "eth0")
        if self.frames:
            run_command(*at, "link", "set", "dev", "eth0", "gso_max_segs", "1")
        run_command(*at, "link", "set", "dev", "eth0", "up")
        plug = ("link", "set", "dev", port, "master", "switch")
        run_command("ip", "-n", switch, *plug, "up")


def _replace_qdisc(end: tuple[str, str], *words: str) -> None:
    """Give an interface a queue in place of the one that it has there."""
    space, link = end
    run_command("tc", "-n", space, "qdisc", "replace", "dev", link, *words)


def _rate_qdisc(rate: str | None) -> tuple[str, ...]:
    return ("noqueue",) if rate is None else token_bucket(rate)
