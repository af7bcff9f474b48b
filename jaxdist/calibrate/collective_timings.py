"""Timings of collectives as they come in a step, each after a kernel.

seconds = (a program of k + n links, kernels with a collective after each of them
           - one of k - the same without collectives) / n
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxdist.calibrate.alpha_beta_fit import CollectiveTiming
from jaxdist.calibrate.hosts import DeviceGroup
from jaxdist.calibrate.synchronized_timing import bind_on_all_devices, time_rounds

# A single collective, timed after all devices have met, takes half as long as in a step
# where processes share processors: they come to it together, and awake. So collectives
# are timed in chains of two lengths. That processes begin a program one after the other
# is in both, and cancels out.
ChainLengths = tuple[tuple[int, int], int]
"""Collectives in the shorter and in the longer chain, and rounds."""
# Small collectives need longer chains to be told from the noise.
_SHORT_MESSAGE_CHAINS: Final = (3, 11)
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
"""Bytes of a device's array, and how collectives of it are timed."""
QUICK_MESSAGE_SIZES: Final[Mapping[int, ChainLengths]] = {
    1 << 10: (_SHORT_MESSAGE_CHAINS, 7),
    1 << 15: (_SHORT_MESSAGE_CHAINS, 7),
    1 << 19: (_LONG_MESSAGE_CHAINS, 5),
    1 << 21: (_LONG_MESSAGE_CHAINS, 3),
}
"""The same where seconds count more than the last tenth of accuracy."""
# Libraries switch algorithms for large messages, and gradients of large networks are
# reduced in buckets beyond the sizes above: those go on by this factor.
_SIZE_FACTOR: Final = 4
# Smallest ratio of two sizes; closer ones tell nothing new.
_MIN_SIZE_RATIO: Final = 1.25
# Collectives in a link of a chain, where there is more than one.
_COLLECTIVES_PER_LINK: Final = {"collective-permute": 2}
# Kernels before a collective are as long as those of a small microbatch, 24 products of
# 128 rows and columns: 2 ms where two hosts share a core. Gradients are reduced after a
# backward pass, and a stage sends after a microbatch; devices then do not end at the
# same time, and links have rested, where a burst is free. A sum of 1 KB over four hosts
# on two processors takes 5.2 ms after a kernel of 0.1 ms, 7.9 after one of 2 and 7.6
# after one of 20 (1 Gbit, 2026-11-24).
_MATRIX_SIDE: Final = 128
_MATMULS: Final = 24
# Below this size one product is before a sum: most of them are batch statistics, which
# follow a part of a layer each.
_SMALL_MESSAGE_BYTES: Final = 1 << 16
# Makes one operation depend on another without changing its result.
_DEPENDENCY_SCALE: Final = 1e-9
_GROUP_AXIS: Final = "group"


@dataclass(frozen=True, kw_only=True)
class GroupTimings:
    """Timings of a kind of collective in groups of one size."""

    kind: str
    """Kind of collective, as in HLO."""
    group: DeviceGroup
    """The groups, all of which were timed at once."""
    timings: tuple[CollectiveTiming, ...]
    """Timings by the size of the result."""
    skew: float = 0.0
    """Seconds of waiting for late devices, which are not in the timings."""

    @property
    def group_size(self) -> int:
        """Number of devices in a group."""
        return self.group.size


def time_collectives(
    mesh: Mesh,
    groups: Sequence[DeviceGroup],
    max_bytes: int | None = None,
    *,
    quick: bool = False,
    on_timed: Callable[[str], None] = lambda what: None,
) -> tuple[GroupTimings, ...]:
    """Time every kind of collective in groups of devices.

    Args:
        mesh: mesh whose devices are in the order of the groups.
        groups: sizes and strides of the groups.
        max_bytes: largest size that is timed; None for that of `MESSAGE_SIZES`.
        quick: whether four sizes are timed in a few rounds, in place of all.
        on_timed: told of each kind of collective in each group once it is timed.
    """
    sizes = sizes_up_to(QUICK_MESSAGE_SIZES if quick else MESSAGE_SIZES, max_bytes)
    smallest = min(sizes)
    found = []
    for group in groups:
        grouped = group_mesh(mesh, group)
        for kind in _COLLECTIVE_FNS:
            timings = []
            for size, lengths in sizes.items():
                matmuls = matmuls_before(kind, size)
                # Arrays are rounded up, so that they divide over the group.
                payload = _chain_inputs(size, group.size)[1].nbytes
                if kind == "reduce-scatter":
                    payload //= group.size
                seconds = _collective_seconds(grouped, kind, size, lengths, matmuls)
                timings.append(
                    CollectiveTiming(kind=kind, payload=payload, seconds=seconds)
                )
            skew = 0.0
            if kind in _COLLECTIVES_PER_LINK:
                bare = _collective_seconds(grouped, kind, smallest, sizes[smallest], 1)
                per_kernel = _COLLECTIVES_PER_LINK[kind]
                timings, skew = separate_skew(timings, bare, per_kernel)
            found.append(
                GroupTimings(kind=kind, group=group, timings=tuple(timings), skew=skew)
            )
            on_timed(f"{kind} of {group.size} devices")
    return tuple(found)


