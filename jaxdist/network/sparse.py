"""Sparse all-reduce: a schedule that moves entries instead of whole chunks.

Each rank has k = d n entries of n elements, at random indices of its own. A sum of m
ranks has, by fill-in,

    E[entries of a chunk of c elements] = c (1 - (1 - d)^m)

and m is read from the schedule itself: how many ranks' arrays are in what a rank sends.
An entry is 8 bytes (index and value), a message begins with 4 bytes of count. A message
whose entries would take as many bytes as its elements is sent dense.

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
    VectorizedTransfers,
    vectorize_transfers,
)
from jaxdist.core.errors import BadInput
from jaxdist.network.concurrent import CollectiveMessages
from jaxdist.network.messages import MessageBatch
from jaxdist.network.routes import FloatArray, IntArray
from jaxdist.network.simulate import (
    CollectiveSimulation,
    NetworkModel,
    SimulatedStep,
    rank_devices,
)
from jaxdist.network.topology import Topology

_MAX_RANK_CHUNKS = 1 << 28
RankCounts = NDArray[np.int32]
"""How many ranks' arrays are in a chunk."""

MESSAGE_ENCODINGS = ("shorter", "entries", "numbers")
"""How a message is encoded: the shorter way, always as entries, or dense."""


@dataclass(frozen=True, kw_only=True)
class SparseEncoding:
    """How sparse messages are encoded."""

    density: float
    """d, the share of a rank's elements that are entries."""
    value_bytes: int = 4
    """Bytes of a value."""
    index_bytes: int = 4
    """Bytes of an index."""
    header_bytes: int = 4
    """Bytes before the entries of a message."""
    reduce_encoding: str = "shorter"
    """Encoding of messages that are added, one of `MESSAGE_ENCODINGS`."""
    copy_encoding: str = "shorter"
    """Encoding of messages that replace."""
    seed: int | None = None
    """Of random numbers of entries; None takes the expected ones."""

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise BadInput(
                f"no array has {self.density:g} of its numbers",
                rule="a density is above 0 and at most 1",
                values=f"--density {self.density:g}",
                remedy="--density 0.01",
            )

    def union_density(self, counts: RankCounts) -> FloatArray:
        """Return the expected density of a sum of so many ranks."""
        # 1 - (1 - d)^m, without cancellation where d is small.
        # Where d is 1, the logarithm of 1 - d would be infinite.
        return np.asarray(-np.expm1(counts * np.log1p(-min(self.density, 1 - 1e-16))))


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseStepMessages:
    """The messages of one step."""

    transfers: VectorizedTransfers
    """The transfers."""
    size: FloatArray
    """`[M]`, bytes."""
    entries: FloatArray
    """`[M]`, entries of the merged result at the target; 0 for dense messages."""
    elements: FloatArray
    """`[M]`, elements that the target adds; 0 for sparse messages."""

    def compute_s(self, topology: Topology, value_bytes: int) -> FloatArray:
        """Return the seconds that the target takes to add or merge each message."""
        # Dense messages are added, sparse ones merged: of each message one of the two
        # is 0.
        merging = self.entries * topology.merge_s_per_entry
        return merging + self.elements * value_bytes * topology.reduce_s_per_byte


def sparse_step_messages(
    schedule: CollectiveSchedule, size: float, encoding: SparseEncoding
) -> Iterator[SparseStepMessages]:
    """Yield the messages of each step of a schedule.

    Args:
        schedule: P ranks, C chunks.
        size: bytes of the whole array.
        encoding: density and form.

    Raises:
        BadInput: a schedule too large to follow, P C above 2^28.
    """
    ranks, chunks = schedule.ranks, schedule.chunks
    if ranks * chunks > _MAX_RANK_CHUNKS:
        raise BadInput(
            f"fill-in of {schedule.name} on {ranks:,} ranks is too much to follow",
            rule="ranks times chunks are at most 2^28",
            values=f"ranks={ranks:,}, chunks={chunks:,}",
            remedy="fewer ranks, or a list with fewer chunks",
        )
    # [rank, chunk]: each begins with its own array alone.
    held = np.ones((ranks, chunks), np.int32)
    numbers = size / encoding.value_bytes / chunks
    rng = np.random.default_rng(encoding.seed)
    for step in schedule.steps:
        table = vectorize_transfers(step.transfers)
        # The message and the chunk of everything that is sent, and how many ranks are
        # in it. All ranks send what they held before the step.
        sent: list[tuple[IntArray, IntArray, RankCounts]] = []
        for part in table.blocks:
            counts = part.messages.counts
            message = np.repeat(np.arange(counts.size), counts)
            before = np.cumsum(counts) - counts
            chunk = np.arange(message.size) - before[message] + part.starts[message]
            sent.append((message, chunk, held[part.messages.sources[message], chunk]))

        # `held` changes below: what is sent was read above, as all ranks send at once.
        columns = []
        for part, (message, chunk, inside) in zip(table.blocks, sent):
            moves = part.messages
            result = _merge_counts(
                moves.targets[message], chunk, inside, held, moves.adds
            )
            density = encoding.union_density(inside)
            filled = np.bincount(message, numbers * density).astype(float)
            if encoding.seed is not None:
                # Binomial counts of entries, as normal ones.
                spread = np.sqrt(
                    np.bincount(message, numbers * density * (1 - density))
                )
                filled = np.maximum(filled + spread * rng.normal(size=filled.size), 0)
            whole = numbers * moves.counts.astype(float)
            dense = encoding.value_bytes * whole
            entry_bytes = encoding.value_bytes + encoding.index_bytes
            sparse = encoding.header_bytes + filled * entry_bytes
            form = encoding.reduce_encoding if moves.adds else encoding.copy_encoding
            is_dense = (
                sparse >= dense
                if form == "shorter"
                else np.full(sparse.shape, form == "numbers")
            )
            # A merge passes over all entries of the result.
            grown = numbers * np.bincount(message, encoding.union_density(result))
            merged = np.where(is_dense | (not moves.adds), 0.0, grown)
            added = np.where(is_dense & moves.adds, whole, 0.0)
            columns.append((np.where(is_dense, dense, sparse), merged, added))
        joined = [np.concatenate(column) for column in zip(*columns)]
        size_, entries, elements = joined or [np.zeros(0)] * 3
        yield SparseStepMessages(
            transfers=table, size=size_, entries=entries, elements=elements
        )


