"""Torus: endpoints in a box of any number of dims, each joined to its neighbours.

A message goes along one dim after another, the first one first, the shorter way round;
where both are equally short, upwards. There are no switches: endpoints forward. A torus
of one dim is a ring.

Source: Dally and Seitz 1987, "Deadlock-free message routing in multiprocessor
interconnection networks", IEEE Trans. Comput. C-36(5) (dimension order).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
    if min(box) < 1 or math.prod(box) != endpoints:
        raise BadInput(
            f"{endpoints:,} endpoints do not fill a torus of {_format_dims(box)}",
            rule="the product of the dims is the number of endpoints",
            values=f"dims={_format_dims(box)}, which are {math.prod(box):,}",
            remedy=f"dims={_format_dims((endpoints // wide, wide))}",
        )
    capacity, latency = uniform_cables(endpoints * len(box), cable)
    ports = sum(min(size - 1, 2) for size in box)
    return Fabric(
        name=f"torus {_format_dims(box)}",
        endpoints=endpoints,
        capacity=capacity,
        latency=latency,
        route_fn=lambda sources, targets: _walk(sources, targets, box),
        ports=ports,
        switches=0,
        injection_bandwidth=ports * cable.bandwidth,
        per_switch=box[0],
    )


def _walk(sources: IntArray, targets: IntArray, box: tuple[int, ...]) -> IntArray:
    """List the cables; cable (i, k) goes from endpoint i upwards in dim k."""
    at, stride = sources.copy(), 1
    columns = []
    for dim, size in enumerate(box):
        place = at // stride % size
        goal = targets // stride % size
        ahead = (goal - place) % size
        up = ahead <= size - ahead
        hops = np.where(up, ahead, size - ahead)
        for hop in range(int(hops.max(initial=0))):
            gone = np.where(up, hop, -hop)
            here = at + ((place + gone) % size - place) * stride
            columns.append(
                np.where(hop < hops, _link(here, up, dim, stride, size, len(box)), -1)
            )
        at += (goal - place) * stride
        stride *= size
    return np.stack(columns, axis=1) if columns else np.zeros((len(at), 0), np.int64)


def _link(
    here: IntArray, up: NDArray[np.bool_], dim: int, stride: int, size: int, dims: int
) -> IntArray:
    place = here // stride % size
    below = here + ((place - 1) % size - place) * stride
    owner, back = np.where(up, here, below), ~up
    if size == 2:  # both ways round are one cable
        owner, back = here - place * stride, place == 1
    return 2 * (owner * dims + dim) + back


def _format_dims(box: Sequence[int]) -> str:
    return "x".join(map(str, box))
