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
from jaxdist.calibrate.message_sizes import ChainLengths, up_to
from jaxdist.calibrate.skew import apart
from jaxdist.calibrate.synchronized_timing import on_all, rounds

_SOME: Final = (3, 11)
"""Collectives in two chains of small ones; large ones take their time by themselves."""
_FEW: Final = (1, 3)
SIZES: Final[Mapping[int, ChainLengths]] = {
    1 << 10: (_SOME, 11),
    1 << 13: (_SOME, 11),
    1 << 15: (_SOME, 11),
    1 << 17: (_SOME, 7),
    1 << 19: (_FEW, 9),
    1 << 21: (_FEW, 5),
    1 << 23: (_FEW, 3),
}
"""Bytes of what a device has, collectives in two chains of them, and rounds."""
_IN_A_LINK: Final = {"collective-permute": 2}
"""Collectives in a link of a chain, where there is more than one."""
_SIDE: Final = 128
"""Rows and columns of the products before each."""
_PRODUCTS: Final = 24
"""How many: 2 ms where two hosts share a core."""
_SMALL: Final = 1 << 16
"""Bytes below which one product is before a sum: many a step are statistics, behind a
part of a layer each."""
_LITTLE: Final = 1e-9
"""Makes what follows depend on what was before, and changes nothing."""
_GROUP: Final = "group"


@dataclass(frozen=True, kw_only=True)
class GroupTimings:
    """A kind of collective in groups of one size, timed."""

    kind: str
    """As the compiler names it."""
    among: DeviceGroup
    """The groups; all of them at once."""
    timings: tuple[CollectiveTiming, ...]
    """By the size of its result."""
    skew: float = 0.0
    """Seconds that were taken out of them: of a wait for devices that are late."""

    @property
    def devices(self) -> int:
        """Of a group."""
        return self.among.devices


def chained(
    mesh: Mesh, groups: Sequence[DeviceGroup], largest: int | None = None
) -> tuple[GroupTimings, ...]:
    """Time every kind of collective in groups of devices.

    Args:
        mesh: its devices stand in the order of the groups.
        groups: how they lie.
        largest: bytes up to which they are timed; None for those of `SIZES`.
    """
    sizes = up_to(SIZES, largest)
    return tuple(
        _chained(parted(mesh, among), kind, among, sizes)
        for among in groups
        for kind in _KINDS
    )


def _chained(
    grouped: Mesh, kind: str, among: DeviceGroup, sizes: Mapping[int, ChainLengths]
) -> GroupTimings:
    timings = tuple(
        CollectiveTiming(
            kind=kind,
            payload=_result(kind, size, among.devices),
            seconds=_seconds(grouped, kind, size, times, before(kind, size)),
        )
        for size, times in sizes.items()
    )
    if kind not in _IN_A_LINK:
        return GroupTimings(kind=kind, among=among, timings=timings)
    smallest = min(sizes)
    soon = _seconds(grouped, kind, smallest, sizes[smallest], 1)
    found = apart(timings, soon, _IN_A_LINK[kind])
    return GroupTimings(kind=kind, among=among, timings=found.timings, skew=found.skew)


def parted(mesh: Mesh, among: DeviceGroup) -> Mesh:
    """Return the same devices with one axis along the groups."""
    shape = -1, among.devices, among.stride
    return Mesh(mesh.devices.reshape(shape), ("others", _GROUP, "beside"))


def _seconds(
    grouped: Mesh, kind: str, size: int, times: ChainLengths, products: int
) -> float:
    """Return what one collective takes behind so many products."""
    (links, count), own = times, _own(size, grouped.shape[_GROUP])
    calls = [
        on_all(grouped, partial(_chain, each, products, many), *own)
        for each in (_KINDS[kind], _alone)
        for many in links
    ]
    few, some, *kernels = np.median(rounds(grouped, calls, count), axis=1)
    more = (some - few) - (kernels[1] - kernels[0])
    seconds = float(max(more, 0.05 * some)) / (links[1] - links[0])
    return seconds / _IN_A_LINK.get(kind, 1)


def before(kind: str, size: int) -> int:
    """Return how many products are before a collective of so many bytes.

    >>> before("all-reduce", 1 << 10), before("collective-permute", 1 << 10)
    (1, 24)
    """
    soon = kind == "all-gather" or (kind != "collective-permute" and size < _SMALL)
    return 1 if soon else _PRODUCTS


CollectiveFn = Callable[[jax.Array], jax.Array]


def _chain(
    collective: CollectiveFn, products: int, links: int, square: jax.Array, x: jax.Array
) -> jax.Array:
    """Return the last of products and collectives that each need those before."""
    work = square
    for _ in range(links):
        work = lax.fori_loop(0, products, lambda _, work: jnp.tanh(work @ square), work)
        x = collective(x + _LITTLE * work[0, 0])
        work = work + _LITTLE * x[0]
    return x[:1] + work[0, :1]


def _own(size: int, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what a device has: a square, and a vector that divides over a group."""
    length = math.ceil(size / 4 / devices) * devices
    square = np.full((_SIDE, _SIDE), 1 / _SIDE, np.float32)
    return square, np.ones(length, np.float32)


def _result(kind: str, size: int, devices: int) -> int:
    """Return the bytes of a collective's result on one device."""
    whole = 4 * len(_own(size, devices)[1])
    return whole // devices if kind == "reduce-scatter" else whole


def _alone(x: jax.Array) -> jax.Array:
    return x


def _reduced(x: jax.Array) -> jax.Array:
    return lax.psum(x, _GROUP) / lax.axis_size(_GROUP)


def _gathered(x: jax.Array) -> jax.Array:
    own = x[: len(x) // lax.axis_size(_GROUP)]
    return lax.all_gather(own, _GROUP, tiled=True)


def _scattered(x: jax.Array) -> jax.Array:
    own = lax.psum_scatter(x, _GROUP, tiled=True) / lax.axis_size(_GROUP)
    return x.at[: len(own)].set(own)


def _exchanged(x: jax.Array) -> jax.Array:
    rows = x.reshape(lax.axis_size(_GROUP), -1)
    return lax.all_to_all(rows, _GROUP, 0, 0).reshape(-1)


def _passed(x: jax.Array) -> jax.Array:
    """Pass on to the next, and back: two permutes, each with one way on every link.

    Stages and neighbours of a split image pass one way at a time, and wait for what
    comes back; a pair that exchanges takes up to four times as long.
    """
    on = [(one, one + 1) for one in range(lax.axis_size(_GROUP) - 1)]
    there = lax.ppermute(x, _GROUP, on)
    return lax.ppermute(x + _LITTLE * there, _GROUP, [(b, a) for a, b in on])


_KINDS: Final[Mapping[str, CollectiveFn]] = {
    "all-reduce": _reduced,
    "all-gather": _gathered,
    "reduce-scatter": _scattered,
    "all-to-all": _exchanged,
    "collective-permute": _passed,
}
