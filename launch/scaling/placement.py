"""Places: where the processes of a study run, a computing thread each."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxdist.core.errors import BadInput
from jaxdist.launch.devices.platform import available_cores
from jaxdist.launch.distributed.environment import SINGLE_THREAD_VARS
from jaxdist.launch.launchers.local import LocalLaunch
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.launchers.processes.loopback import free_port
from jaxdist.launch.terminal.run_header import pluralize
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.manager import load_testbed


@dataclass(frozen=True, kw_only=True)
class ScalingPlacement:
    """This machine's loopback, or the hosts of its testbed."""

    cores: int
    """Cores that all processes share."""
    hosts: EmulatedCluster | None = None
    """The testbed; None is loopback."""

    @property
    def name(self) -> str:
        """What it is called: `loopback` or `testbed`."""
        return "loopback" if self.hosts is None else "testbed"

    @property
    def rate(self) -> str | None:
        """Rate of each link, where it is held to one."""
        return None if self.hosts is None else self.hosts.rate

    @property
    def title(self) -> str:
        """The same for people, with the cores."""
        if self.hosts is None:
            return f"loopback of this machine, {pluralize(self.cores, 'core')}"
        rate = self.rate or "no limit"
        hosts = pluralize(self.hosts.count, "host")
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
        address = f"127.0.0.1:{free_port()}"
        each = LocalLaunch(
            command=tuple(command),
            count=count,
            devices=1,
            coordinator=self.hosts.coordinator(attempt) if self.hosts else address,
        )
        tasks = each.tasks(single_thread_env(os.environ))
        return self.hosts.inside(tasks) if self.hosts else tasks


def single_thread_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose processes compute in one thread each.

    A process that takes all cores when it is alone has no more of them to be joined by
    others: it would seem to scale badly wherever it runs.
    """
    flags = [environ.get("XLA_FLAGS", ""), SINGLE_THREAD_VARS["XLA_FLAGS"]]
    joined = {"XLA_FLAGS": " ".join(filter(None, flags)), "NPROC": "1"}
    return {**environ, **SINGLE_THREAD_VARS, **joined}


def scaling_placement(most: int, *, in_testbed: bool) -> ScalingPlacement:
    """Return where a study runs.

    Args:
        most: processes at once.
        in_testbed: on the hosts that `jaxdist testbed up` has made.

    Raises:
        BadInput: no testbed is up, or it has too few hosts.
    """
    cores = available_cores()
    if not in_testbed:
        return ScalingPlacement(cores=cores)
    hosts = load_testbed()
    if hosts.count >= most:
        return ScalingPlacement(cores=cores, hosts=hosts)
    raise BadInput(
        "the testbed has too few hosts",
        rule="a process has a host of its own",
        values=f"--processes {most}, {pluralize(hosts.count, 'host')}",
        remedy=[
            f"--processes {hosts.count}",
            f"jaxdist testbed down, jaxdist testbed up --hosts {most}",
        ],
    )
