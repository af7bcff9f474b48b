"""Trouble: what is done to one host of a testbed on purpose, and how it is undone."""

import os
import signal
from contextlib import suppress
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.iproute import run_command

FAULT_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
"""What each process of a host is sent."""


def parse_host(hosts: EmulatedCluster, name: str) -> int:
    """Return which host is meant by `h2`.

    Raises:
        BadInput: there is none of this name.
    """
    names = [f"h{rank}" for rank in range(hosts.count)]
    if name in names:
        return names.index(name)
    digits = "".join(sign for sign in name if sign.isdigit())
    near = f"h{digits}" if f"h{digits}" in names else did_you_mean(name, names)
    raise BadInput(
        f"no host {name}",
        rule=f"the hosts of this testbed are {names[0]} to {names[-1]}",
        remedy=f"did you mean {near}?" if near else names[-1],
    )


def cut_link(hosts: EmulatedCluster, rank: int) -> str:
    """Pull a host's cable: what it sends and what is sent to it is lost."""
    _set_switch_port(hosts, rank, "down")
    return "its link is cut"


def limit_link_rate(hosts: EmulatedCluster, rank: int, rate: str) -> str:
    """Give a host's link another rate, both ways.

    Raises:
        BadInput: it is no rate.
    """
    hosts.shape_one(rank, rate)
    return f"its link has {rate} each way"


def signal_host(hosts: EmulatedCluster, rank: int, how: str) -> str:
    """Send a signal to all that runs on a host.

    Args:
        hosts: the testbed.
        rank: which host.
        how: `kill` or `stop`.

    Raises:
        BadInput: nothing runs there.
    """
    pids = hosts.pids(rank)
    if not pids:
        raise BadInput(
            f"nothing runs on h{rank}",
            rule=f"--{how} is for the processes of a host",
            remedy="jaxdist testbed run -- train digits",
        )
    _send_signal(pids, FAULT_SIGNALS[how])
    return f"{FAULT_SIGNALS[how].name} to all that runs there"


def clear_faults(hosts: EmulatedCluster, rank: int) -> str:
    """Undo what was done: the cable, its rate, and processes that are stopped."""
    _set_switch_port(hosts, rank, "up")
    hosts.shape_one(rank, hosts.rate)
    _send_signal(hosts.pids(rank), signal.SIGCONT)
    return f"its link is there, {hosts.rate or 'no limit'} each way"


def _set_switch_port(hosts: EmulatedCluster, rank: int, state: str) -> None:
    space, port = hosts.ends(rank)[1]
    run_command("ip", "-n", space, "link", "set", "dev", port, state)


def _send_signal(pids: tuple[int, ...], how: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended in the meantime
            os.kill(pid, how)
