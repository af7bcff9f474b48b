"""Runs of step lists on entries: alone, step by step, or beside other collectives."""

import numpy as np

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.network.concurrent import CollectiveMessages
from jaxdist.network.messages import MessageBatch
from jaxdist.network.routes import IntArray
from jaxdist.network.simulate import (
    CollectiveSimulation,
    NetworkModel,
    SimulatedStep,
    rank_devices,
)
from jaxdist.network.sparse import (
    SparseEncoding,
    SparseStepMessages,
    sparse_step_messages,
)
from jaxdist.network.topology import Topology


def simulate_sparse(
    algorithm: CollectiveSchedule,
    size: float,
    network: NetworkModel,
    entries: SparseEncoding,
    place: IntArray | None = None,
) -> CollectiveSimulation:
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
    devices = rank_devices(algorithm.ranks, network.topology, place)
    known: dict[object, SimulatedStep] = {}
    phases = []
    tables = []  # kept, since what is gone may leave its id to another
    for message in sparse_step_messages(algorithm, size, entries):
        tables.append(message.table)
        parts = message.table.parts
        key = (tuple(id(part.moves) for part in parts), message.size.tobytes())
        if key not in known:
            known[key] = _simulate_step(message, network, devices, entries)
        phases.append(known[key])
    return CollectiveSimulation(
        seconds=sum(phase.seconds for phase in phases), phases=tuple(phases)
    )


def _simulate_step(
    message: SparseStepMessages,
    network: NetworkModel,
    devices: IntArray,
    entries: SparseEncoding,
) -> SimulatedStep:
    moves = [part.moves for part in message.table.parts]
    if not moves:
        return network.phase(MessageBatch.none())
    targets = np.concatenate([m.targets for m in moves])
    traffic = MessageBatch(
        sources=devices[np.concatenate([m.sources for m in moves])],
        targets=devices[targets],
        size=message.size,
    )
    after = message.after(network.topology, entries.number)
    return network.phase(traffic, float(np.bincount(targets, after).max()))


def sparse_schedule_messages(
    algorithm: CollectiveSchedule,
    size: float,
    topology: Topology,
    entries: SparseEncoding,
    place: IntArray | None = None,
) -> CollectiveMessages:
    """Return the messages of a step list on entries, to run beside others.

    Args:
        algorithm: P ranks.
        size: bytes of the array that every rank would have without zeros.
        topology: has P devices at least.
        entries: density and form.
        place: `[P]`, the device of each rank.
    """
    devices = rank_devices(algorithm.ranks, topology, place)
    found = list(sparse_step_messages(algorithm, size, entries))
    moves = [
        (index, part.moves)
        for index, message in enumerate(found)
        for part in message.table.parts
    ]
    none = [np.zeros(0, np.int64)]
    return CollectiveMessages(
        name=algorithm.name,
        step=np.concatenate([np.full(m.sources.size, k) for k, m in moves] or none),
        sources=devices[np.concatenate([m.sources for _, m in moves] or none)],
        targets=devices[np.concatenate([m.targets for _, m in moves] or none)],
        size=np.concatenate([m.size for m in found] or none),
        after=np.concatenate(
            [m.after(topology, entries.number) for m in found] or none
        ),
    )
