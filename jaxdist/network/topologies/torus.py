"""Torus: endpoints in a box of any number of dims, each joined to its neighbours.

There are no switches: endpoints forward. A torus of one dim is a ring.

Source: Dally and Seitz 1987, "Deadlock-free message routing in multiprocessor
interconnection networks", IEEE Trans. Comput. C-36(5) (dimension order).
"""

import math
from collections.abc import Sequence

import numpy as np

from jaxdist.collectives.algorithms.rank_grid import near_square_divisor
from jaxdist.core.errors import BadInput
from jaxdist.network.routes import IntArray
from jaxdist.network.topologies.fabric import CableSpec, Fabric, uniform_cables


def torus(
    endpoints: int, cable: CableSpec, *, dims: Sequence[int] | None = None
) -> Fabric:
    """Return a torus.

    Args:
        endpoints: number of them; the first dim is the one in which neighbours in
            number are neighbours.
        cable: kind of the cables.
        dims: sizes; without them two, as near to each other as the number allows.

    Raises:
        BadInput: the sizes do not make so many endpoints.
    """
    wide = near_square_divisor(endpoints)
    box = tuple(dims or (endpoints // wide, wide))
    written = "x".join(map(str, box))
    if min(box) < 1 or math.prod(box) != endpoints:
        raise BadInput(
            f"{endpoints:,} endpoints do not fill a torus of {written}",
            rule="the product of the dims is the number of endpoints",
            values=f"dims={written}, which are {math.prod(box):,}",
            remedy=f"dims={endpoints // wide}x{wide}",
        )
    capacity, latency = uniform_cables(endpoints * len(box), cable)

    def walk(sources: IntArray, targets: IntArray) -> IntArray:
        # Dimension order, the first dim first, the shorter way round; where both are
        # equally short, upwards. Cable (i, k) goes from endpoint i upwards in dim k.
        at, stride = sources.copy(), 1
        columns = []
        for dim, size in enumerate(box):
            place, goal = at // stride % size, targets // stride % size
            ahead = (goal - place) % size
            up = ahead <= size - ahead
            hops = np.where(up, ahead, size - ahead)
            for hop in range(int(hops.max(initial=0))):
                gone = np.where(up, hop, -hop)
                here = (place + gone) % size
                owner, back = np.where(up, here, (here - 1) % size), ~up
                if size == 2:  # both ways round are one cable
                    owner, back = np.zeros_like(here), here == 1
                cables = (at + (owner - place) * stride) * len(box) + dim
                columns.append(np.where(hop < hops, 2 * cables + back, -1))
            at += (goal - place) * stride
            stride *= size
        if not columns:
            return np.zeros((len(at), 0), np.int64)
        return np.stack(columns, axis=1)

    # A dim of two has one cable between its ends, a dim of one none.
    ports = sum(min(size - 1, 2) for size in box)
    return Fabric(
        name=f"torus {written}",
        endpoints=endpoints,
        capacity=capacity,
        latency=latency,
        route_fn=walk,
        ports=ports,
        switches=0,
        injection_bandwidth=ports * cable.bandwidth,
        per_switch=box[0],
    )
