"""Packing: what lossy ways of summing compute, beside what they send.

    seconds a number = seconds in which a device does what all devices do for a sum
                       / devices / numbers of the sum

A way that rounds at random spends more on that than on its bytes. Each device plays all
of them here: collectives are moves in its own memory, and no link has a part in it.
Other devices do the same meanwhile, as in a step.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxdist.calibrate.together import on_all, rounds
from jaxdist.collectives.via import METHODS
from jaxdist.core.number import Number

WAYS: Final = ("bf16", "fp8", "int8", "int4", "sign", "random_k", "top_k", "power")
"""Ways that a search may choose (`jaxdist plan --lossy`)."""
_NUMBERS: Final = 1 << 22
"""Of all devices that one of them plays; those of a step do not stay in a cache."""
_COLUMNS: Final = 256
_ROUNDS: Final = 7
_AXIS: Final = "played"


def packing(
    mesh: Mesh, origin: str, ways: Sequence[str] = WAYS
) -> Mapping[str, Number]:
    """Time sums in every way.

    Args:
        mesh: more than one device.
        origin: of the numbers.
        ways: names of lossy ways.
    """
    return {way: Number(_seconds(mesh, way), origin) for way in ways}


def played(way: str, each: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Make a sum of all devices on one of them.

    Args:
        way: the name of a lossy way.
        each: [devices, rows, columns], what each one adds.

    Returns:
        What each one has of the sum, and what each one put into it; as `each`.
    """
    method = METHODS[way]

    def own(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = method.reduce([x], method.begin([x.shape]), jnp.int32(0), (_AXIS,))
        return found.total[0], found.sent[0]

    return jax.vmap(own, axis_name=_AXIS)(each)


def _seconds(mesh: Mesh, way: str) -> float:
    """Return the seconds of a number on one device."""
    rows = max(1, _NUMBERS // mesh.size // _COLUMNS)
    draw = np.random.default_rng(0)
    each = draw.standard_normal((mesh.size, rows, _COLUMNS)).astype(np.float32)

    def left(x: jax.Array) -> jax.Array:
        total, sent = played(way, x)
        return jnp.stack([jnp.max(total), jnp.max(x - sent)])

    call = on_all(mesh, left, each)
    (took,) = np.median(rounds(mesh, [call], _ROUNDS), axis=1)
    return float(took) / each.size
