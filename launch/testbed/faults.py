"""Fault injection: what is done to one host of a testbed, and how it is undone."""

import os
import signal
from contextlib import suppress
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.namespaces import run_command

FAULT_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
"""The signal that each process of a host is sent."""


def parse_host(testbed: EmulatedCluster, name: str) -> int:
    """Return which host is meant by `h2`.

    Raises:
        BadInput: there is none of this name.
    """
    names = [f"h{rank}" for rank in range(testbed.num_hosts)]
    if name in names:
        return names.index(name)
    # `2`, `H2` and `host2` are most likely h2.
    digits = "".join(sign for sign in name if sign.isdigit())
    near = f"h{digits}" if f"h{digits}" in names else did_you_mean(name, names)
    raise BadInput(
        f"no host {name}",
        rule=f"the hosts of this testbed are {names[0]} to {names[-1]}",
        remedy=f"did you mean {near}?" if near else names[-1],
    )


def cut_link(testbed: EmulatedCluster, host_index: int) -> str:
    """Cut a host's link: what it sends and what is sent to it is lost."""
    # At the switch's end, so that the processes' own interface keeps its address.
    _set_switch_port(testbed, host_index, "down")
    return "its link is cut"


def limit_link_rate(testbed: EmulatedCluster, host_index: int, rate: str) -> str:
    """Give a host's link another rate, both ways.

    Raises:
        BadInput: it is no rate.
    """
    # The settings of the testbed keep the old rate: `mend` goes back to it.
    testbed.set_host_rate(host_index, rate)
    return f"its link has {rate} each way"


def signal_host(testbed: EmulatedCluster, host_index: int, fault: str) -> str:
    """Send a signal to all that runs on a host.

    Args:
        testbed: the testbed.
        host_index: which host.
        fault: `kill` or `stop`.

    Raises:
        BadInput: nothing runs there.
    """
    # SIGKILL is as a host that goes down; SIGSTOP is as one that hangs: its connections
    # stay open and nothing answers.
    pids = testbed.pids(host_index)
    if not pids:
        raise BadInput(
            f"nothing runs on h{host_index}",
            rule=f"--{fault} is for the processes of a host",
            remedy="jaxdist testbed run -- train digits",
        )
    _send_signal(pids, FAULT_SIGNALS[fault])
    return f"{FAULT_SIGNALS[fault].name} to all that runs there"


def clear_faults(testbed: EmulatedCluster, host_index: int) -> str:
    """Undo faults: the link is up at its old rate, and stopped processes continue."""
    _set_switch_port(testbed, host_index, "up")
    testbed.set_host_rate(host_index, testbed.rate)
    # A process that was not stopped takes no notice of SIGCONT.
    _send_signal(testbed.pids(host_index), signal.SIGCONT)
    return f"its link is there, {testbed.rate or 'no limit'} each way"


def _set_switch_port(hosts: EmulatedCluster, rank: int, state: str) -> None:
    space, port = hosts.link_ends(rank)[1]
    run_command("ip", "-n", space, "link", "set", "dev", port, state)


def _send_signal(pids: tuple[int, ...], signum: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended in the meantime
            os.kill(pid, signum)
