"""Chains: collectives timed as they come in a step, each behind a kernel.

    seconds = (a program of k + n links, kernels with a collective behind them
               - one of k - the same without collectives) / n

One collective alone, after devices have met, takes half of that where processes share
processors: they come to it together, and awake. That they begin a program one after
the other is in both, and falls out. Gradients are summed behind a backward pass, and
a stage hands on behind a microbatch, so kernels are as long as those of a small one:
devices do not end at the same time, and links have rested where a burst is free. Small
sums and what fsdp fetches come one soon after the other, and are behind short kernels.
A sum of 1 KB over four hosts on two processors takes 5.2 ms behind a kernel of 0.1 ms,
7.9 behind one of 2 and 7.6 behind one of 20 (1 Gbit, 2026-11-24).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxdist.calibrate.alpha_beta_fit import CollectiveTiming
from jaxdist.calibrate.hosts import DeviceGroup
from jaxdist.calibrate.message_sizes import ChainLengths, sizes_up_to
from jaxdist.calibrate.skew import separate_skew
from jaxdist.calibrate.synchronized_timing import bind_on_all_devices, time_rounds

_SHORT_MESSAGE_CHAINS: Final = (3, 11)
"""Collectives in two chains of small ones; large ones take their time by themselves."""
_LONG_MESSAGE_CHAINS: Final = (1, 3)
MESSAGE_SIZES: Final[Mapping[int, ChainLengths]] = {
    1 << 10: (_SHORT_MESSAGE_CHAINS, 11),
    1 << 13: (_SHORT_MESSAGE_CHAINS, 11),
    1 << 15: (_SHORT_MESSAGE_CHAINS, 11),
    1 << 17: (_SHORT_MESSAGE_CHAINS, 7),
    1 << 19: (_LONG_MESSAGE_CHAINS, 9),
    1 << 21: (_LONG_MESSAGE_CHAINS, 5),
    1 << 23: (_LONG_MESSAGE_CHAINS, 3),
}
"""Bytes of what a device has, collectives in two chains of them, and rounds."""
_COLLECTIVES_PER_LINK: Final = {"collective-permute": 2}
"""Collectives in a link of a chain, where there is more than one."""
_MATRIX_SIDE: Final = 128
"""Rows and columns of the products before each."""
_MATMULS: Final = 24
"""How many: 2 ms where two hosts share a core."""
_SMALL_MESSAGE_BYTES: Final = 1 << 16
"""Bytes below which one product is before a sum: many a step are statistics, behind a
part of a layer each."""
_DEPENDENCY_SCALE: Final = 1e-9
"""Makes what follows depend on what was before, and changes nothing."""
_GROUP_AXIS: Final = "group"


@dataclass(frozen=True, kw_only=True)
class GroupTimings:
    """A kind of collective in groups of one size, timed."""

    kind: str
    """As the compiler names it."""
    group: DeviceGroup
    """The groups; all of them at once."""
    timings: tuple[CollectiveTiming, ...]
    """By the size of its result."""
    skew: float = 0.0
    """Seconds that were taken out of them: of a wait for devices that are late."""

    @property
    def group_size(self) -> int:
        """Of a group."""
        return self.group.size


def time_collectives(
    mesh: Mesh, groups: Sequence[DeviceGroup], max_bytes: int | None = None
) -> tuple[GroupTimings, ...]:
    """Time every kind of collective in groups of devices.

    Args:
        mesh: its devices stand in the order of the groups.
        groups: how they lie.
        max_bytes: bytes up to which they are timed; None for those of `MESSAGE_SIZES`.
    """
    sizes = sizes_up_to(MESSAGE_SIZES, max_bytes)
    return tuple(
        _time_collective(group_mesh(mesh, among), kind, among, sizes)
        for among in groups
        for kind in _COLLECTIVE_FNS
    )


def _time_collective(
    grouped: Mesh, kind: str, group: DeviceGroup, sizes: Mapping[int, ChainLengths]
) -> GroupTimings:
    timings = tuple(
        CollectiveTiming(
            kind=kind,
            payload=_result_bytes(kind, size, group.size),
            seconds=_collective_seconds(
                grouped, kind, size, times, matmuls_before(kind, size)
            ),
        )
        for size, times in sizes.items()
    )
    if kind not in _COLLECTIVES_PER_LINK:
        return GroupTimings(kind=kind, group=group, timings=timings)
    smallest = min(sizes)
    soon = _collective_seconds(grouped, kind, smallest, sizes[smallest], 1)
    found = separate_skew(timings, soon, _COLLECTIVES_PER_LINK[kind])
    return GroupTimings(kind=kind, group=group, timings=found.timings, skew=found.skew)


def group_mesh(mesh: Mesh, group: DeviceGroup) -> Mesh:
    """Return the same devices with one axis along the groups."""
    shape = -1, group.size, group.stride
    return Mesh(mesh.devices.reshape(shape), ("others", _GROUP_AXIS, "beside"))


def _collective_seconds(
    grouped: Mesh, kind: str, size: int, chain_lengths: ChainLengths, products: int
) -> float:
    """Return what one collective takes behind so many products."""
    (links, count), own = chain_lengths, _chain_inputs(size, grouped.shape[_GROUP_AXIS])
    calls = [
        bind_on_all_devices(grouped, partial(_run_chain, each, products, many), *own)
        for each in (_COLLECTIVE_FNS[kind], _identity)
        for many in links
    ]
    few, some, *kernels = np.median(time_rounds(grouped, calls, count), axis=1)
    more = (some - few) - (kernels[1] - kernels[0])
    seconds = float(max(more, 0.05 * some)) / (links[1] - links[0])
    return seconds / _COLLECTIVES_PER_LINK.get(kind, 1)


def matmuls_before(kind: str, size: int) -> int:
    """Return how many products are before a collective of so many bytes.

    >>> kinds = "all-reduce", "collective-permute"
    >>> tuple(matmuls_before(kind, 1 << 10) for kind in kinds)
    (1, 24)
    """
    soon = kind == "all-gather" or (
        kind != "collective-permute" and size < _SMALL_MESSAGE_BYTES
    )
    return 1 if soon else _MATMULS


CollectiveFn = Callable[[jax.Array], jax.Array]


def _run_chain(
    collective: CollectiveFn, matmuls: int, links: int, square: jax.Array, x: jax.Array
) -> jax.Array:
    """Return the last of products and collectives that each need those before."""
    work = square
    for _ in range(links):
        work = lax.fori_loop(0, matmuls, lambda _, work: jnp.tanh(work @ square), work)
        x = collective(x + _DEPENDENCY_SCALE * work[0, 0])
        work = work + _DEPENDENCY_SCALE * x[0]
    return x[:1] + work[0, :1]


def _chain_inputs(size: int, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what a device has: a square, and a vector that divides over a group."""
    length = math.ceil(size / 4 / devices) * devices
    square = np.full((_MATRIX_SIDE, _MATRIX_SIDE), 1 / _MATRIX_SIDE, np.float32)
    return square, np.ones(length, np.float32)


