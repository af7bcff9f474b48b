"""Processors: those of a machine, dealt out to the hosts that it plays.

Hosts of a cluster do not take processors from each other. Processes that may run
anywhere do, by turns that no two steps have alike: a product of one runs on all
processors, and waits for whoever has one of them.
"""

from collections.abc import Collection


def cpus_per_host(cpus: Collection[int], num_hosts: int) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each host, as many for each.

    Hosts that are more than the processors share one with as many others. Where they do
    not divide, nobody has processors of its own: some hosts would be slower.

    Args:
        cpus: numbers of those there are.
        num_hosts: how many there are.

    >>> cpus_per_host({0, 1, 2, 3, 4}, 2), cpus_per_host({0, 1}, 4)
    (((0, 1), (2, 3)), ((0,), (1,), (0,), (1,)))
    >>> cpus_per_host({0, 1}, 3)
    ((0, 1), (0, 1), (0, 1))
    """
    every = tuple(sorted(cpus))
    each = len(every) // num_hosts
    if each:
        return tuple(every[n * each : (n + 1) * each] for n in range(num_hosts))
    if num_hosts % len(every):
        return (every,) * num_hosts
    return tuple((every[n % len(every)],) for n in range(num_hosts))
