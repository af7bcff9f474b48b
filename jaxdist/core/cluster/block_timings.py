"""Timed blocks: measured times of whole blocks of a network, by samples.

    log seconds(n)   linear in log n between the numbers of samples that were timed,
                     with the first slope below them; above them proportional to n
    kept(n)          proportional to n, from the nearest

A block is more than its products: what lies between them, and what is kept for the way
back, costs as much where they are small.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from jaxdist.core.cluster.kernel_timings import check_peak, scale_time
from jaxdist.core.errors import BadInput
from jaxdist.core.profile import Profile


@dataclass(frozen=True, kw_only=True)
class BlockTiming:
    """A block that was timed."""

    key: str
    """Which block, as `block_signature` names it."""
    samples: float
    """Of the microbatch."""
    forward_s: float
    """Seconds of its forward pass, which writes what the backward pass needs."""
    backward_s: float
    """Seconds of its backward pass."""
    kept: float
    """Bytes that it keeps for the backward pass besides parameters and input."""

    def __post_init__(self) -> None:
        least = min(self.samples, self.forward_s, self.backward_s)
        if least <= 0 or self.kept < 0:
            raise BadInput(
                "a block that takes no time",
                rule="samples and seconds of a block are above 0, bytes 0 at least",
                values=f"{self}",
                remedy="jaxdist calibrate EXPERIMENT measures them",
            )

    @property
    def row(self) -> list[Any]:
        """The same as a row of a file; `of_row` reads it."""
        return list(astuple(self))

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        """Read a row.

        Raises:
            BadInput: it has other columns.
        """
        names = [field.name for field in fields(cls)]
        # A bool is an int in Python, and no number of a table.
        kinds = [isinstance(x, int | float) and type(x) is not bool for x in row[1:]]
        if len(row) != len(names) or not isinstance(row[0], str) or not all(kinds):
            raise BadInput(
                "no row of a block",
                rule=f"[{', '.join(names)}], all but the key numbers",
                values=f"{list(row)}",
                remedy='["Block-0123abcd", 8, 1.0e-3, 2.0e-3, 65536]',
            )
        return cls(**dict(zip(names, row, strict=True)))


@dataclass(frozen=True, kw_only=True)
class BlockTimings:
    """Measured times of blocks of networks on a device."""

    origin: str
    """As of a `SourcedNumber`."""
    peak: float
    """FLOPs a second of the device then; blocks of a faster one take less by that."""
    timed: tuple[BlockTiming, ...]
    """In any order; the last of equal keys and samples counts."""

    def __post_init__(self) -> None:
        check_peak("blocks", self.peak, self.origin)

    def with_more(self, newer: "BlockTimings") -> "BlockTimings":
        """Add blocks; those timed again replace what they took before."""
        before = (scale_time(one, self.peak / newer.peak) for one in self.timed)
        return replace(newer, timed=_latest((*before, *newer.timed)))

    def at(self, key: str, samples: float, peak: float) -> BlockTiming | None:
        """Return what a block takes; None if it was not timed.

        Args:
            key: as `block_signature` names it.
            samples: of the microbatch, a fraction where devices share out a sample.
            peak: FLOPs a second of the device.

        >>> one = BlockTiming(
        ...     key="a", samples=2, forward_s=1.0, backward_s=2.0, kept=8
        ... )
        >>> four = replace(one, samples=8, forward_s=2.0, backward_s=8.0, kept=32)
        >>> blocks = BlockTimings(origin="given: me", peak=1.0, timed=(one, four))
        >>> found = blocks.at("a", 4, 1.0)
        >>> round(found.forward_s, 3), round(found.backward_s, 3), found.kept
        (1.414, 4.0, 16.0)
        """
        known = self._by_key.get(key)
        if not known or samples <= 0:
            return None
        # Kept bytes are exact and linear in samples, so the nearest entry suffices.
        near = min(known, key=lambda one: abs(math.log(one.samples / samples)))
        found = BlockTiming(
            key=key,
            samples=samples,
            forward_s=_between([(x.samples, x.forward_s) for x in known], samples),
            backward_s=_between([(x.samples, x.backward_s) for x in known], samples),
            kept=near.kept * samples / near.samples,
        )
        return scale_time(found, self.peak / peak)

    @cached_property
    def _by_key(self) -> dict[str, list[BlockTiming]]:
        found: dict[str, list[BlockTiming]] = {}
        for one in sorted(_latest(self.timed), key=lambda one: one.samples):
            found.setdefault(one.key, []).append(one)
        return found


def block_signature(profile: Profile, block: str) -> str:
    """Name what a block computes on a sample: the same for blocks of equal layers.

    Args:
        profile: of the network, on any batch.
        block: name of one of its chain.

    Returns:
        Its kind and eight hexadecimal digits, as `Block-0123abcd`.
    """
    whole = next(one for one in profile.blocks if one.name == block)
    # The last block also has the loss, so it is not the same as an equal one before it.
    last = whole is profile.blocks[-1]
    own = [
        (x.kind, x.weights, x.parameter_bytes, x.output_bytes // profile.batch)
        for x in profile.layers_of(block)
    ]
    digest = hashlib.sha256(repr((own, last)).encode()).hexdigest()
    return f"{whole.kind}-{digest[:8]}"


def _latest(timed: Sequence[BlockTiming]) -> tuple[BlockTiming, ...]:
    return tuple({(one.key, one.samples): one for one in timed}.values())


def _between(points: Sequence[tuple[float, float]], size: float) -> float:
    """Read a line through points over logarithms; above the last proportional."""
    last, most = points[-1]
    if size >= last or len(points) == 1:
        return most * size / last
    after = next(i for i, (one, _) in enumerate(points) if i and size <= one)
    (low, at_low), (high, at_high) = points[after - 1], points[after]
    # Noise can make more samples look faster; no block is predicted to be so.
    steep = math.log(at_high / at_low) / math.log(high / low)
    return at_low * math.exp(max(0.0, steep) * math.log(size / low))
