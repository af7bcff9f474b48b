"""Sparse sums: a step list that moves entries instead of whole chunks, with fill-in.

Each rank has k = d n entries of n numbers, at random places of its own. A sum of m
ranks has

    E[entries of a chunk of c numbers] = c (1 - (1 - d)^m)

and m is read from the list itself: how many ranks' arrays are in what a rank sends. An
entry is 8 bytes (index and value), a message begins with 4 bytes of count. A message
whose entries would take as many bytes as its numbers is sent as numbers.

Source: Renggli et al. 2019, "SparCML: high-performance sparse communication for machine
learning", SC (fill-in, switching to dense); Nguyen, Wahib and Takano 2019,
"Topology-aware sparse allreduce for large-scale deep learning", IPCCC.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.algorithms.vectorized_transfers import (
    TransferBlock,
    VectorizedTransfers,
    vectorize_transfers,
)
from jaxdist.core.errors import BadInput
from jaxdist.network.routes import FloatArray, IntArray
from jaxdist.network.topology import Topology

_MAX_RANK_CHUNKS = 1 << 28
RankCounts = NDArray[np.int32]
"""How many ranks' arrays are in something."""


MESSAGE_ENCODINGS = ("shorter", "entries", "numbers")
"""How a message is written: in the shorter way, always as entries, or as numbers."""


