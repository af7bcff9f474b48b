"""Placement: where the processes of a study run, with one computing thread each."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxdist.core.errors import BadInput
from jaxdist.launch.devices.prepare import available_cores
from jaxdist.launch.distributed.environment import SINGLE_THREAD_VARS
from jaxdist.launch.launchers.local import LocalLaunch
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.launchers.processes.loopback import free_port
from jaxdist.launch.terminal.run_summary import pluralize
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.manager import load_testbed


@dataclass(frozen=True, kw_only=True)
class ScalingPlacement:
    """This machine's loopback, or the hosts of its testbed."""

    cores: int
    """Cores that all processes share."""
    testbed: EmulatedCluster | None = None
    """The testbed; None is loopback."""

    @property
    def name(self) -> str:
        """What it is called: `loopback` or `testbed`."""
        return "loopback" if self.testbed is None else "testbed"

    @property
    def link_rate(self) -> str | None:
        """Rate of each link, where it is held to one."""
        return None if self.testbed is None else self.testbed.rate

    @property
    def title(self) -> str:
        """The place in words, with its cores."""
        if self.testbed is None:
            return f"loopback of this machine, {pluralize(self.cores, 'core')}"
        rate = self.link_rate or "no limit"
        hosts = pluralize(self.testbed.num_hosts, "host")
        return (
            f"testbed of {hosts}, {rate} each way, {pluralize(self.cores, 'core')} "
            "in all"
        )

    def tasks(
        self, command: Sequence[str], count: int, attempt: int
    ) -> list[ProcessSpec]:
        """Return the processes of a run, as `launch local` or `testbed run` has them.

        Args:
            command: words that start each.
            count: how many.
            attempt: number of the run: each has an address of its own.
        """
        # Each run listens at another port: connections of the one before may linger.
        address = f"127.0.0.1:{free_port()}"
        each = LocalLaunch(
            command=tuple(command),
            num_processes=count,
            devices_per_process=1,
            coordinator=self.testbed.coordinator(attempt) if self.testbed else address,
        )
        tasks = each.process_specs(single_thread_env(os.environ))
        return self.testbed.place_processes(tasks) if self.testbed else tasks


def single_thread_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose processes compute in one thread each.

    A process that takes all cores while it is alone leaves none for others to add, and
    would seem to scale badly wherever it runs.
    """
    # Flags that are set already stay, and ours come after: XLA takes the last of equal
    # ones. NPROC is what sizes the thread pools of XLA on CPUs.
    flags = [environ.get("XLA_FLAGS", ""), SINGLE_THREAD_VARS["XLA_FLAGS"]]
    joined = {"XLA_FLAGS": " ".join(filter(None, flags)), "NPROC": "1"}
    return {**environ, **SINGLE_THREAD_VARS, **joined}


def scaling_placement(max_processes: int, *, in_testbed: bool) -> ScalingPlacement:
    """Return where a study runs.

    Args:
        max_processes: processes at once.
        in_testbed: on the hosts that `jaxdist testbed up` has made.

    Raises:
        BadInput: no testbed is up, or it has too few hosts.
    """
    # All hosts of a testbed are on this machine: they share its cores as well.
    cores = available_cores()
    if not in_testbed:
        return ScalingPlacement(cores=cores)
    hosts = load_testbed()
    if hosts.num_hosts >= max_processes:
        return ScalingPlacement(cores=cores, testbed=hosts)
    raise BadInput(
        "the testbed has too few hosts",
        rule="a process has a host of its own",
        values=f"--processes {max_processes}, {pluralize(hosts.num_hosts, 'host')}",
        remedy=[
            f"--processes {hosts.num_hosts}",
            f"jaxdist testbed down, jaxdist testbed up --hosts {max_processes}",
        ],
    )
