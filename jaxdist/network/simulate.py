"""Simulation: a step list on a topology, step by step.

A step begins when all messages of the step before have arrived and were added. Steps
whose messages are the same, which those of a ring are, are simulated once.
"""

from dataclasses import dataclass

import numpy as np

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule, ScheduleStep
from jaxdist.collectives.algorithms.vectorized_transfers import (
    VectorizedTransfers,
    vectorize_transfers,
)
from jaxdist.core.errors import BadInput, unknown_name_error
from jaxdist.network import contention
from jaxdist.network.flow_simulation import arrival_times
from jaxdist.network.messages import SHARING_RULES, MessageBatch, route_messages
from jaxdist.network.protocol_overheads import PROTOCOLS, ProtocolOverheads
from jaxdist.network.routes import IntArray
from jaxdist.network.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """One step of the list on the network."""

    seconds: float
    """From the end of the step before."""
    phi: int
    """Most messages on one link."""
    messages: int
    """Messages of the step."""
    bytes: float
    """Bytes of the largest."""


@dataclass(frozen=True, kw_only=True)
class CollectiveSimulation:
    """What a step list takes."""

    seconds: float
    """From the first message to the last sum."""
    phases: tuple[SimulatedStep, ...]
    """One for each step."""

    @property
    def phi_max(self) -> int:
        """Most messages on one link in any step."""
        return max((phase.phi for phase in self.phases), default=0)


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkModel:
    """A topology, and the rules by which messages move on it."""

    topology: Topology
    """Devices and links."""
    factors: ProtocolOverheads = PROTOCOLS["ideal"]
    """What a protocol makes of links."""
    sharing: str = "maxmin"
    """`maxmin` or `rtt`."""

    def __post_init__(self) -> None:
        if self.sharing not in SHARING_RULES:
            raise unknown_name_error("sharing", self.sharing, SHARING_RULES, "maxmin")

    def phase(self, traffic: MessageBatch, after: float = 0.0) -> SimulatedStep:
        """Simulate messages that start together.

        Args:
            traffic: the messages.
            after: seconds that the busiest device works on what it received.
        """
        if not traffic.size.size:
            return SimulatedStep(seconds=0.0, phi=0, messages=0, bytes=0.0)
        asked = route_messages(self.topology, traffic, self.factors, self.sharing)
        capacity = self.topology.capacity
        shared = self.factors.share * capacity
        last = arrival_times(asked.demand, shared, asked.start, asked.size).max()
        return SimulatedStep(
            seconds=float(last) + after,
            phi=contention.phi(asked.routes, capacity.size),
            messages=traffic.size.size,
            bytes=float(traffic.size.max()),
        )


def simulate_collective(
    algorithm: CollectiveSchedule,
    size: float,
    network: NetworkModel,
    place: IntArray | None = None,
) -> CollectiveSimulation:
    """Simulate a step list.

    Args:
        algorithm: P ranks.
        size: bytes of the array that every rank has.
        network: has P devices at least.
        place: `[P]`, the device of each rank; without it rank r is on device r.

    Raises:
        BadInput: more ranks than devices, or devices that are not there.
    """
    devices = rank_devices(algorithm.ranks, network.topology, place)
    each = size / algorithm.chunks
    known: dict[object, SimulatedStep] = {}
    phases = []
    for step in algorithm.steps:
        table = vectorize_transfers(step.transfers)
        key = step_key(step)
        if key not in known:
            traffic = step_messages(table, each, devices)
            busiest = (
                max_reduced_bytes(table, each, algorithm.ranks)
                * network.topology.reducing
            )
            known[key] = network.phase(traffic, busiest)
        phases.append(known[key])
    return CollectiveSimulation(
        seconds=sum(phase.seconds for phase in phases), phases=tuple(phases)
    )


def step_key(step: ScheduleStep) -> object:
    """Return what is equal for steps whose messages are the same, for one list."""
    if isinstance(step.transfers, VectorizedTransfers):
        return tuple(id(part.moves) for part in step.transfers.parts)
    return tuple((t.source, t.target, t.count, t.adds) for t in step.transfers)


def step_messages(
    table: VectorizedTransfers, each: float, devices: IntArray
) -> MessageBatch:
    """Return the messages of a step.

    Args:
        table: its transfers.
        each: bytes of a chunk.
        devices: `[P]`, the device of each rank.
    """
    moves = [part.moves for part in table.parts]
    none = [np.zeros(0, np.int64)]
    return MessageBatch(
        sources=devices[np.concatenate([m.sources for m in moves] or none)],
        targets=devices[np.concatenate([m.targets for m in moves] or none)],
        size=each * np.concatenate([m.counts for m in moves] or none).astype(float),
    )


def max_reduced_bytes(table: VectorizedTransfers, each: float, ranks: int) -> float:
    """Return the bytes that the busiest rank adds to its own in a step."""
    sums = np.zeros(ranks)
    for part in table.parts:
        if part.moves.adds:
            np.add.at(sums, part.moves.targets, part.moves.counts)
    return float(each * sums.max(initial=0))


def rank_devices(ranks: int, topology: Topology, place: IntArray | None) -> IntArray:
    """Return the device of each rank.

    Raises:
        BadInput: they do not fit.
    """
    if ranks > topology.devices:
        raise BadInput(
            f"{ranks:,} ranks do not fit on {topology.name}",
            rule="each rank has a device of its own",
            values=f"ranks={ranks:,}, devices={topology.devices:,}",
            remedy=f"at most {topology.devices:,} ranks",
        )
    if place is None:
        return np.arange(ranks)
    inside = ((place >= 0) & (place < topology.devices)).all()
    if place.shape != (ranks,) or not inside or np.unique(place).size != ranks:
        raise BadInput(
            "the placement is not one of these ranks",
            rule="a device for each rank, each used once",
            values=f"{place.size:,} devices, {np.unique(place).size:,} of them unlike, "
            f"for {ranks:,} ranks and {topology.devices:,} devices",
            remedy="the numbers 0 to P-1 in another order",
        )
    return place
