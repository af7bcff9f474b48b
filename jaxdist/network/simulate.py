"""Simulation of a collective schedule on a topology, step by step.

A step begins when all messages of the step before have arrived and were added.
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
    """One step of a schedule on the network."""

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
    """The time of a schedule."""

    seconds: float
    """From the first message to the last sum."""
    steps: tuple[SimulatedStep, ...]
    """One for each step."""

    @property
    def phi_max(self) -> int:
        """Most messages on one link in any step."""
        return max((phase.phi for phase in self.steps), default=0)


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkModel:
    """A topology, and the rules by which messages move on it."""

    topology: Topology
    """Devices and links."""
    overheads: ProtocolOverheads = PROTOCOLS["ideal"]
    """Overheads of the protocol."""
    sharing: str = "maxmin"
    """`maxmin` or `rtt`."""

    def __post_init__(self) -> None:
        if self.sharing not in SHARING_RULES:
            raise unknown_name_error("sharing", self.sharing, SHARING_RULES, "maxmin")

    def simulate_step(
        self, messages: MessageBatch, compute_s: float = 0.0
    ) -> SimulatedStep:
        """Simulate messages that start together.

        Args:
            messages: the messages.
            compute_s: seconds that the busiest device works on what it received.
        """
        if not messages.size.size:
            return SimulatedStep(seconds=0.0, phi=0, messages=0, bytes=0.0)
        asked = route_messages(self.topology, messages, self.overheads, self.sharing)
        capacity = self.topology.capacity
        shared = self.overheads.usable_bandwidth * capacity
        # The step ends with its last message, after which the busiest device adds.
        last = arrival_times(asked.demand, shared, asked.start, asked.size).max()
        return SimulatedStep(
            seconds=float(last) + compute_s,
            phi=contention.phi(asked.routes, capacity.size),
            messages=messages.size.size,
            bytes=float(messages.size.max()),
        )


def simulate_collective(
    schedule: CollectiveSchedule,
    size: float,
    network: NetworkModel,
    placement: IntArray | None = None,
) -> CollectiveSimulation:
    """Simulate a schedule.

    Args:
        schedule: P ranks.
        size: bytes of the array that every rank has.
        network: has P devices at least.
        placement: `[P]`, the device of each rank; without it rank r is on device r.

    Raises:
        BadInput: more ranks than devices, or devices that are not there.
    """
    devices = rank_devices(schedule.ranks, network.topology, placement)
    each = size / schedule.chunks
    # Steps whose messages are the same, as those of a ring are, are simulated once.
    known: dict[object, SimulatedStep] = {}
    phases = []
    for step in schedule.steps:
        key = step_key(step)
        if key not in known:
            moves = [t.messages for t in vectorize_transfers(step.transfers).blocks]
            sources, targets, counts = (
                np.concatenate([getattr(m, name) for m in moves] or [np.zeros(0, int)])
                for name in ("sources", "targets", "counts")
            )
            # The bytes that the busiest rank adds to its own.
            sums = np.zeros(schedule.ranks)
            for m in moves:
                if m.adds:
                    np.add.at(sums, m.targets, m.counts)
            busiest = float(each * sums.max(initial=0))
            batch = MessageBatch(
                sources=devices[sources],
                targets=devices[targets],
                size=each * counts.astype(float),
            )
            known[key] = network.simulate_step(
                batch, busiest * network.topology.reduce_s_per_byte
            )
        phases.append(known[key])
    # Steps do not overlap: each waits for all messages of the one before.
    return CollectiveSimulation(
        seconds=sum(phase.seconds for phase in phases), steps=tuple(phases)
    )


def step_key(step: ScheduleStep) -> object:
    """Return a key of the messages of a step, within one schedule."""
    # Steps of the large schedules share their arrays of messages.
    if isinstance(step.transfers, VectorizedTransfers):
        # The schedule holds them, so no other object gets one of these ids.
        return tuple(id(part.messages) for part in step.transfers.blocks)
    return tuple((t.source, t.target, t.count, t.adds) for t in step.transfers)


def rank_devices(
    ranks: int, topology: Topology, placement: IntArray | None
) -> IntArray:
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
    if placement is None:
        return np.arange(ranks)
    inside = ((placement >= 0) & (placement < topology.devices)).all()
    if placement.shape != (ranks,) or not inside or np.unique(placement).size != ranks:
        raise BadInput(
            "the placement is not one of these ranks",
            rule="a device for each rank, each used once",
            values=f"{placement.size:,} devices, {np.unique(placement).size:,} of "
            "them unlike, "
            f"for {ranks:,} ranks and {topology.devices:,} devices",
            remedy="the numbers 0 to P-1 in another order",
        )
    return placement
