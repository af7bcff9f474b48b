"""Packing: what lossy ways of summing compute, beside what they send.

    seconds a number = seconds in which a device does what all devices do for a sum
                       / devices / numbers of the sum

A way that rounds at random spends more on that than on its bytes. Each device plays all
of them here: collectives are moves in its own memory, and no link has a part in it.
Other devices do the same meanwhile. As in a step there are several arrays, to which is
added what was left of them before, and what is left of them then is written.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxdist.calibrate.synchronized_timing import bind_on_all_devices, time_rounds
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS
from jaxdist.core.cluster.sourced_number import SourcedNumber

COMPRESSORS: Final = (
    "bf16",
    "fp8",
    "int8",
    "int4",
    "sign",
    "random_k",
    "top_k",
    "power",
)
"""Ways that a search may choose (`jaxdist plan --lossy`)."""
_ELEMENTS: Final = 1 << 22
"""Of all devices that one of them plays; those of a step do not stay in a cache."""
_COLUMNS: Final = 256
_SIZE_DIVISORS: Final = (2, 4, 8, 8)
"""Of an array each, one half and less: layers have weights of their own."""
_ROUNDS: Final = 7
_EMULATED_AXIS: Final = "played"


def measure_compression_cost(
    mesh: Mesh, provenance: str, compressors: Sequence[str] = COMPRESSORS
) -> Mapping[str, SourcedNumber]:
    """Time sums in every way.

    Args:
        mesh: more than one device.
        provenance: of the numbers.
        compressors: names of lossy ways.
    """
    return {
        way: SourcedNumber(_seconds_per_element(mesh, way), provenance)
        for way in compressors
    }


def emulate_all_reduce(
    compressor: str, contributions: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Make a sum of all devices on one of them.

    Args:
        compressor: the name of a lossy way.
        contributions: [devices, rows, columns], what each one adds of some arrays.

    Returns:
        What each one has of the sums, and what each one put into them; as
        `contributions`.
    """
    method = ALL_REDUCE_ALGORITHMS[compressor]

    def own(*arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        memory = method.init_state([x.shape for x in arrays])
        found = method.all_reduce(arrays, memory, jnp.int32(0), (_EMULATED_AXIS,))
        return list(found.total), list(found.contributions)

    return jax.vmap(own, axis_name=_EMULATED_AXIS)(*contributions)


def _seconds_per_element(mesh: Mesh, compressor: str) -> float:
    """Return the seconds of a number on one device."""
    rows = max(_SIZE_DIVISORS[-1], _ELEMENTS // mesh.size // _COLUMNS)
    draw = np.random.default_rng(0)
    given = [
        draw.standard_normal((mesh.size, rows // part, _COLUMNS)).astype(np.float32)
        for part in _SIZE_DIVISORS
    ]

    def step(*arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        grads, before = arrays[: len(given)], arrays[len(given) :]
        sums = [x + left for x, left in zip(grads, before, strict=True)]
        totals, sent = emulate_all_reduce(compressor, sums)
        return totals, [x - put for x, put in zip(sums, sent, strict=True)]

    call = bind_on_all_devices(mesh, step, *given, *given)
    (took,) = np.median(time_rounds(mesh, [call], _ROUNDS), axis=1)
    return float(took) / sum(x.size for x in given)
