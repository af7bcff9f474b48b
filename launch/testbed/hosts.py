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
        num_hosts: how many hosts.
        rate: bits a second of each link, both ways: `100mbit`; None is no limit.
        delay: of each packet, on its way to any host: `1ms`; None is none.
        disable_gso: whether processes hand over whole frames, so that counters see
        every
            header; without it the kernel cuts packets of up to 64 KiB after counting,
            which costs less of the processor.
        name_prefix: begins the names of what is made; without one they are this
        process's,
            and are removed by others when it is gone.

    Raises:
        BadInput: not Linux, not root, no `ip` and `tc`, values that cannot be, or
            delays where the kernel has none.
    """

    def __init__(
        self,
        num_hosts: int,
        rate: str | None = None,
        *,
        delay: str | None = None,
        disable_gso: bool = False,
        name_prefix: str | None = None,
    ) -> None:
        self.num_hosts = check_host_count(num_hosts)
        self.rate, self.disable_gso = rate, disable_gso
        _rate_qdisc(rate)
        self._netem = None if delay is None else netem_delay(delay)
        self.name_prefix = name_prefix or temporary_prefix()
        check_netns_support()

    def __enter__(self) -> "EmulatedCluster":
        remove_orphans()
        self.create()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def create(self) -> None:
        """Make the hosts, all or none."""
        try:
            self._create()
        except BaseException:
            self.remove()
            raise

    def address(self, host_index: int) -> str:
        """Return the address of a host."""
        return f"{_SUBNET}.{host_index + 1}"

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
        tasks = process_specs(commands, self.num_hosts, self.coordinator(), env or {})
        return run_and_collect(self.place_processes(tasks), timeout=timeout)

    def place_processes(
        self, specs: Sequence[ProcessSpec], hosts: Sequence[int] | None = None
    ) -> list[ProcessSpec]:
        """Return the same tasks, one on each host, or on those that are named."""
        own = cpus_per_host(os.sched_getaffinity(0), self.num_hosts)
        return [
            replace(task, command=self.host_argv(host, *task.command), cpus=own[host])
            for host, task in zip(
                range(self.num_hosts) if hosts is None else hosts, specs
            )
        ]

    def host_argv(self, host: int, *command: str) -> tuple[str, ...]:
        """Return the words that run a command on a host."""
        return *self._netns_exec(host), *command

    def read_counters(self) -> tuple[InterfaceCounters, ...]:
        """Read what each host's interface has sent and received."""
        read = ("cat", "/proc/net/dev")
        return tuple(
            parse_counters(run_command(*self._netns_exec(rank), *read), "eth0")
            for rank in range(self.num_hosts)
        )

    def set_rate(self, rate: str | None) -> None:
        """Change the rate of all links.

        Raises:
            BadInput: it is no rate.
        """
        _rate_qdisc(rate)
        self.rate = rate
        for rank in range(self.num_hosts):
            self.set_host_rate(rank, rate)

    def set_host_rate(self, host_index: int, rate: str | None) -> None:
        """Change the rate of one host's link, both ways.

        Raises:
            BadInput: it is no rate.
        """
        words, (host, port) = _rate_qdisc(rate), self.link_ends(host_index)
        _replace_qdisc(port, "root", *words)
        if self._netem is None:
            _replace_qdisc(host, "root", *words)
        elif rate is None:
            _replace_qdisc(host, "root", *self._netem)
        else:
            _replace_qdisc(host, "root", "handle", "1:", *words)
            _replace_qdisc(host, "parent", "1:1", "handle", "10:", *self._netem)

    def link_ends(self, host_index: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the ends of a host's cable, its own first: namespace, interface."""
        return (self.namespace(host_index), "eth0"), (
            self._switch_namespace,
            f"p{host_index}",
        )

    def remove(self) -> None:
        """Remove the hosts and end what runs on them; nothing where they are gone."""
        remove_with_prefix(self.name_prefix)

    @property
    def _switch_namespace(self) -> str:
        return f"{self.name_prefix}-switch"

    def namespace(self, host_index: int) -> str:
        """Return the name of a host's network namespace."""
        return f"{self.name_prefix}-{host_index}"

    def pids(self, host_index: int) -> tuple[int, ...]:
        """Return the processes that run on a host."""
        done = try_command("ip", "netns", "pids", self.namespace(host_index))
        return tuple(map(int, done.stdout.split()))

    def _netns_exec(self, rank: int) -> tuple[str, ...]:
        """Return the words that run a command on a host."""
        return "ip", "netns", "exec", self.namespace(rank)

    def _create(self) -> None:
        switch = self._switch_namespace
        if self._netem is not None:
            check_netem_support(f"{temporary_prefix()}-delay")
        run_command("ip", "netns", "add", switch)
        run_command(
            "ip", "-n", switch, "link", "add", "name", "switch", "type", "bridge"
        )
        run_command("ip", "-n", switch, "link", "set", "dev", "switch", "up")
        for rank in range(self.num_hosts):
            self._add_host(rank)
        self.set_rate(self.rate)

    def _add_host(self, rank: int) -> None:
        """Make one host and its cable."""
        host, port, switch = self.namespace(rank), f"p{rank}", self._switch_namespace
        run_command("ip", "netns", "add", host)
        write_hosts_file(host, self.address(rank))
        ends = ("type", "veth", "peer", "name", port, "netns", switch)
        run_command("ip", "link", "add", "name", "eth0", "netns", host, *ends)
        at = ("ip", "-n", host)
        run_command(*at, "link", "set", "dev", "lo", "up")
        run_command(*at, "address", "add", f"{self.address(rank)}/24", "dev", "eth0")
        if self.disable_gso:
            run_command(*at, "link", "set", "dev", "eth0", "gso_max_segs", "1")
        run_command(*at, "link", "set", "dev", "eth0", "up")
        plug = ("link", "set", "dev", port, "master", "switch")
        run_command("ip", "-n", switch, *plug, "up")


def _replace_qdisc(link_end: tuple[str, str], *words: str) -> None:
    """Give an interface a queue in place of the one that it has there."""
    space, link = link_end
    run_command("tc", "-n", space, "qdisc", "replace", "dev", link, *words)


def _rate_qdisc(rate: str | None) -> tuple[str, ...]:
    return ("noqueue",) if rate is None else token_bucket(rate)
