"""The execution trace of a predicted step: what every rank does, and what waits for it.

    compute       the layers of a block in one pass of one microbatch, in predicted
                  microseconds; other terms (packing, update, input) are a node each
    collective    one for each array of the ledger, with its bytes and its group
    send, receive one for each array of a permutation: halos, and stages that exchange

Communication of a layer lies behind its compute, the first half of its arrays in the
forward pass, and what follows waits for it. Parameters that fsdp shards are gathered
one after another, and their layer waits for them; gradients are reduced one after
another behind the backward pass of as large a part of the parameters. Both overlap with
compute where the cluster's collectives do. A pipeline exchanges after each superstep of
its schedule, also what nobody needs, as its program does.

Ranks are devices in the order of the plan's placement.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from jaxdist.core.axes import POSITION_AXES
from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.core.profile import LayerProfile
from jaxdist.network.chakra.trace import ExecutionTrace, TraceNode
from jaxdist.oracle.compute_times import (
    ComputeCostModel,
    compute_cost_model,
)
from jaxdist.oracle.planned_transfers import (
    EXCHANGE_LAYER,
    PlannedTransfer,
    split_row,
)
from jaxdist.oracle.predict import Prediction
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.context_parallel import ATTENTION_GRADIENTS
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.pipeline.plan_schedule import plan_schedule
from jaxdist.pipeline.schedule_base import WorkItem

_PERMUTE_KIND: Final = "collective-permute"
_REDUCTION_SCOPE: Final = "reduce_gradients"
_TERMS_BEHIND: Final = ("offload", "packing")
"""Terms of the device alone, behind the passes."""

Pairs = tuple[tuple[int, int], ...]
"""(from, to), positions along an axis."""


@dataclass(frozen=True, kw_only=True)
class _Operation:
    """One operation of all ranks that share a rank of the pipe axis."""

    name: str
    dependencies: tuple[int, ...]
    seconds: float = 0.0
    transfer: PlannedTransfer | None = None


@dataclass(kw_only=True)
class _OperationList:
    """The operations of a rank, as they are added."""

    operations: list[_Operation] = field(default_factory=list)
    last: tuple[int, ...] = ()
    """What the next pass waits for."""

    def compute(self, name: str, seconds: float, also: Iterable[int] = ()) -> None:
        """Add what the device computes; all that follows waits for it."""
        # dict.fromkeys drops doubles and keeps the order, so that traces are
        # reproducible.
        waits = tuple(dict.fromkeys((*self.last, *also)))
        self.last = (self._add(name, waits, seconds),)

    def transfer(self, one: PlannedTransfer, waits: Iterable[int]) -> int:
        """Add a collective or a permutation, for which nothing waits yet."""
        name = f"{one.row.what} of {one.row.layer}"
        return self._add(name, tuple(dict.fromkeys(waits)), 0.0, one)

    def communicate(self, transfers: Iterable[PlannedTransfer]) -> None:
        """Add collectives, one after another; all that follows waits for them."""
        for one in transfers:
            self.last = (self.transfer(one, self.last),)

    def _add(
        self,
        name: str,
        waits: tuple[int, ...],
        seconds: float,
        transfer: PlannedTransfer | None = None,
    ) -> int:
        self.operations.append(
            _Operation(
                name=name, dependencies=waits, seconds=seconds, transfer=transfer
            )
        )
        return len(self.operations) - 1


def step_trace(
    case: StepDescription, cluster: Cluster, prediction: Prediction
) -> ExecutionTrace:
    """Return the execution trace of a predicted step.

    Syncs of replicas between steps are no part of it.

    Args:
        case: network, layout and traffic.
        cluster: machines.
        prediction: of the step on the cluster.

    Raises:
        BadInput: stages whose weights move during the step, or gradients that are
            summed by a schedule of permutations.
    """
    plan = case.plan
    if plan.pipe.flows and plan.stages > 1:
        raise BadInput(
            "a step of an asynchronous pipeline has no trace",
            rule="a trace is of one step, which ends with an update of all stages",
            values=f"plan.pipe.schedule = {plan.pipe.schedule}",
            remedy="plan.pipe.schedule=1f1b",
        )
    for ledger in case.ledgers:
        for row in ledger.rows:
            if row.kind == _PERMUTE_KIND and not _is_neighbour_exchange(row):
                raise BadInput(
                    "gradients summed by a schedule of permutations have no trace",
                    rule="a trace names collectives, and a simulator chooses how they "
                    "are done",
                    values=f"{row.what}, {' x '.join(row.axes)}",
                    remedy="plan.reduce.algorithm=exact",
                )
    # A prediction has the compute of the busiest rank alone, so one scale serves all.
    scale = _compute_scale(case, cluster, prediction)
    # Ranks that differ along other axes than pipe run the same program, so it is built
    # once for each stage rank.
    programs = [
        _StepProgram(case, cluster, prediction, pipe_rank, scale).build()
        for pipe_rank in range(plan.mesh.pipe)
    ]
    return _place_programs(plan, case, programs)


def _is_neighbour_exchange(row: PlannedCollective) -> bool:
    return row.layer == EXCHANGE_LAYER or row.axes[0] in POSITION_AXES


def _compute_scale(
    case: StepDescription, cluster: Cluster, prediction: Prediction
) -> float:
    """Return predicted compute over the sum of the layers.

    It has what layers alone do not say: jitter, interference of collectives, and cores
    that stages share.
    """
    rank = prediction.busiest_device
    model = compute_cost_model(case, cluster.device, rank)
    stages = case.placement.stages_of(rank) if case.stages else (0,)
    whole = sum(
        spent.forward + spent.backward
        for stage in stages
        for spent in map(model.microbatch_time, case.compute_layers(stage))
    )
    whole *= case.work_counts[rank].microbatches
    return prediction.terms_s["compute"] / whole if whole else 1.0


_LayerTransfers = defaultdict[tuple[str, str, int], list[PlannedTransfer]]
"""Transfers of a layer, in a pass, of a microbatch."""


class _StepProgram:
    """Builds the operations of one rank of the pipe axis."""

    def __init__(
        self,
        case: StepDescription,
        cluster: Cluster,
        prediction: Prediction,
        pipe_rank: int,
        scale: float,
    ) -> None:
        self._case, self._terms, self._rank = case, prediction.terms_s, pipe_rank
        self._program = _OperationList()
        self._overlaps = bool(cluster.overlap.value) and case.plan.stages == 1
        self._micro = case.microbatches
        model = compute_cost_model(case, cluster.device, pipe_rank)
        self._layers, self._seconds = _scaled_layers(case, model, pipe_rank, scale)
        names = {layer.name for own in self._layers.values() for layer in own}
        self._split_rows(names)

    def build(self) -> list[_Operation]:
        """Return the operations, each behind those that it waits for."""
        if "input" in self._terms:
            self._program.compute("input", self._terms["input"])
        self._begin_gathers()
        if self._case.plan.stages == 1:
            for micro in range(self._micro):
                self._add_pass(WorkItem(kind="forward", stage=0, microbatch=micro))
                self._add_pass(WorkItem(kind="backward", stage=0, microbatch=micro))
        else:
            self._add_schedule()
        self._add_end()
        return self._program.operations

    def _split_rows(self, names: set[str]) -> None:
        """Sort the ledger's arrays by when they are moved."""
        micro, zero = self._micro, self._case.plan.zero
        # Of a layer: arrays of each microbatch, forward and backward.
        self._inside: _LayerTransfers = defaultdict(list)
        self._gathers: _LayerTransfers = defaultdict(list)
        self._exchanges: list[list[PlannedTransfer]] = []
        self._first: list[PlannedTransfer] = []
        self._reductions: list[PlannedTransfer] = []
        self._behind: list[PlannedTransfer] = []
        self._updated: list[PlannedTransfer] = []
        single: Counter[str] = Counter()
        for row in self._case.ledgers[self._rank].rows:
            arrays = split_row(row, self._case.plan.mesh.size(*row.axes))
            # A row of a layer has equally many arrays of each microbatch, in the order
            # in which they are moved; a rest means that it is not moved by
            # microbatches.
            each, rest = divmod(len(arrays), micro)
            if row.layer == EXCHANGE_LAYER:
                self._exchanges.append(arrays)
            elif row.layer in names and not rest and each:
                # A row of one array is forward or backward, those of a layer in turn.
                ahead = -(-each // 2)
                # Gradients of keys and values exist in the backward pass alone.
                if row.what == ATTENTION_GRADIENTS:
                    ahead = 0
                elif each == 1:
                    ahead = 1 - single[row.layer] % 2
                    single[row.layer] += 1
                for place, one in enumerate(arrays):
                    number, within = divmod(place, each)
                    way = "forward" if within < ahead else "backward"
                    self._inside[row.layer, way, number].append(one)
            # ZeRO 1 gathers the new values behind the update, ZeRO 3 gathers before
            # each use.
            elif row.what == "parameters" and zero != 3:
                self._updated += arrays
            elif row.what == "parameters":
                # Vectors of all layers travel together, before the first of them.
                layer = _layer_of_leaf(row.layer, names)
                if self._case.stages or rest or not layer:
                    self._first += arrays
                    continue
                for place, one in enumerate(arrays):
                    number, within = divmod(place, each)
                    # ZeRO 3 drops a matrix after the forward pass: its second gather is
                    # backward.
                    way = "backward" if within else "forward"
                    self._gathers[layer, way, number].append(one)
            elif row.what == "gradients" or row.layer.startswith(_REDUCTION_SCOPE):
                self._reductions += arrays
            else:
                self._behind += arrays

    def _begin_gathers(self) -> None:
        """Add what is gathered before the first pass."""
        self._program.communicate(self._first)
        self._last_gather: tuple[int, ...] = self._program.last
        self._last_reduction: tuple[int, ...] = ()
        self._reduced = 0
        # A reduction is due when as large a part of the backward pass is done as it and
        # those before it are of all gradients; the ledger does not say whose they are.
        sizes = [one.size for one in self._reductions]
        total = max(1, sum(sizes))
        self._due = [size / total for size in itertools.accumulate(sizes)]

    def _add_pass(self, work: WorkItem) -> None:
        """Add one pass of one microbatch through one stage."""
        forward, micro = work.kind == "forward", work.microbatch
        layers = self._layers[work.stage]
        # Sums over several microbatches are reduced behind the last pass, as the step
        # does it.
        overlapped = self._overlaps and self._micro == 1 and not forward
        whole = max(1, sum(layer.parameter_bytes for layer in layers))
        title = f"{work.kind} {{}}, microbatch {micro}"
        seconds, passed = 0.0, 0
        ordered = layers if forward else layers[::-1]
        for place, layer in enumerate(ordered):
            seconds += self._seconds[work.stage, layer.name, work.kind]
            passed += layer.parameter_bytes
            inside, waits = list[PlannedTransfer](), list[int]()
            if work.kind != "weights":
                inside = self._inside[layer.name, work.kind, micro]
                waits = self._add_gathers(layer.name, work.kind, micro)
            is_last = place == len(ordered) - 1
            block = layer.block or layer.name
            # A node for each block and not for each layer keeps traces small;
            # collectives split a block where they have to lie.
            ends = is_last or ordered[place + 1].block != layer.block
            if waits or inside or ends:
                self._program.compute(title.format(block), seconds, waits)
                self._program.communicate(inside)
                seconds = 0.0
                # Behind the node, which has these layers' passes: a gradient that is
                # only counted so far is not there yet.
                if overlapped:
                    self._reduce_until(passed / whole)

    def _add_gathers(self, layer: str, way: str, micro: int) -> list[int]:
        """Add the gathers of a layer's parameters, and return what it waits for."""
        found = []
        for one in self._gathers[layer, way, micro]:
            # Gathers run ahead of the passes where they may overlap with them.
            before = self._last_gather if self._overlaps else self._program.last
            found.append(self._program.transfer(one, before))
            self._last_gather = (found[-1],)
        return found

    def _reduce_until(self, done: float) -> None:
        """Add the reductions of such a part of the gradients, one after another."""
        # Shares of floats need not add up to 1.
        rounding = 1e-9
        while self._reduced < len(self._due):
            if self._due[self._reduced] > done + rounding:
                return
            waits = (*self._program.last, *self._last_reduction)
            one = self._reductions[self._reduced]
            self._last_reduction = (self._program.transfer(one, waits),)
            self._reduced += 1

    def _add_schedule(self) -> None:
        """Add the supersteps of a pipeline, each with the exchange that ends it."""
        schedule = plan_schedule(self._case.plan, self._micro)
        for number, superstep in enumerate(schedule.supersteps):
            for row in superstep:
                if (work := row[self._rank]) is not None:
                    self._add_pass(work)
            waits = self._program.last
            sent = [
                self._program.transfer(row[place], waits)
                for row in self._exchanges
                # Which arrays of the row belong to this exchange: the ledger has those
                # of all of them together.
                for place in range(
                    number * len(row) // schedule.exchanges,
                    (number + 1) * len(row) // schedule.exchanges,
                )
            ]
            self._program.last = (*waits, *sent)

    def _add_end(self) -> None:
        """Add what follows the passes: reductions, norms, the update."""
        for term in _TERMS_BEHIND:
            if self._terms.get(term):
                self._program.compute(term, self._terms[term])
        self._reduce_until(1.0)
        self._program.last = (*self._program.last, *self._last_reduction)
        self._program.communicate(self._behind)
        self._program.compute("update", self._terms.get("update", 0.0))
        self._program.communicate(self._updated)


def _scaled_layers(
    case: StepDescription, model: ComputeCostModel, pipe_rank: int, scale: float
) -> tuple[dict[int, tuple[LayerProfile, ...]], dict[tuple[int, str, str], float]]:
    """Return the layers of each stage of a rank, and their seconds by kind of work."""
    stages = case.placement.stages_of(pipe_rank) if case.stages else (0,)
    layers = {stage: case.compute_layers(stage) for stage in stages}
    split = False
    if case.stages:
        split = plan_schedule(case.plan, case.microbatches).release_kind == "weights"
    seconds = {}
    for stage, own in layers.items():
        for layer in own:
            spent = model.microbatch_time(layer)
            # Schedules without ticks for the gradients of weights have them in the
            # backward pass.
            later = spent.weights * split
            for kind, took in (
                ("forward", spent.forward),
                ("backward", spent.backward - later),
                ("weights", later),
            ):
                seconds[stage, layer.name, kind] = scale * took
    return layers, seconds


def _layer_of_leaf(leaf: str, names: Iterable[str]) -> str:
    """Return the layer whose parameter a leaf is; empty where none is."""
    path = leaf.replace("/", ".")
    found = [name for name in names if path.startswith(f"{name}.")]
    # The longest name: layers may lie inside of layers, whose paths begin alike.
    return max(found, key=len, default="")


def _place_programs(
    plan: Plan, case: StepDescription, programs: Sequence[Sequence[_Operation]]
) -> ExecutionTrace:
    """Return the traces of all ranks, with groups and neighbours of each."""
    placed, devices = plan.placed, plan.mesh.devices
    stride, size = placed.place("pipe")
    # The empty name is the group of all ranks, which a trace need not list.
    groups: dict[tuple[int, ...], str] = {tuple(range(devices)): ""}
    pairs: Pairs = ()
    if case.stages:
        pairs = tuple(itertools.chain(*case.placement.send_permutations()))
    ranks = []
    for rank in range(devices):
        nodes = _RankNodes(rank, placed, pairs, groups)
        for one in programs[rank // stride % size]:
            nodes.add(one)
        ranks.append(tuple(nodes.nodes))
    return ExecutionTrace(
        ranks=tuple(ranks),
        groups={name: members for members, name in groups.items() if name},
    )


class _RankNodes:
    """The nodes of one rank, made from operations."""

    def __init__(
        self,
        rank: int,
        placed: MeshPlacement,
        stage_pairs: Pairs,
        groups: dict[tuple[int, ...], str],
    ) -> None:
        self.nodes: list[TraceNode] = []
        self._rank, self._placed, self._groups = rank, placed, groups
        self._stage_pairs = stage_pairs
        # Nodes of each operation. A device at the end of a line has none of some
        # permutations, and what waits for these waits for what they wait for.
        self._made: list[tuple[int, ...]] = []
        self._seconds = 0.0
        self._tags: Counter[tuple[int, int]] = Counter()

    def add(self, one: _Operation) -> None:
        """Add the nodes of an operation."""
        made = [node for each in one.dependencies for node in self._made[each]]
        waits, first = tuple(dict.fromkeys(made)), len(self.nodes)
        if one.transfer is None:
            self._add_compute(one, waits)
        elif one.transfer.row.kind == _PERMUTE_KIND:
            self._add_messages(one.name, one.transfer, waits)
        else:
            self._add_collective(one.name, one.transfer, waits)
        self._made.append(tuple(range(first, len(self.nodes))) or waits)

    def _add_compute(self, one: _Operation, waits: tuple[int, ...]) -> None:
        # Rounded from the start of the step on: short nodes add up to their sum.
        before, self._seconds = self._seconds, self._seconds + one.seconds
        self.nodes.append(
            TraceNode(
                id=len(self.nodes),
                name=one.name,
                kind="compute",
                dependencies=waits,
                duration_us=round(1e6 * self._seconds) - round(1e6 * before),
            )
        )

    def _add_collective(
        self, name: str, one: PlannedTransfer, waits: tuple[int, ...]
    ) -> None:
        base, offsets = self._rank, [0]
        # Going back to coordinate 0 along each axis gives the first member of the
        # rank's group; offsets are those of all coordinates from there.
        for stride, size in map(self._placed.place, one.row.axes):
            base -= self._rank // stride % size * stride
            offsets = [o + stride * at for o in offsets for at in range(size)]
        members = tuple(base + offset for offset in offsets)
        # The ledger counts results; a trace has the bytes that a rank brings in: its
        # part of a gather, the whole array of a reduce-scatter.
        given = one.size
        if one.row.kind == "all-gather":
            given //= len(members)
        elif one.row.kind == "reduce-scatter":
            given *= len(members)
        self.nodes.append(
            TraceNode(
                id=len(self.nodes),
                name=name,
                kind="collective",
                dependencies=waits,
                collective=one.row.kind,
                group=self._groups.setdefault(members, str(len(self._groups))),
                size=given,
            )
        )

    def _add_messages(
        self, name: str, one: PlannedTransfer, waits: tuple[int, ...]
    ) -> None:
        ((stride, size),) = map(self._placed.place, one.row.axes)
        place = self._rank // stride % size
        pairs = tuple(itertools.pairwise(range(size)))
        if one.row.layer == EXCHANGE_LAYER:
            pairs = self._stage_pairs
        if one.reverse:
            pairs = tuple((target, source) for source, target in pairs)
        # A rank has a node for each end that it is: in the middle of a line two, one at
        # an end.
        for source, target in pairs:
            if place not in (source, target):
                continue
            sends = place == source
            peer = self._rank + stride * ((target if sends else source) - place)
            ends = (self._rank, peer) if sends else (peer, self._rank)
            self.nodes.append(
                TraceNode(
                    id=len(self.nodes),
                    name=name,
                    kind="send" if sends else "receive",
                    dependencies=waits,
                    size=one.size,
                    peer=peer,
                    # Messages of one direction between two ranks match in the order of
                    # their tags.
                    tag=self._tags[ends],
                )
            )
            self._tags[ends] += 1