def _result_bytes(kind: str, size: int, devices: int) -> int:
    """Return the bytes of a collective's result on one device."""
    whole = 4 * len(_chain_inputs(size, devices)[1])
    return whole // devices if kind == "reduce-scatter" else whole


def _identity(x: jax.Array) -> jax.Array:
    return x


def _all_reduce(x: jax.Array) -> jax.Array:
    return lax.psum(x, _GROUP_AXIS) / lax.axis_size(_GROUP_AXIS)


def _all_gather(x: jax.Array) -> jax.Array:
    own = x[: len(x) // lax.axis_size(_GROUP_AXIS)]
    return lax.all_gather(own, _GROUP_AXIS, tiled=True)


def _reduce_scatter(x: jax.Array) -> jax.Array:
    own = lax.psum_scatter(x, _GROUP_AXIS, tiled=True) / lax.axis_size(_GROUP_AXIS)
    return x.at[: len(own)].set(own)


def _all_to_all(x: jax.Array) -> jax.Array:
    rows = x.reshape(lax.axis_size(_GROUP_AXIS), -1)
    return lax.all_to_all(rows, _GROUP_AXIS, 0, 0).reshape(-1)


def _permute_both_ways(x: jax.Array) -> jax.Array:
    """Pass on to the next, and back: two permutes, each with one way on every link.

    Stages and neighbours of a split image pass one way at a time, and wait for what
    comes back; a pair that exchanges takes up to four times as long.
    """
    on = [(one, one + 1) for one in range(lax.axis_size(_GROUP_AXIS) - 1)]
    there = lax.ppermute(x, _GROUP_AXIS, on)
    return lax.ppermute(
        x + _DEPENDENCY_SCALE * there, _GROUP_AXIS, [(b, a) for a, b in on]
    )


_COLLECTIVE_FNS: Final[Mapping[str, CollectiveFn]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _permute_both_ways,
}
