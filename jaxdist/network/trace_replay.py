"""Replay of an execution trace: its collectives on a network whose links are shared.

Each rank computes one node at a time, in the order of its trace, of those that may
begin. A collective begins when all of its ranks have come to it, a message when its
sender has. All that is under way shares the links, by progressive filling; the messages
of a step of a collective begin together, as in `simulate_collective`.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.network.bandwidth_sharing import LinkDemand, flow_rates
from jaxdist.network.chakra.trace import ExecutionTrace, result_bytes
from jaxdist.network.collective_schedules import collective_schedule, step_blocks
from jaxdist.network.flow_simulation import TIME_TOLERANCE_S
from jaxdist.network.messages import MessageBatch, RoutedMessages, route_messages
from jaxdist.network.routes import FloatArray, IntArray
from jaxdist.network.simulate import NetworkModel, rank_devices, step_key

MESSAGE_KIND: Final = "message"
"""What is reported of a message from one rank to another."""


@dataclass(frozen=True, kw_only=True)
class ReplayedCollective:
    """The collectives, or messages, of one kind, size and number of ranks."""

    kind: str
    """As the compiler names it; `message` from one rank to another."""
    ranks: int
    """Ranks of each."""
    size: int
    """Bytes of its result on a rank."""
    count: int
    """How many there are, of all groups."""
    seconds: float
    """Seconds of one, from when the last of its ranks has come to it; the mean."""


@dataclass(frozen=True, kw_only=True)
class TraceReplay:
    """The times of a replayed trace."""

    seconds: float
    """Until the last rank is done."""
    compute_s: float
    """Seconds that the rank computes that computes longest."""
    communication_s: float
    """Seconds in which something is under way on the network."""
    collectives: tuple[ReplayedCollective, ...]
    """What was replayed, by kind, ranks and size, longest first."""


def replay_trace(
    trace: ExecutionTrace,
    network: NetworkModel,
    algorithm: str = "ring",
    placement: IntArray | None = None,
) -> TraceReplay:
    """Replay a trace.

    Args:
        trace: P ranks.
        network: has P devices at least, and shares links by `maxmin`.
        algorithm: schedule of all-reduces, as in `collective_schedule`.
        placement: `[P]`, the device of each rank; without it rank r is on device r.

    Raises:
        BadInput: ranks that do not agree on a collective or wait for each other, more
            of them than devices, or no such schedule for a group.
    """
    if network.sharing != "maxmin":
        raise BadInput(
            "a replay shares links in equal parts",
            rule="messages of all collectives have one weight",
            values=f"sharing={network.sharing}",
            remedy="sharing=maxmin",
        )
    devices = rank_devices(len(trace.ranks), network.topology, placement)
    return _Replay(trace, network, algorithm, devices).run()


@dataclass(frozen=True, eq=False, kw_only=True)
class _RoutedStep:
    """The messages of one step of an operation, and what follows them."""

    messages: RoutedMessages
    compute_s: float
    """Seconds that the busiest device adds what it received."""


@dataclass(eq=False, kw_only=True)
class _Operation:
    """One collective, or one message, with the ranks that take part."""

    kind: str
    members: tuple[int, ...]
    size: int
    """Bytes of the result on a rank."""
    nodes: list["_NodeKey"] = field(default_factory=list)
    """Its nodes that have begun."""
    waiting: int = 0
    """Ranks that it waits for before it begins."""
    steps: Sequence[_RoutedStep] = ()
    steps_done: int = 0
    begin_s: float = 0.0
    is_over: bool = False


@dataclass(eq=False, kw_only=True)
class _ActiveStep:
    """Messages of a step that are under way."""

    operation: _Operation
    demand: LinkDemand
    start_s: FloatArray
    """`[M]`, when the bytes of each begin to flow."""
    left: FloatArray
    """`[M]`, bytes that have not arrived."""
    waits: NDArray[np.bool_]
    """`[M]`, whether each is still under way."""


_NodeKey = tuple[int, int]
"""A rank, and the place of a node among its nodes."""


class _Replay:
    """The state of a replay: what waits, what is computed, what is under way."""

    def __init__(
        self,
        trace: ExecutionTrace,
        network: NetworkModel,
        algorithm: str,
        devices: IntArray,
    ) -> None:
        self._trace, self._network = trace, network
        self._algorithm, self._devices = algorithm, devices
        self._operations = _match_operations(trace)
        # Dependencies that are not done, and the nodes behind each, by place.
        self._waits = [[len(n.dependencies) for n in own] for own in trace.ranks]
        # Nodes are found by their place in a rank's list from here on: ids need not be
        # dense.
        self._after: list[list[list[int]]] = []
        for own in trace.ranks:
            places = {node.id: place for place, node in enumerate(own)}
            after: list[list[int]] = [[] for _ in own]
            for place, node in enumerate(own):
                for other in node.dependencies:
                    after[places[other]].append(place)
            self._after.append(after)
        self._unfinished = sum(map(len, trace.ranks))
        # What each rank may compute, first of its trace first, and whether it computes.
        self._ready: list[list[int]] = [[] for _ in trace.ranks]
        self._is_busy = [False] * len(trace.ranks)
        # Known times: the end of what is computed, or the next step of an operation.
        # The counter keeps the order of what happens at once.
        self._events: list[tuple[float, int, _NodeKey | _Operation]] = []
        self._count = 0
        self._active: list[_ActiveStep] = []
        # A step repeats the same collectives in every layer, so routes are kept.
        self._routed: dict[tuple[str, tuple[int, ...], int], list[_RoutedStep]] = {}
        self._seconds: defaultdict[tuple[str, int, int], list[float]] = defaultdict(
            list
        )
        self._now = self._communication_s = 0.0

    def run(self) -> TraceReplay:
        """Replay from the first node to the last."""
        self._begin(
            [
                (rank, place)
                for rank, waits in enumerate(self._waits)
                for place, count in enumerate(waits)
                if not count
            ],
            range(len(self._waits)),
        )
        while self._events or self._active:
            self._go_on()
        # Nothing is under way and nodes are left: ranks wait for each other.
        if self._unfinished:
            raise self._stuck_error()
        found = [
            ReplayedCollective(
                kind=kind,
                ranks=ranks,
                size=size,
                count=len(each),
                seconds=sum(each) / len(each),
            )
            for (kind, ranks, size), each in self._seconds.items()
        ]
        found.sort(key=lambda one: -one.count * one.seconds)
        spent = (sum(node.duration_us for node in own) for own in self._trace.ranks)
        return TraceReplay(
            seconds=self._now,
            compute_s=max(spent, default=0) / 1e6,
            communication_s=self._communication_s,
            collectives=tuple(found),
        )

    def _go_on(self) -> None:
        """Go on to the next event: a known time, or the end of a message."""
        following = self._events[0][0] if self._events else np.inf
        running = []
        for step in self._active:
            flows = step.start_s <= self._now + TIME_TOLERANCE_S
            later = step.start_s[~flows].min(initial=np.inf)
            following = min(following, float(later))
            # Messages that have arrived load no link; those that begin later do not
            # yet.
            flows &= step.waits
            if flows.any():
                running.append((step, flows))
        rates = self._rates(running)
        # Rates hold until the next event, so time goes on to the nearest: an arrival, a
        # message that begins, or a known time.
        needs = [step.left[flows] / rate for (step, flows), rate in zip(running, rates)]
        passed = min((float(need.min()) for need in needs), default=np.inf)
        passed = min(passed, following - self._now)
        self._communication_s += passed * bool(self._active)
        self._now += passed
        for (step, flows), rate, need in zip(running, rates, needs):
            # Ends that differ by rounding alone are one event.
            arrived = need <= passed + TIME_TOLERANCE_S
            step.left[flows] -= rate * passed
            step.waits[flows] = ~arrived
        for step in self._active:
            if not step.waits.any():
                one = step.operation
                one.steps_done += 1
                added = one.steps[one.steps_done - 1].compute_s
                # The next step begins when the busiest rank has added what it got.
                self._push(self._now + added, one)
        self._active = [step for step in self._active if step.waits.any()]

        done: list[_NodeKey] = []
        while self._events and self._events[0][0] <= self._now + TIME_TOLERANCE_S:
            event = heapq.heappop(self._events)[2]
            if not isinstance(event, _Operation):
                self._is_busy[event[0]] = False
                done.append(event)
            elif event.steps_done < len(event.steps):
                routed = event.steps[event.steps_done].messages
                self._active.append(
                    _ActiveStep(
                        operation=event,
                        demand=routed.demand,
                        start_s=self._now + routed.start,
                        left=routed.size.copy(),
                        waits=np.ones(routed.size.size, bool),
                    )
                )
            else:
                done += self._end_operation(event)
        self._complete(done)

    def _rates(
        self, running: Sequence[tuple[_ActiveStep, NDArray[np.bool_]]]
    ) -> list[FloatArray]:
        """Return the rates of running messages, bytes a second, step by step."""
        if not running:
            return []
        parts = [step.demand.subset(flows) for step, flows in running]
        first = np.cumsum([0, *(part.weight.size for part in parts)])
        # One demand of all steps that are under way: their flows share the same links.
        together = LinkDemand(
            flow=np.concatenate([part.flow + at for part, at in zip(parts, first)]),
            link=np.concatenate([part.link for part in parts]),
            link_load=np.concatenate([part.link_load for part in parts]),
            weight=np.concatenate([part.weight for part in parts]),
            max_rate=np.concatenate([part.max_rate for part in parts]),
        )
        network = self._network
        capacity = network.overheads.usable_bandwidth * network.topology.capacity
        return np.split(flow_rates(together, capacity), first[1:-1])

    def _push(self, time: float, event: _NodeKey | _Operation) -> None:
        heapq.heappush(self._events, (time, self._count, event))
        self._count += 1

    def _begin(self, nodes: Sequence[_NodeKey], idle_ranks: Iterable[int]) -> None:
        """Begin nodes whose dependencies are done.

        Args:
            nodes: these nodes.
            idle_ranks: ranks that may compute what they have not begun.
        """
        done: list[_NodeKey] = []
        for rank, place in nodes:
            node = self._trace.ranks[rank][place]
            if node.kind == "compute":
                heapq.heappush(self._ready[rank], place)
                continue
            one = self._operations[rank, place]
            if node.kind == "receive" and one.is_over:
                # A message goes without its receiver, which finds it there.
                done.append((rank, place))
                continue
            one.nodes.append((rank, place))
            # A message waits for its sender alone; a collective for all of its ranks.
            one.waiting -= node.kind != "receive"
            if node.kind != "receive" and not one.waiting:
                one.begin_s, one.steps = self._now, self._route(one)
                self._push(self._now, one)
        for rank in idle_ranks:
            # A heap of places: of what may begin a rank computes what its trace has
            # first.
            if self._ready[rank] and not self._is_busy[rank]:
                place = heapq.heappop(self._ready[rank])
                self._is_busy[rank] = True
                took = self._trace.ranks[rank][place].duration_us / 1e6
                self._push(self._now + took, (rank, place))
        if done:
            self._complete(done)

    def _complete(self, nodes: Sequence[_NodeKey]) -> None:
        """End nodes, and begin those that waited for them alone."""
        self._unfinished -= len(nodes)
        following = []
        for rank, place in nodes:
            for after in self._after[rank][place]:
                self._waits[rank][after] -= 1
                if not self._waits[rank][after]:
                    following.append((rank, after))
        self._begin(following, {rank for rank, _ in nodes})

    def _end_operation(self, one: _Operation) -> list[_NodeKey]:
        """End an operation; return its nodes that have begun."""
        one.is_over = True
        key = (one.kind, len(one.members), one.size)
        self._seconds[key].append(self._now - one.begin_s)
        return one.nodes

    def _route(self, one: _Operation) -> list[_RoutedStep]:
        """Return the routed messages of an operation, step by step."""
        key = (one.kind, one.members, one.size)
        if key in self._routed:
            return self._routed[key]
        places = self._devices[list(one.members)]
        if one.kind == MESSAGE_KIND:
            batch = MessageBatch(
                sources=places[:1], targets=places[1:], size=np.array([one.size * 1.0])
            )
            found = [self._routed_step(batch, 0.0)]
        else:
            schedule = collective_schedule(one.kind, self._algorithm, len(places))
            # The array that is cut into chunks is the largest that a rank has.
            whole = one.size * (len(places) if one.kind == "reduce-scatter" else 1)
            each, known, found = (
                whole / schedule.chunks,
                dict[object, _RoutedStep](),
                [],
            )
            for step in schedule.steps:
                again = step_key(step)
                if again not in known:
                    moves = [part.messages for part in step_blocks(step)]
                    added = np.zeros(schedule.ranks)
                    # Bytes that each rank adds to its own, in chunks; the busiest ends
                    # the step.
                    for move in moves:
                        np.add.at(added, move.targets, move.counts * move.adds)
                    batch = MessageBatch(
                        sources=places[np.concatenate([m.sources for m in moves])],
                        targets=places[np.concatenate([m.targets for m in moves])],
                        size=each * np.concatenate([1.0 * m.counts for m in moves]),
                    )
                    known[again] = self._routed_step(batch, float(each * added.max()))
                found.append(known[again])
        self._routed[key] = found
        return found

    def _routed_step(self, batch: MessageBatch, added_bytes: float) -> _RoutedStep:
        network = self._network
        asked = route_messages(
            network.topology, batch, network.overheads, network.sharing
        )
        # Weights are relative to the other messages of a step, and equal in maxmin.
        return _RoutedStep(
            messages=asked, compute_s=added_bytes * network.topology.reduce_s_per_byte
        )

    def _stuck_error(self) -> BadInput:
        waiting = [
            f"rank {one.nodes[0][0]}: {self._trace.ranks[rank][place].name}"
            for one in dict.fromkeys(self._operations.values())
            if one.nodes and not one.is_over
            for rank, place in one.nodes[:1]
        ]
        return BadInput(
            "ranks wait for each other",
            rule="a collective begins when all of its ranks have come to it",
            values=f"{self._unfinished} nodes never end; {'; '.join(waiting[:3])}",
            remedy="ranks of a group have its collectives in one order",
        )


def _match_operations(trace: ExecutionTrace) -> dict[_NodeKey, _Operation]:
    """Return the operation of each node that is one of several ranks.

    Raises:
        BadInput: ranks that do not agree on a collective, or messages that only one of
            two ranks has.
    """
    found: dict[_NodeKey, _Operation] = {}
    made: dict[tuple[object, ...], _Operation] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    ends: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for rank, own in enumerate(trace.ranks):
        for place, node in enumerate(own):
            if node.kind == "compute":
                continue
            if node.kind == "collective":
                members, kind = trace.members(node), node.collective
                # Collectives of a group are the same on its ranks one by one.
                name: tuple[object, ...] = ("collective", members)
            else:
                pair = (rank, node.peer), (node.peer, rank)
                members, kind = pair[node.kind == "receive"], MESSAGE_KIND
                name = ("message", members, node.tag)
            # The n-th of a name on one rank meets the n-th of that name on the others.
            at = (*name, seen[rank, node.kind, *name])
            seen[rank, node.kind, *name] += 1
            size = result_bytes(node, len(members))
            one = made.setdefault(at, _Operation(kind=kind, members=members, size=size))
            if (one.kind, one.size) != (kind, size):
                raise BadInput(
                    "ranks do not agree on a collective or a message",
                    rule="ranks of a group have its collectives in one order, of one "
                    "kind and size",
                    values=f"rank {rank}, node {node.id}, {node.name}: {kind} of "
                    f"{size} B; another rank: {one.kind} of {one.size} B",
                    remedy="traces of one step of one program",
                )
            one.waiting += node.kind != "receive"
            ends[at].append(node.kind)
            found[rank, place] = one
    for at, kinds in ends.items():
        one = made[at]
        # Found before the replay, which would only come to a standstill.
        if len(kinds) != len(one.members) or kinds.count("send") > 1:
            raise BadInput(
                f"a {one.kind} lacks ranks",
                rule="each rank of a group has its collectives, and each message has "
                "one rank that sends and one that receives",
                values=f"ranks {one.members[:8]}: {len(kinds)} of {len(one.members)}",
                remedy="traces of one step of one program",
            )
    return found