@dataclass(frozen=True, kw_only=True)
class SparseEncoding:
    """How entries are written."""

    density: float
    """d, the part of a rank's numbers that are entries."""
    value_bytes: int = 4
    """Bytes of a number."""
    index_bytes: int = 4
    """Bytes of an index."""
    header_bytes: int = 4
    """Bytes before the entries of a message."""
    reduce_encoding: str = "shorter"
    """How messages that are added are written, one of `MESSAGE_ENCODINGS`."""
    copy_encoding: str = "shorter"
    """How messages that replace are written."""
    seed: int | None = None
    """Of draws of the entries, as random supports have them; None takes the mean."""

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise BadInput(
                f"no array has {self.density:g} of its numbers",
                rule="a density is above 0 and at most 1",
                values=f"--density {self.density:g}",
                remedy="--density 0.01",
            )

    def sample_entries(
        self,
        elements: float,
        density: FloatArray,
        message: IntArray,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Return the entries of each message: expected, or drawn about that.

        Args:
            elements: of a chunk.
            density: `[K]`, the part of each chunk's numbers that are entries.
            message: `[K]`, the message of each chunk.
            rng: where they are drawn from.
        """
        mean = np.bincount(message, elements * density).astype(float)
        if self.seed is None:
            return mean
        spread = np.sqrt(np.bincount(message, elements * density * (1 - density)))
        return np.maximum(mean + spread * rng.normal(size=mean.size), 0)

    def union_density(self, counts: RankCounts) -> FloatArray:
        """Return the part of a chunk's numbers that a sum of so many ranks has."""
        return np.asarray(-np.expm1(counts * np.log1p(-min(self.density, 1 - 1e-16))))


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseStepMessages:
    """The messages of one step."""

    transfers: VectorizedTransfers
    """Who sends what to whom."""
    size: FloatArray
    """`[M]`, bytes."""
    entries: FloatArray
    """`[M]`, entries of what the target merges it to; 0 where numbers are added."""
    elements: FloatArray
    """`[M]`, numbers that are added at the target; 0 where entries are merged."""

    def compute_s(self, topology: Topology, value_bytes: int) -> FloatArray:
        """Return the seconds that the target works on each message.

        Args:
            topology: says how fast devices add and merge.
            value_bytes: bytes of a number.
        """
        merging = self.entries * topology.merge_s_per_entry
        return merging + self.elements * value_bytes * topology.reduce_s_per_byte


def sparse_step_messages(
    schedule: CollectiveSchedule, size: float, encoding: SparseEncoding
) -> Iterator[SparseStepMessages]:
    """Yield the messages of each step of a list.

    Args:
        schedule: P ranks, C chunks.
        size: bytes of the whole array.
        encoding: density and form.

    Raises:
        BadInput: a list too large to follow, P C above 2^28.
    """
    ranks, chunks = schedule.ranks, schedule.chunks
    if ranks * chunks > _MAX_RANK_CHUNKS:
        raise BadInput(
            f"fill-in of {schedule.name} on {ranks:,} ranks is too much to follow",
            rule="ranks times chunks are at most 2^28",
            values=f"ranks={ranks:,}, chunks={chunks:,}",
            remedy="fewer ranks, or a list with fewer chunks",
        )
    held = np.ones((ranks, chunks), np.int32)
    numbers = size / encoding.value_bytes / chunks
    rng = np.random.default_rng(encoding.seed)
    for step in schedule.steps:
        table = vectorize_transfers(step.transfers)
        sent = [_sent_counts(part, held) for part in table.blocks]
        pairs = zip(table.blocks, sent)
        results = [
            _reduce_counts(part, spans, counts, held) for part, (spans, counts) in pairs
        ]
        counts = [counts for _, counts in sent]
        yield _step_messages(table, counts, results, numbers, encoding, rng)


@dataclass(frozen=True, eq=False)
class _SentChunks:
    message: IntArray
    """`[K]`, the message of each chunk that is sent, ascending."""
    chunk: IntArray
    """`[K]`, the chunk."""


def _sent_counts(
    part: TransferBlock, held: RankCounts
) -> tuple[_SentChunks, RankCounts]:
    counts, starts = part.messages.counts, part.starts
    message = np.repeat(np.arange(counts.size), counts)
    before = np.cumsum(counts) - counts
    chunk = np.arange(message.size) - before[message] + starts[message]
    return _SentChunks(message, chunk), held[part.messages.sources[message], chunk]


def _reduce_counts(
    part: TransferBlock, spans: _SentChunks, counts: RankCounts, held: RankCounts
) -> RankCounts:
    """Take in what a part brings; return how many ranks are in each result.

    Of several messages to one target, each is merged to what those before it left.
    """
    target = part.messages.targets[spans.message]
    if not part.messages.adds:
        held[target, spans.chunk] = counts
        return counts
    place = target * held.shape[1] + spans.chunk
    order = np.argsort(place, kind="stable")
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    total = np.cumsum(counts[order])
    before = np.repeat(
        total[first] - counts[order][first], np.diff(first, append=order.size)
    )
    results = np.empty_like(counts)
    results[order] = held.reshape(-1)[place[order]] + total - before
    np.add.at(held, (target, spans.chunk), counts)
    return results


def _step_messages(
    table: VectorizedTransfers,
    sent: list[RankCounts],
    results: list[RankCounts],
    numbers: float,
    entries: SparseEncoding,
    rng: np.random.Generator,
) -> SparseStepMessages:
    each = []
    for part, counts, result in zip(table.blocks, sent, results):
        moves = part.messages
        message = np.repeat(np.arange(moves.counts.size), moves.counts)
        filled = entries.sample_entries(
            numbers, entries.union_density(counts), message, rng
        )
        whole = numbers * moves.counts.astype(float)
        sparse = entries.header_bytes + filled * (
            entries.value_bytes + entries.index_bytes
        )
        is_dense = _is_dense(sparse, entries.value_bytes * whole, moves.adds, entries)
        size = np.where(is_dense, entries.value_bytes * whole, sparse)
        grown = numbers * np.bincount(message, entries.union_density(result))
        merged = np.where(is_dense | (not moves.adds), 0.0, grown)
        added = np.where(is_dense & moves.adds, whole, 0.0)
        each.append((size, merged, added))
    columns = (np.concatenate(column) for column in zip(*each))
    size, merged, added = columns if each else (np.zeros(0),) * 3
    return SparseStepMessages(
        transfers=table, size=size, entries=merged, elements=added
    )


def _is_dense(
    sparse: NDArray[np.floating], dense: FloatArray, adds: bool, entries: SparseEncoding
) -> NDArray[np.bool_]:
    match entries.reduce_encoding if adds else entries.copy_encoding:
        case "shorter":
            return np.asarray(sparse >= dense)
        case form:
            return np.full(sparse.shape, form == "numbers")
