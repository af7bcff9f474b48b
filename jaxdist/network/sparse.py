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

from jaxdist.collectives.algorithms.columns import Columns, Part, as_columns
from jaxdist.collectives.algorithms.steps import Algorithm
from jaxdist.core.errors import BadInput
from jaxdist.network.routes import Numbers, Reals
from jaxdist.network.simulate import Network, Phase, Simulation, placed
from jaxdist.network.traffic import Traffic

_MOST = 1 << 28


FORMS = ("shorter", "entries", "numbers")
"""How a message is written: in the shorter way, always as entries, or as numbers."""


@dataclass(frozen=True, kw_only=True)
class Entries:
    """How entries are written."""

    density: float
    """d, the part of a rank's numbers that are entries."""
    number: int = 4
    """Bytes of a number."""
    index: int = 4
    """Bytes of an index."""
    head: int = 4
    """Bytes before the entries of a message."""
    sums: str = "shorter"
    """How messages that are added are written, one of `FORMS`."""
    copies: str = "shorter"
    """How messages that replace are written."""

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise BadInput(
                f"no array has {self.density:g} of its numbers",
                rule="a density is above 0 and at most 1",
                values=f"--density {self.density:g}",
                remedy="--density 0.01",
            )

    def filled(self, counts: Numbers) -> Reals:
        """Return the part of a chunk's numbers that a sum of so many ranks has."""
        return np.asarray(-np.expm1(counts * np.log1p(-min(self.density, 1 - 1e-16))))


@dataclass(frozen=True, eq=False, kw_only=True)
class Message:
    """The messages of one step."""

    table: Columns
    """Who sends what to whom."""
    size: Reals
    """`[M]`, bytes."""
    entries: Reals
    """`[M]`, entries that are merged at the target; 0 where numbers are added."""
    numbers: Reals
    """`[M]`, numbers that are added at the target; 0 where entries are merged."""


def messages(algorithm: Algorithm, size: float, entries: Entries) -> Iterator[Message]:
    """Yield the messages of each step of a list.

    Args:
        algorithm: P ranks, C chunks.
        size: bytes of the whole array.
        entries: density and form.

    Raises:
        BadInput: a list too large to follow, P C above 2^28.
    """
    ranks, chunks = algorithm.ranks, algorithm.chunks
    if ranks * chunks > _MOST:
        raise BadInput(
            f"fill-in of {algorithm.name} on {ranks:,} ranks is too much to follow",
            rule="ranks times chunks are at most 2^28",
            values=f"ranks={ranks:,}, chunks={chunks:,}",
            remedy="fewer ranks, or a list with fewer chunks",
        )
    held = np.ones((ranks, chunks), np.int32)
    numbers = size / entries.number / chunks
    for step in algorithm.steps:
        table = as_columns(step.transfers)
        sent = [_sent(part, held) for part in table.parts]
        yield _message(table, [counts for _, counts in sent], numbers, entries)
        for part, (spans, counts) in zip(table.parts, sent):
            target = part.moves.targets[spans.message]
            if part.moves.adds:
                np.add.at(held, (target, spans.chunk), counts)
            else:
                held[target, spans.chunk] = counts


@dataclass(frozen=True, eq=False)
class _Spans:
    message: Numbers
    """`[K]`, the message of each chunk that is sent, ascending."""
    chunk: Numbers
    """`[K]`, the chunk."""


def _sent(part: Part, held: NDArray[np.int32]) -> tuple[_Spans, NDArray[np.int32]]:
    counts, starts = part.moves.counts, part.starts
    message = np.repeat(np.arange(counts.size), counts)
    before = np.cumsum(counts) - counts
    chunk = np.arange(message.size) - before[message] + starts[message]
    return _Spans(message, chunk), held[part.moves.sources[message], chunk]


def _message(
    table: Columns, sent: list[NDArray[np.int32]], numbers: float, entries: Entries
) -> Message:
    each = []
    for part, counts in zip(table.parts, sent):
        moves = part.moves
        message = np.repeat(np.arange(moves.counts.size), moves.counts)
        filled = numbers * np.bincount(message, entries.filled(counts))
        whole = numbers * moves.counts
        sparse = entries.head + filled * (entries.number + entries.index)
        is_dense = _is_dense(sparse, entries.number * whole, moves.adds, entries)
        size = np.where(is_dense, entries.number * whole, sparse)
        merged = np.where(is_dense | (not moves.adds), 0.0, filled)
        added = np.where(is_dense & moves.adds, whole, 0.0)
        each.append((size, merged, added))
    columns = (np.concatenate(column) for column in zip(*each))
    size, merged, added = columns if each else (np.zeros(0),) * 3
    return Message(table=table, size=size, entries=merged, numbers=added)


def _is_dense(
    sparse: Reals, dense: Reals, adds: bool, entries: Entries
) -> NDArray[np.bool_]:
    match entries.sums if adds else entries.copies:
        case "shorter":
            return np.asarray(sparse >= dense)
        case form:
            return np.full(sparse.shape, form == "numbers")


def simulate_sparse(
    algorithm: Algorithm,
    size: float,
    network: Network,
    entries: Entries,
    place: Numbers | None = None,
) -> Simulation:
    """Simulate a step list on entries.

    Args:
        algorithm: P ranks.
        size: bytes of the array that every rank would have without zeros.
        network: has P devices at least.
        entries: density and form.
        place: `[P]`, the device of each rank.

    Raises:
        BadInput: ranks that do not fit, or a list too large to follow.
    """
    devices = placed(algorithm.ranks, network.topology, place)
    known: dict[object, Phase] = {}
    phases = []
    for message in messages(algorithm, size, entries):
        parts = message.table.parts
        key = (tuple(id(part.moves) for part in parts), message.size.tobytes())
        if key not in known:
            known[key] = _phase(message, network, devices, entries)
        phases.append(known[key])
    return Simulation(
        seconds=sum(phase.seconds for phase in phases), phases=tuple(phases)
    )


def _phase(
    message: Message, network: Network, devices: Numbers, entries: Entries
) -> Phase:
    moves = [part.moves for part in message.table.parts]
    if not moves:
        return network.phase(Traffic.none())
    targets = np.concatenate([m.targets for m in moves])
    traffic = Traffic(
        sources=devices[np.concatenate([m.sources for m in moves])],
        targets=devices[targets],
        size=message.size,
    )
    added = np.bincount(targets, message.numbers * entries.number).max()
    merged = np.bincount(targets, message.entries).max()
    return network.phase(traffic, float(added), float(merged))
