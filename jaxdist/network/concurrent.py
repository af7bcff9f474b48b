"""Simulation of several collectives at once, on links that they share.

A message starts when both of its ends have come to its step: when all messages that
they send or receive in earlier steps of the same collective have arrived. Under
`steps` a collective has one pace: a step begins when all messages of the one before
have arrived. Under `ranks` every rank has its own, as processes of MPI have, and a rank
that is done early begins its next message early.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.algorithms.vectorized_transfers import vectorize_transfers
from jaxdist.core.errors import unknown_name_error
from jaxdist.network.bandwidth_sharing import LinkDemand, flow_rates
from jaxdist.network.flow_simulation import TIME_TOLERANCE_S
from jaxdist.network.messages import MessageBatch, route_messages
from jaxdist.network.routes import FloatArray, IntArray
from jaxdist.network.simulate import NetworkModel

SYNC_MODES = ("steps", "ranks")


@dataclass(frozen=True, eq=False, kw_only=True)
class CollectiveMessages:
    """The messages of one collective, step by step."""

    name: str
    """Name for reports."""
    step: IntArray
    """`[M]`, ascending from 0."""
    sources: IntArray
    """`[M]`, devices that send."""
    targets: IntArray
    """`[M]`, devices that receive."""
    size: FloatArray
    """`[M]`, bytes."""
    compute_s: FloatArray
    """`[M]`, seconds that the target takes to add each, before it goes on."""


@dataclass(frozen=True, kw_only=True)
class ConcurrentResult:
    """The times of several collectives that begin together."""

    seconds: float
    """Until the last one is done."""
    each: tuple[float, ...]
    """Until each is done."""
    phi: int
    """Most messages on one link at any time."""


def schedule_messages(
    schedule: CollectiveSchedule,
    size: float,
    devices: IntArray,
    reduce_s_per_byte: float = 0.0,
) -> CollectiveMessages:
    """Return the messages of a schedule.

    Args:
        schedule: P ranks.
        size: bytes of the array.
        devices: `[P]`, the device of each rank.
        reduce_s_per_byte: seconds a byte that a device takes to add.
    """
    each = size / schedule.chunks
    rows = [
        (index, part.messages)
        for index, step in enumerate(schedule.steps)
        for part in vectorize_transfers(step.transfers).blocks
    ]
    none = [np.zeros(0, np.int64)]
    counts = np.concatenate([m.counts for _, m in rows] or none)
    adds = np.concatenate([np.full(m.counts.size, m.adds) for _, m in rows] or none)
    sizes = each * counts.astype(float)
    return CollectiveMessages(
        name=schedule.name,
        step=np.concatenate([np.full(m.sources.size, k) for k, m in rows] or none),
        sources=devices[np.concatenate([m.sources for _, m in rows] or none)],
        targets=devices[np.concatenate([m.targets for _, m in rows] or none)],
        size=sizes,
        compute_s=sizes * adds * reduce_s_per_byte,
    )


def halo_messages(devices: IntArray, size: float) -> CollectiveMessages:
    """Return the messages of neighbouring ranks that exchange halos, in one step.

    Args:
        devices: `[P]`, the device of each rank.
        size: bytes of each message.
    """
    # Neighbours in rank order; the ends of the row have one neighbour.
    here, there = devices[:-1], devices[1:]
    many = 2 * here.size
    return CollectiveMessages(
        name="halos",
        step=np.zeros(many, np.int64),
        sources=np.concatenate((here, there)),
        targets=np.concatenate((there, here)),
        size=np.full(many, float(size)),
        compute_s=np.zeros(many),
    )


def simulate_concurrent(
    collectives: Sequence[CollectiveMessages],
    network: NetworkModel,
    sync_mode: str = "ranks",
) -> ConcurrentResult:
    """Simulate collectives that begin together.

    Args:
        collectives: they may have devices in common, or none.
        network: has the devices.
        sync_mode: `steps` or `ranks`.

    Raises:
        BadInput: no such pace.
    """
    if sync_mode not in SYNC_MODES:
        raise unknown_name_error("pace", sync_mode, SYNC_MODES, "ranks")
    run = _ConcurrentRun(collectives, network, sync_mode)
    while run.goes_on():
        pass
    ends = [
        run.finish_s[run.owner == i].max(initial=0.0) for i in range(len(collectives))
    ]
    each = tuple(float(end) for end in ends)
    return ConcurrentResult(seconds=max(each, default=0.0), each=each, phi=run.phi)


class _ConcurrentRun:
    """Messages of all collectives in transit."""

    def __init__(
        self,
        collectives: Sequence[CollectiveMessages],
        network: NetworkModel,
        pace: str,
    ) -> None:
        sizes = [c.size.size for c in collectives]
        self.owner = np.repeat(np.arange(len(collectives)), sizes)
        self.finish_s = np.full(self.owner.size, np.inf)
        self.phi, self._now = 0, 0.0
        self._ids, self._start = np.zeros(0, np.int64), np.zeros(0)
        self._left = np.zeros(0)
        if not self.owner.size:
            return
        step, sources, targets = (
            np.concatenate([getattr(c, name) for c in collectives])
            for name in ("step", "sources", "targets")
        )
        self._size = np.concatenate([c.size for c in collectives])
        self._after = np.concatenate([c.compute_s for c in collectives])
        self._targets = targets
        # Until when a device adds messages of a collective, by (collective, device).
        self._busy: dict[tuple[int, int], float] = {}
        self._ways = _MessageRoutes(network, sources, targets, self._size)
        self._capacity = network.overheads.usable_bandwidth * network.topology.capacity
        # Under `steps` a collective is one actor, under `ranks` each of its devices is
        # one. The owner keeps those of different collectives apart.
        ends = (sources, targets) if pace == "ranks" else (0 * sources, 0 * sources)
        actors = self.owner[:, None] * network.topology.devices + np.stack(ends, axis=1)
        self._turns = MessageScheduler(actors, step)
        self._start_messages(self._turns.initial_starts())

    def goes_on(self) -> bool:
        """Go on to the next event; False where there is none."""
        if not self._ids.size:
            return False
        # Messages whose latency has passed flow; the others load no link yet.
        running = self._start <= self._now + TIME_TOLERANCE_S
        following = float(self._start[~running].min(initial=np.inf))
        if not running.any():
            self._now = following
            return True
        demand = self._ways.demand(self._ids[running])
        rate = flow_rates(demand, self._capacity)
        # Ways back, which load a link by less than 1, are no messages.
        ways = demand.link_load >= 1
        self.phi = max(self.phi, int(np.bincount(demand.link[ways]).max()))
        needs = self._left[running] / rate
        # Rates change when a message arrives or one more begins to flow, not between.
        passed = min(float(needs.min()), following - self._now)
        self._left[running] -= rate * passed
        self._now += passed

        # Ends that differ by rounding alone are one event.
        over = np.zeros(running.size, bool)
        over[running] = needs <= passed + TIME_TOLERANCE_S
        arrived = self._ids[over].tolist()
        # A target adds the messages of a collective one after another.
        ready = []
        for message in arrived:
            place = int(self.owner[message]), int(self._targets[message])
            begins = max(self._now, self._busy.get(place, 0.0))
            self._busy[place] = begins + float(self._after[message])
            ready.append(self._busy[place])
        self.finish_s[arrived] = ready
        kept = ~over
        self._ids, self._start = self._ids[kept], self._start[kept]
        self._left = self._left[kept]
        self._start_messages(self._turns.starts_after(arrived, ready))
        return True

    def _start_messages(self, starts: dict[int, float]) -> None:
        if starts:
            new = np.array(list(starts))
            self._ids = np.concatenate((self._ids, new))
            begins = np.array(list(starts.values())) + self._ways.latency(new)
            self._start = np.concatenate((self._start, begins))
            self._left = np.concatenate((self._left, self._size[new]))


class _MessageRoutes:
    """Routes of messages, one for all that have the same ends and bytes."""

    def __init__(
        self,
        network: NetworkModel,
        sources: IntArray,
        targets: IntArray,
        size: FloatArray,
    ) -> None:
        # Most steps of a schedule repeat the same messages: routes are found once for
        # each kind.
        table = np.stack((sources, targets, size), axis=1)
        kinds, self._kind = np.unique(table, axis=0, return_inverse=True)
        traffic = MessageBatch(
            sources=kinds[:, 0].astype(np.int64),
            targets=kinds[:, 1].astype(np.int64),
            size=kinds[:, 2].astype(float),
        )
        topology = network.topology
        self._asked = route_messages(
            topology, traffic, network.overheads, network.sharing
        )
        flow = self._asked.demand.flow
        # flow is ascending: rows of kind k are from first[k] to first[k + 1].
        self._first = np.searchsorted(flow, np.arange(len(kinds) + 1))

    def latency(self, ids: IntArray) -> FloatArray:
        """Return the seconds until the bytes of messages begin to flow."""
        return self._asked.start[self._kind[ids]]

    def demand(self, ids: IntArray) -> LinkDemand:
        """Return the demand of messages on links."""
        asked, kinds = self._asked.demand, self._kind[ids]
        many = self._first[kinds + 1] - self._first[kinds]
        flow = np.repeat(np.arange(ids.size), many)
        before = np.cumsum(many) - many
        # The rows of each message's kind, one after another.
        rows = np.arange(flow.size) - before[flow] + self._first[kinds][flow]
        return LinkDemand(
            flow=flow,
            link=asked.link[rows],
            link_load=asked.link_load[rows],
            weight=asked.weight[kinds],
            max_rate=asked.max_rate[kinds],
        )


class MessageScheduler:
    """Which messages may start, and when, as others arrive.

    An actor, a rank or a whole collective, goes from step to step. It comes to its next
    step when all messages of its step have arrived and were added, and a message starts
    when all of its actors have come to its step.

    Args:
        actors: `[M, 2]`, the actors of each message, which may be one.
        step: `[M]`, the step of each.

    Actor 0 sends to 1, which then sends to 2:

    >>> import numpy as np
    >>> turns = MessageScheduler(np.array([[0, 1], [1, 2]]), np.array([0, 1]))
    >>> turns.initial_starts(), turns.starts_after([0], [3.5])
    ({0: 0.0}, {1: 3.5})
    """

    def __init__(self, actors: IntArray, step: IntArray) -> None:
        self._actors = [sorted(set(pair)) for pair in actors.tolist()]
        self._waits = [len(pair) for pair in self._actors]
        by: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for message, (pair, at) in enumerate(zip(self._actors, step.tolist())):
            for actor in pair:
                by[actor][at].append(message)
        # Steps of an actor, the last one first, so that the next one is popped.
        self._steps = {
            actor: [steps[at] for at in sorted(steps, reverse=True)]
            for actor, steps in by.items()
        }
        # Messages of an actor's step that have not arrived, and when the last was
        # added.
        self._missing = dict.fromkeys(by, 0)
        self._ready = dict.fromkeys(by, 0.0)

    def initial_starts(self) -> dict[int, float]:
        """Return the messages that start at once."""
        return self._advance_actors(list(self._steps))

    def starts_after(
        self, messages: Iterable[int], ready_s: Iterable[float]
    ) -> dict[int, float]:
        """Return the messages that start now, each with its time.

        Args:
            messages: those that arrived.
            ready_s: when each has been added.
        """
        done = []
        for message, time in zip(messages, ready_s):
            for actor in self._actors[message]:
                self._ready[actor] = max(self._ready[actor], time)
                self._missing[actor] -= 1
                if not self._missing[actor]:
                    done.append(actor)
        return self._advance_actors(done)

    def _advance_actors(self, actors: Iterable[int]) -> dict[int, float]:
        """Move actors to their next step; return the messages that start."""
        start = {}
        # A message starts when the last of its actors has come to its step.
        for actor in actors:
            messages = self._steps[actor].pop() if self._steps[actor] else []
            self._missing[actor] = len(messages)
            for message in messages:
                self._waits[message] -= 1
                if not self._waits[message]:
                    ready = (self._ready[each] for each in self._actors[message])
                    start[message] = max(ready)
        return start
