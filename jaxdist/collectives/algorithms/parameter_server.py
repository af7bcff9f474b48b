"""Parameter server: every rank sends to servers, which add up and send back.

The array is cut into one chunk a server; ranks 0, 1, ... are servers besides. k
servers, P ranks, S bytes:

    2 steps; a server receives and sends P-1 messages of S/k in each
    sent by a server (P-1) S/k + (k-1)/k S,  by another rank S

One server is the central form: (P-1) S on its link, twice. With a server on every rank
it is a reduce-scatter and an all-gather in which everybody talks to everybody:
2 (P-1)/P S.

Source: Li et al. 2014, "Scaling distributed machine learning with the parameter
server", OSDI. Servers answer at once here, as in synchronous training.
"""

import numpy as np

from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    check_ranks,
)
from jaxdist.collectives.algorithms.vectorized_transfers import uniform_transfers
from jaxdist.core.errors import BadInput


def parameter_server(ranks: int, servers: int = 1) -> CollectiveSchedule:
    """Return the central form, or one with several servers.

    Args:
        ranks: any number P.
        servers: ranks that serve as well, 1 to P.

    Raises:
        BadInput: more servers than ranks, or none.

    >>> [len(step.transfers) for step in parameter_server(4).steps]
    [3, 3]
    """
    return _served("parameter_server", ranks, servers)


def sharded_parameter_server(ranks: int) -> CollectiveSchedule:
    """Return the form in which every rank serves a part.

    Args:
        ranks: any number P.
    """
    return _served("sharded_parameter_server", ranks, ranks)


def _served(name: str, ranks: int, servers: int) -> CollectiveSchedule:
    if not 1 <= servers <= check_ranks(ranks):
        raise BadInput(
            f"{ranks} ranks cannot have {servers} servers",
            rule="1 to P ranks serve",
            values=f"ranks={ranks}, servers={servers}",
            remedy=f"servers={min(max(servers, 1), ranks)}",
        )
    # Rank r begins behind itself, so that not all ask the same server first.
    away, rank = np.divmod(np.arange(ranks, ranks * ranks), ranks)
    serves = (rank + away) % ranks < servers
    a, b = rank[serves], ((rank + away) % ranks)[serves]
    # Chunk c is summed on server c.
    up = uniform_transfers(a, b, starts=b, count=1, adds=True)
    down = uniform_transfers(b, a, starts=b, count=1, adds=False)
    steps = (ScheduleStep(up), ScheduleStep(down)) if a.size else ()
    return CollectiveSchedule(name=name, ranks=ranks, chunks=servers, steps=steps)
