"""Packing: what lossy ways of summing compute, beside what they send.

    seconds a number = (seconds of a sum that way - those of the collectives it is made
                        of, as the level prices them) / numbers of the sum

A way that rounds at random spends more on that than on its bytes. All devices pack at
once, as in a step.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import jax
import numpy as np
from jax.sharding import Mesh

from jaxdist.calibrate.together import on_all, rounds
from jaxdist.collectives.primitives import psum
from jaxdist.collectives.via import METHODS
from jaxdist.core.cluster import Cluster
from jaxdist.core.number import Number
from jaxdist.core.plan import MeshShape
from jaxdist.oracle.groups import group_of
from jaxdist.oracle.prices import seconds

WAYS: Final = ("bf16", "fp8", "int8", "int4", "sign", "random_k", "top_k", "power")
"""Ways that a search may choose (`jaxdist plan --lossy`)."""
_SIDE: Final = 360
"""Rows and columns of the matrix that is summed: half a MB."""
_LINKS: Final = (1, 3)
_ROUNDS: Final = 7
_AXIS: Final = "data"


def packing(
    mesh: Mesh, cluster: Cluster, origin: str, ways: Sequence[str] = WAYS
) -> Mapping[str, Number]:
    """Time sums in every way.

    Args:
        mesh: all devices lie along its data axis, more than one.
        cluster: with the lines of its level.
        origin: of the numbers.
        ways: names of lossy ways.
    """
    return {way: Number(_seconds(mesh, cluster, way), origin) for way in ways}


def _seconds(mesh: Mesh, cluster: Cluster, way: str) -> float:
    """Return the seconds of a number."""
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((_SIDE, _SIDE)).astype(np.float32)

    def summed(x: jax.Array, times: int) -> jax.Array:
        for _ in range(times):
            x = psum(x, _AXIS, way) / mesh.size
        return x

    calls = [
        on_all(mesh, lambda x, times=times: summed(x, times), matrix)
        for times in _LINKS
    ]
    few, many = np.median(rounds(mesh, calls, _ROUNDS), axis=1)
    took = float(many - few) / (_LINKS[1] - _LINKS[0])
    return max(0.0, took - _sent(cluster, mesh.size, way)) / matrix.size


def _sent(cluster: Cluster, devices: int, way: str) -> float:
    """Return the seconds of the collectives that a sum is made of."""
    group = group_of(cluster, MeshShape(data=devices), (_AXIS,))
    moved = METHODS[way].payloads([(_SIDE, _SIDE)], np.float32, {_AXIS: devices})
    return sum(seconds(each.kind, each.size, each.arrays, group) for each in moved)
