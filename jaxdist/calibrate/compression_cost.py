"""Compute time of compressed all-reduces, beside what they send.

seconds a number = seconds in which a device does what all devices do for a sum
                   / devices / numbers of the sum
"""

from collections.abc import Mapping, Sequence
from functools import partial
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
"""Compressors that a search may choose (`jaxdist plan --compressors`)."""
# Elements of all emulated devices: as in a step, more than caches hold.
_ELEMENTS: Final = 1 << 22
_COLUMNS: Final = 256
# Four arrays that are a half of the elements and less, as layers have their own
# weights.
_SIZE_DIVISORS: Final = (2, 4, 8, 8)
_ROUNDS: Final = 7
_EMULATED_AXIS: Final = "emulated"


def measure_compression_cost(
    mesh: Mesh, provenance: str, compressors: Sequence[str] = COMPRESSORS
) -> Mapping[str, SourcedNumber]:
    """Time the computations of compressed all-reduces, in seconds an element.

    Args:
        mesh: mesh of more than one device.
        provenance: origin of the numbers.
        compressors: names of compressors.
    """
    # Stochastic rounding, for one, takes longer than sending the bytes. Each device
    # does the work of all of them, with collectives that are moves in its own memory:
    # no link has a part in it. The other devices do the same meanwhile.
    rows = max(_SIZE_DIVISORS[-1], _ELEMENTS // mesh.size // _COLUMNS)
    draw = np.random.default_rng(0)
    shapes = [(mesh.size, rows // part, _COLUMNS) for part in _SIZE_DIVISORS]
    given = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]

    def step(
        compressor: str, *arrays: jax.Array
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        # As in a step with error feedback, residuals are added before and written
        # after.
        grads, residuals = arrays[: len(given)], arrays[len(given) :]
        sums = [x + left for x, left in zip(grads, residuals, strict=True)]
        totals, sent = emulate_all_reduce(compressor, sums)
        return totals, [x - put for x, put in zip(sums, sent, strict=True)]

    costs = {}
    for compressor in compressors:
        call = bind_on_all_devices(mesh, partial(step, compressor), *given, *given)
        (took,) = np.median(time_rounds(mesh, [call], _ROUNDS), axis=1)
        seconds = float(took) / sum(x.size for x in given)
        costs[compressor] = SourcedNumber(seconds, provenance)
    return costs


def emulate_all_reduce(
    compressor: str, contributions: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Do a compressed all-reduce of several devices on one of them.

    Args:
        compressor: name of a compressor.
        contributions: arrays [devices, rows, columns], of all emulated devices.

    Returns:
        The sums of each device, and what each one sent of its contribution; in the
        shapes of `contributions`.
    """
    method = ALL_REDUCE_ALGORITHMS[compressor]

    def own(*arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        memory = method.init_state([x.shape for x in arrays])
        found = method.all_reduce(arrays, memory, jnp.int32(0), (_EMULATED_AXIS,))
        return list(found.total), list(found.contributions)

    return jax.vmap(own, axis_name=_EMULATED_AXIS)(*contributions)