def _merge_counts(
    target: IntArray, chunk: IntArray, counts: RankCounts, held: RankCounts, adds: bool
) -> RankCounts:
    """Update the counts of targets; return how many ranks are in each result."""
    if not adds:
        held[target, chunk] = counts
        return counts
    # Of several messages to one target, each is merged to what those before it left: a
    # cumulative sum within each group of one place.
    place = target * held.shape[1] + chunk
    order = np.argsort(place, kind="stable")
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    total = np.cumsum(counts[order])
    before = np.repeat(
        total[first] - counts[order][first], np.diff(first, append=order.size)
    )
    results = np.empty_like(counts)
    results[order] = held.reshape(-1)[place[order]] + total - before
    np.add.at(held, (target, chunk), counts)
    return results


def simulate_sparse(
    schedule: CollectiveSchedule,
    size: float,
    network: NetworkModel,
    encoding: SparseEncoding,
    placement: IntArray | None = None,
) -> CollectiveSimulation:
    """Simulate a sparse all-reduce by a schedule.

    Args:
        schedule: P ranks.
        size: bytes of the array that every rank would have without zeros.
        network: has P devices at least.
        encoding: density and form.
        placement: `[P]`, the device of each rank.

    Raises:
        BadInput: ranks that do not fit, or a schedule too large to follow.
    """
    devices = rank_devices(schedule.ranks, network.topology, placement)
    known: dict[object, SimulatedStep] = {}
    phases = []
    tables = []  # kept, since another object may get the id of one that is gone
    for step in sparse_step_messages(schedule, size, encoding):
        tables.append(step.transfers)
        moves = [part.messages for part in step.transfers.blocks]
        # Sizes are part of the key: fill-in makes steps with the same partners differ.
        key = (tuple(map(id, moves)), step.size.tobytes())
        if key not in known:
            none = [np.zeros(0, np.int64)]
            sources = np.concatenate([m.sources for m in moves] or none)
            targets = np.concatenate([m.targets for m in moves] or none)
            batch = MessageBatch(
                sources=devices[sources], targets=devices[targets], size=step.size
            )
            after = step.compute_s(network.topology, encoding.value_bytes)
            busiest = float(np.bincount(targets, after).max(initial=0.0))
            known[key] = network.simulate_step(batch, busiest)
        phases.append(known[key])
    return CollectiveSimulation(
        seconds=sum(phase.seconds for phase in phases), steps=tuple(phases)
    )


def sparse_schedule_messages(
    schedule: CollectiveSchedule,
    size: float,
    topology: Topology,
    encoding: SparseEncoding,
    placement: IntArray | None = None,
) -> CollectiveMessages:
    """Return the messages of a sparse all-reduce, to simulate beside others.

    Args:
        schedule: P ranks.
        size: bytes of the array that every rank would have without zeros.
        topology: has P devices at least.
        encoding: density and form.
        placement: `[P]`, the device of each rank.
    """
    devices = rank_devices(schedule.ranks, topology, placement)
    found = list(sparse_step_messages(schedule, size, encoding))
    moves = [
        (index, part.messages)
        for index, message in enumerate(found)
        for part in message.transfers.blocks
    ]
    none = [np.zeros(0, np.int64)]
    return CollectiveMessages(
        name=schedule.name,
        step=np.concatenate([np.full(m.sources.size, k) for k, m in moves] or none),
        sources=devices[np.concatenate([m.sources for _, m in moves] or none)],
        targets=devices[np.concatenate([m.targets for _, m in moves] or none)],
        size=np.concatenate([m.size for m in found] or none),
        compute_s=np.concatenate(
            [m.compute_s(topology, encoding.value_bytes) for m in found] or none
        ),
    )
