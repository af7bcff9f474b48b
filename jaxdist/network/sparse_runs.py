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
    schedule: CollectiveSchedule,
    size: float,
    network: NetworkModel,
    encoding: SparseEncoding,
    placement: IntArray | None = None,
) -> CollectiveSimulation:
    """Simulate a step list on entries.

    Args:
        schedule: P ranks.
        size: bytes of the array that every rank would have without zeros.
        network: has P devices at least.
        encoding: density and form.
        placement: `[P]`, the device of each rank.

    Raises:
        BadInput: ranks that do not fit, or a list too large to follow.
    """
    devices = rank_devices(schedule.ranks, network.topology, placement)
    known: dict[object, SimulatedStep] = {}
    phases = []
    tables = []  # kept, since what is gone may leave its id to another
    for message in sparse_step_messages(schedule, size, encoding):
        tables.append(message.transfers)
        parts = message.transfers.blocks
        key = (tuple(id(part.messages) for part in parts), message.size.tobytes())
        if key not in known:
            known[key] = _simulate_step(message, network, devices, encoding)
        phases.append(known[key])
    return CollectiveSimulation(
        seconds=sum(phase.seconds for phase in phases), steps=tuple(phases)
    )


def _simulate_step(
    message: SparseStepMessages,
    network: NetworkModel,
    devices: IntArray,
    entries: SparseEncoding,
) -> SimulatedStep:
    moves = [part.messages for part in message.transfers.blocks]
    if not moves:
        return network.simulate_step(MessageBatch.empty())
    targets = np.concatenate([m.targets for m in moves])
    traffic = MessageBatch(
        sources=devices[np.concatenate([m.sources for m in moves])],
        targets=devices[targets],
        size=message.size,
    )
    after = message.compute_s(network.topology, entries.value_bytes)
    return network.simulate_step(traffic, float(np.bincount(targets, after).max()))


def sparse_schedule_messages(
    schedule: CollectiveSchedule,
    size: float,
    topology: Topology,
    encoding: SparseEncoding,
    placement: IntArray | None = None,
) -> CollectiveMessages:
    """Return the messages of a step list on entries, to run beside others.

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
