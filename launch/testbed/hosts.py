"""Emulated hosts: network namespaces of this machine on one switch, over shaped links.

Each host has an interface of its own, so a queue and counters of its own. The switch is
a bridge in another namespace, so the machine's own network is left as it is.
"""

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from jaxdist.launch.launchers.processes.group import (
    ProcessResult,
    ProcessSpec,
    run_and_collect,
)
from jaxdist.launch.launchers.processes.loopback import check_host_count, process_specs
from jaxdist.launch.testbed.link_shaping import (
    InterfaceCounters,
    netem_delay,
    parse_counters,
    rate_qdisc,
)
from jaxdist.launch.testbed.namespaces import (
    NETNS_FOLDER,
    check_netem_support,
    check_netns_support,
    remove_orphans,
    remove_with_prefix,
    run_command,
    temporary_prefix,
    try_command,
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
        disable_gso: hand single frames to the interface, so that counters include every
            header; otherwise the kernel cuts packets of up to 64 KiB after they were
            counted, which takes less CPU time.
        name_prefix: begins the names of the namespaces; without one they have this
            process's number, and others remove them once it is gone.

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
        rate_qdisc(rate)  # refuses what is no rate
        # netem only where a delay is asked for: many kernels are built without it.
        self._netem = None if delay is None else netem_delay(delay)
        self.name_prefix = name_prefix or temporary_prefix()
        check_netns_support()

    def __enter__(self) -> "EmulatedCluster":
        # A process that was killed could not remove its hosts.
        remove_orphans()
        self.create()
        return self

    def __exit__(self, *raised: object) -> None:
        self.teardown()

    def create(self) -> None:
        """Make the hosts, all or none."""
        switch = self._switch_namespace
        on_switch = ("ip", "-n", switch, "link")
        try:
            if self._netem is not None:
                check_netem_support(f"{temporary_prefix()}-delay")
            run_command("ip", "netns", "add", switch)
            run_command(*on_switch, "add", "name", "switch", "type", "bridge")
            run_command(*on_switch, "set", "dev", "switch", "up")
            for rank in range(self.num_hosts):
                host, address, port = (
                    self.namespace(rank),
                    self.address(rank),
                    f"p{rank}",
                )
                run_command("ip", "netns", "add", host)
                # gloo listens at the address that the machine's name has: the host's.
                files = NETNS_FOLDER / host
                files.mkdir(parents=True, exist_ok=True)
                names = f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n"
                (files / "hosts").write_text(names)
                # A veth pair is a cable: what enters one end leaves the other.
                ends = ("type", "veth", "peer", "name", port, "netns", switch)
                run_command("ip", "link", "add", "name", "eth0", "netns", host, *ends)
                at = ("ip", "-n", host)
                run_command(*at, "link", "set", "dev", "lo", "up")
                run_command(*at, "address", "add", f"{address}/24", "dev", "eth0")
                # Generic segmentation offload hands packets of up to 64 KiB to the
                # queue, and the counters see one header for all of their frames.
                if self.disable_gso:
                    run_command(*at, "link", "set", "dev", "eth0", "gso_max_segs", "1")
                run_command(*at, "link", "set", "dev", "eth0", "up")
                run_command(*on_switch, "set", "dev", port, "master", "switch", "up")
            self.set_rate(self.rate)
        except BaseException:
            self.teardown()
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
        """Return the same processes, one on each host, or on those that are named."""
        # Hosts of a real cluster do not take CPUs from each other. Processes that may
        # run on all CPUs do, in turns that differ from step to step, and an operation
        # on all of them waits for the one that another process has.
        own = cpus_per_host(os.sched_getaffinity(0), self.num_hosts)
        chosen = range(self.num_hosts) if hosts is None else hosts
        return [
            replace(task, command=self.host_argv(host, *task.command), cpus=own[host])
            for host, task in zip(chosen, specs)
        ]

    def host_argv(self, host: int, *command: str) -> tuple[str, ...]:
        """Return the words that run a command on a host."""
        return "ip", "netns", "exec", self.namespace(host), *command

    def read_counters(self) -> tuple[InterfaceCounters, ...]:
        """Read what each host's interface has sent and received."""
        read = ("cat", "/proc/net/dev")
        shown = (self.host_argv(rank, *read) for rank in range(self.num_hosts))
        return tuple(parse_counters(run_command(*argv), "eth0") for argv in shown)

    def set_rate(self, rate: str | None) -> None:
        """Change the rate of all links.

        Raises:
            BadInput: it is no rate.
        """
        rate_qdisc(rate)
        self.rate = rate
        for rank in range(self.num_hosts):
            self.set_host_rate(rank, rate)

    def set_host_rate(self, host_index: int, rate: str | None) -> None:
        """Change the rate of one host's link, both ways.

        Raises:
            BadInput: it is no rate.
        """
        words, (host, port) = rate_qdisc(rate), self.link_ends(host_index)
        # Each end of the cable shapes what is sent into it. The delay is at the host's
        # end alone, which a packet between two hosts enters once.
        queues = [(port, ("root", *words))]
        if self._netem is None:
            queues.append((host, ("root", *words)))
        elif rate is None:
            queues.append((host, ("root", *self._netem)))
        else:
            queues.append((host, ("root", "handle", "1:", *words)))
            inner = ("parent", "1:1", "handle", "10:", *self._netem)
            queues.append((host, inner))
        for (space, link), queue in queues:
            on_link = "tc", "-n", space, "qdisc", "replace", "dev", link
            if queue[0] == "root":
                # A queue that only changes its rate keeps its packets, and one that is
                # larger than the new bucket blocks the link for ever: start empty.
                run_command(*on_link, "root", "noqueue")
            run_command(*on_link, *queue)

    def link_ends(self, host_index: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the ends of a host's cable, its own first: namespace, interface."""
        own, port = (self.namespace(host_index), "eth0"), f"p{host_index}"
        return own, (self._switch_namespace, port)

    def teardown(self) -> None:
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


def cpus_per_host(cpus: Collection[int], num_hosts: int) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of each host, as many for each.

    Of more hosts than CPUs each shares a CPU with as many others. Where that does not
    divide, all hosts have all CPUs: otherwise some of them would be slower.

    Args:
        cpus: numbers of the CPUs.
        num_hosts: number of hosts.

    >>> cpus_per_host({0, 1, 2, 3, 4}, 2), cpus_per_host({0, 1}, 4)
    (((0, 1), (2, 3)), ((0,), (1,), (0,), (1,)))
    >>> cpus_per_host({0, 1}, 3)
    ((0, 1), (0, 1), (0, 1))
    """
    # Neighbouring CPUs go to one host: they often share caches.
    every = tuple(sorted(cpus))
    each = len(every) // num_hosts
    if each:
        return tuple(every[n * each : (n + 1) * each] for n in range(num_hosts))
    if num_hosts % len(every):
        return (every,) * num_hosts
    return tuple((every[n % len(every)],) for n in range(num_hosts))