def sizes_up_to(
    sizes: Mapping[int, ChainLengths], max_bytes: int | None
) -> dict[int, ChainLengths]:
    """Return the sizes below a largest one, more by factors of four, and that one.

    Args:
        sizes: bytes, and how they are timed.
        max_bytes: largest size; None leaves the sizes as they are.

    >>> some = {1 << 20: ((1, 3), 9), 1 << 23: ((1, 3), 3)}
    >>> [size / 2**20 for size in sizes_up_to(some, 64 << 20)]
    [1.0, 8.0, 32.0, 64.0]
    >>> [size / 2**20 for size in sizes_up_to(some, 4 << 20)]
    [1.0, 4.0]
    """
    if max_bytes is None:
        return dict(sizes)
    last = size = max(sizes)
    more = dict(sizes)
    while (size := size * _SIZE_FACTOR) < max_bytes:
        more[size] = sizes[last]
    # The largest size is timed as the next one of the grid.
    alike = min((size for size in sizes if size >= max_bytes), default=last)
    below = {
        size: how for size, how in more.items() if size * _MIN_SIZE_RATIO <= max_bytes
    }
    return {**below, max_bytes: sizes[alike]}


def separate_skew(
    after_long: Sequence[CollectiveTiming], after_short_s: float, per_kernel: int
) -> tuple[list[CollectiveTiming], float]:
    """Take the wait for late devices out of timings.

    Args:
        after_long: collectives after long kernels, the smallest array first.
        after_short_s: seconds of the smallest one after short kernels.
        per_kernel: collectives that follow a kernel, the first of which waits.

    Returns:
        The timings without the wait, and the wait: seconds for each kernel.

    >>> some = [CollectiveTiming(kind="collective-permute", payload=8, seconds=3e-3)]
    >>> timings, skew = separate_skew(some, after_short_s=1e-3, per_kernel=2)
    >>> skew, timings[0].seconds
    (0.004, 0.001)
    """
    # Devices that computed equally long do not end together where they share
    # processors. A stage then waits equally long for an array of any size, and not at
    # all where another stage computes for longer anyway
    # (jaxdist/oracle/schedule_times.py): the wait is no part of what links take. The
    # smallest array, whose bytes take no time, shows it.
    wait = max(0.0, after_long[0].seconds - after_short_s)
    least = min(after_short_s, after_long[0].seconds)
    timings = [
        replace(one, seconds=max(least, one.seconds - wait)) for one in after_long
    ]
    return timings, per_kernel * wait


def group_mesh(mesh: Mesh, group: DeviceGroup) -> Mesh:
    """Return the same devices with one axis along the groups."""
    # Groups lie side by side along the first and the last axis: all communicate at
    # once.
    shape = -1, group.size, group.stride
    return Mesh(mesh.devices.reshape(shape), ("others", _GROUP_AXIS, "beside"))


def _collective_seconds(
    grouped: Mesh, kind: str, size: int, chain_lengths: ChainLengths, products: int
) -> float:
    """Return the seconds of one collective after so many products."""
    (short, long), rounds = chain_lengths
    own = _chain_inputs(size, grouped.shape[_GROUP_AXIS])
    calls = [
        bind_on_all_devices(grouped, partial(_run_chain, each, products, links), *own)
        for each in (_COLLECTIVE_FNS[kind], _identity)
        for links in (short, long)
    ]
    took = np.median(time_rounds(grouped, calls, rounds), axis=1)
    with_short, with_long, without_short, without_long = took
    more = (with_long - with_short) - (without_long - without_short)
    # Noise may exceed a fast collective: at least a twentieth of the chain is its own.
    seconds = float(max(more, 0.05 * with_long)) / (long - short)
    return seconds / _COLLECTIVES_PER_LINK.get(kind, 1)


def matmuls_before(kind: str, size: int) -> int:
    """Return how many products come before a collective of so many bytes.

    >>> kinds = "all-reduce", "collective-permute"
    >>> tuple(matmuls_before(kind, 1 << 10) for kind in kinds)
    (1, 24)
    """
    # Parameters that fsdp gathers come one soon after the other, whatever their size.
    soon = kind == "all-gather" or (
        kind != "collective-permute" and size < _SMALL_MESSAGE_BYTES
    )
    return 1 if soon else _MATMULS


CollectiveFn = Callable[[jax.Array], jax.Array]


def _run_chain(
    collective: CollectiveFn, matmuls: int, links: int, square: jax.Array, x: jax.Array
) -> jax.Array:
    """Run products and collectives, each of which depends on those before."""
    work = square
    for _ in range(links):
        work = lax.fori_loop(0, matmuls, lambda _, work: jnp.tanh(work @ square), work)
        x = collective(x + _DEPENDENCY_SCALE * work[0, 0])
        work = work + _DEPENDENCY_SCALE * x[0]
    return x[:1] + work[0, :1]


def _chain_inputs(size: int, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a device's arrays: a square, and a vector that divides over a group."""
    # float32, in a length that reduce-scatters and all-to-alls can cut.
    length = math.ceil(size / 4 / devices) * devices
    square = np.full((_MATRIX_SIDE, _MATRIX_SIDE), 1 / _MATRIX_SIDE, np.float32)
    return square, np.ones(length, np.float32)


def _identity(x: jax.Array) -> jax.Array:
    return x


def _all_reduce(x: jax.Array) -> jax.Array:
    # A mean rather than a sum: numbers stay as they are along a chain.
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
    """Send to the next device, and back: two permutes, each one way on every link."""
    # Stages and neighbours of a split image send one way at a time, and wait for what
    # comes back; a pair that exchanges takes up to four times as long.
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
COLLECTIVE_KINDS: Final = tuple(_COLLECTIVE_FNS)
"""Kinds of collectives that are timed, as in HLO."""
