"""Linked: which hosts in a box can speak to each other.

One asks another at a port where nobody listens: a refusal has come over the link.
"""

import subprocess
import sys
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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


def connected_hosts(testbed: "EmulatedCluster") -> frozenset[int]:
    """Return the hosts that reach each other, of several such groups the largest."""
    return largest_group(measure_reachability(testbed))


def largest_group(reachability: Mapping[int, Set[int]]) -> frozenset[int]:
    """Return the largest group of hosts, of equal ones that with the first host.

    Args:
        reachability: the hosts that each one reaches.

    >>> sorted(largest_group({0: {2}, 1: set(), 2: {0}}))
    [0, 2]
    >>> sorted(largest_group({0: set(), 1: set()}))
    [0]
    """
    groups = [
        frozenset(
            {host, *(other for other in others if host in reachability.get(other, ()))}
        )
        for host, others in sorted(reachability.items())
    ]
    return max(groups, key=len, default=frozenset())


def measure_reachability(testbed: "EmulatedCluster") -> dict[int, set[int]]:
    """Ask on every host that is there which others answer; takes 2 s at most."""
    number = {testbed.address(host): host for host in range(testbed.num_hosts)}
    asking = {
        host: subprocess.Popen(
            testbed.host_argv(
                host, sys.executable, "-I", "-S", "-c", _PROBE_SCRIPT, *number
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for host in range(testbed.num_hosts)
    }
    found = {host: child.communicate()[0].split() for host, child in asking.items()}
    return {
        host: {number[address] for address in found[host]}
        for host, child in asking.items()
        if child.returncode == 0
    }
