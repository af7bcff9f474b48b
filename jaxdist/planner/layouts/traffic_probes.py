"""The traffic of each mesh axis alone, read off small layouts that are described."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Self

from jaxdist.core.axes import CONTEXT_AXIS, EXPERT_AXIS, SPATIAL_AXES
from jaxdist.core.cluster.device import Device
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.oracle.compute_times import ComputeCostModel
from jaxdist.oracle.step_description import FROZEN_TERM, StepDescription
from jaxdist.partition.context_parallel import ATTENTION_GRADIENTS, ATTENTION_TERM
from jaxdist.partition.expert_parallel import BALANCE_TERM, EXPERT_TERM, SLOTS_TERM
from jaxdist.partition.traffic import PlannedCollective

_NOT_OF_LAYERS: Final = (
    *("all-reduce", "gradients", "statistics"),
    *("lengths", "momenta"),
)
"""Traffic along the tensor axis that is not inside of split layers."""


@dataclass(frozen=True, kw_only=True)
class ProbedTraffic:
    """The traffic of one kind in a microbatch, or step."""

    payload: float = 0.0
    """Bytes of the whole global batch, or of all parameters."""
    arrays: float = 0.0
    """Collectives of it."""

    @classmethod
    def of(cls, rows: Iterable[PlannedCollective]) -> Self:
        """Return the sum of some rows of a ledger."""
        each = [(row.payload, row.arrays) for row in rows]
        return cls(payload=sum(p for p, _ in each), arrays=sum(n for _, n in each))


@dataclass(frozen=True, kw_only=True)
class TrafficProbes:
    """The traffic of each axis where it is the only one."""

    parameter_bytes: int
    """Bytes of the parameters."""
    state: float = 1.0
    """Bytes of the state for each byte of the parameters."""
    trained_fraction: float = 1.0
    """Part of the parameters that is not frozen: of it alone are gradients."""
    batch_bytes: int = 0
    """Bytes of the samples of a global batch."""
    tensor_split_fraction: float = 0.0
    """Part of the parameters that the tensor axis splits."""
    tensor_parallel_layers: frozenset[str] = frozenset()
    """Layers whose work it splits."""
    gathered_ratio: float = 1.0
    """Bytes of gathered parameters for each stored byte: their dtypes may differ."""
    usable_axes: tuple[str, ...] = ()
    """Axes that split something of this network."""
    gradient_all_reduce: ProbedTraffic = ProbedTraffic()
    """Of gradients, in a step."""
    norm_statistics: ProbedTraffic = ProbedTraffic()
    """Of batch norms, in a microbatch."""
    parameter_all_gather: ProbedTraffic = ProbedTraffic()
    """Of parameters that fsdp shards, in a microbatch."""
    gradient_reduce_scatter: ProbedTraffic = ProbedTraffic()
    """Of their gradients, in a step."""
    tensor_collectives: Mapping[str, ProbedTraffic] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Of layers whose weights are split, by kind of collective."""
    halo_exchange: Mapping[str, ProbedTraffic] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Of split images, by axis."""
    context_collectives: Mapping[str, ProbedTraffic] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Of layers that read of other devices' tokens, by kind of collective: all keys,
    values and gradients, in permutes those of a hop for each device."""
    expert_fraction: float = 0.0
    """Part of the parameters that the expert axis splits."""
    expert_gradient_arrays: float = 0.0
    """All-reduces of their gradients, among those of all."""
    expert_exchange: ProbedTraffic = ProbedTraffic()
    """Of tokens to their experts and back, in a microbatch."""


def probe_traffic(
    base_plan: Plan,
    devices: int,
    axes: Sequence[str],
    describe_step: Callable[[Plan], StepDescription],
    parameter_bytes: int,
    device: Device,
) -> TrafficProbes:
    """Describe a layout along each axis alone, and read its traffic.

    An axis that refuses the smallest number of devices is left out.

    Args:
        base_plan: the settings that no search changes.
        devices: their smallest divisor is tried.
        axes: to be tried, but for `pipe`, which always splits a network.
        describe_step: describes a plan's step; it may refuse the plan.
        parameter_bytes: bytes of all parameters.
        device: any: its speed is not used.
    """
    # The smallest layout of an axis is the fastest to describe, and traffic scales from
    # it by known factors.
    few = next((n for n in range(2, devices + 1) if devices % n == 0), 1)
    cases: dict[str, StepDescription] = {}
    tried = [(axis, few) for axis in axes if axis != "pipe" and few > 1]
    for axis, size in (*tried, ("", 1)):
        # Where no axis splits anything, one device tells of the state and the samples.
        if not axis and cases:
            break
        mesh = MeshShape(**{axis or "data": size})
        plan = base_plan.on(mesh).without_remat
        try:
            cases[axis] = describe_step(replace(plan, mesh=mesh, microbatches=1))
        except BadInput:
            if not axis:
                raise
    some = next(iter(cases.values()))
    # State, as optimizer moments, is split as the parameters are, so their ratio holds
    # for all layouts.
    trained = some.state_bytes.get("parameters", parameter_bytes)
    held = trained + some.state_bytes.get(FROZEN_TERM, 0)
    rows = {axis: case.ledgers[0].rows for axis, case in cases.items()}

    # Data parallelism, spatial or not, reduces gradients and statistics alike.
    alike = ("data", "spatial_h", "fsdp", CONTEXT_AXIS)
    whole = next((rows[axis] for axis in alike if rows.get(axis)), ())
    sharded = rows.get("fsdp", ())
    gathers = [row for row in sharded if row.what == "parameters"]
    gathered = sum(row.payload // row.arrays for row in gathers)

    split, split_layers = 0.0, frozenset[str]()
    tensor_rows: dict[str, list[PlannedCollective]] = {}
    if tensor := cases.get("tensor"):
        # The parameter bytes of a device tell which part of them the axis splits.
        own = tensor.state_bytes.get("parameters", 0)
        kept = (own + tensor.state_bytes.get(FROZEN_TERM, 0)) / parameter_bytes
        split = min(1.0, (1 - kept) * few / (few - 1))
        # A device's share of a layer is all of it or one part of `few`; rounding puts
        # it a little off, so the limit lies halfway.
        micro, halfway = tensor.microbatches, (1 + 1 / few) / 2
        limit = halfway / tensor.sample_shards / micro
        model = ComputeCostModel(
            case=tensor, device=device, ledger=tensor.ledgers[0], microbatches=micro
        )
        split_layers = frozenset(
            x.name for x in tensor.profile.layers if model.work_fraction(x) < limit
        )
        for row in rows["tensor"]:
            if row.what not in _NOT_OF_LAYERS:
                # Scattered results are counted whole: a device has a part of `few`.
                n = few if row.kind == "reduce-scatter" else 1
                one = replace(row, payload=n * row.payload)
                tensor_rows.setdefault(row.kind, []).append(one)
    experts, alone = 0.0, 0.0
    if case := cases.get(EXPERT_AXIS):
        kept = case.state_bytes["parameters"] / parameter_bytes
        experts = min(1.0, (1 - kept) * few / (few - 1))
        shared = ProbedTraffic.of(
            row for row in rows[EXPERT_AXIS] if row.what == "all-reduce"
        )
        every = ProbedTraffic.of(row for row in whole if row.what == "all-reduce")
        alone = every.arrays - shared.arrays
    return TrafficProbes(
        parameter_bytes=parameter_bytes,
        state=sum(some.state_bytes.values()) / max(1, held),
        trained_fraction=trained / max(1, held),
        batch_bytes=some.batch_bytes,
        tensor_split_fraction=split,
        tensor_parallel_layers=split_layers,
        gathered_ratio=gathered / parameter_bytes or 1.0,
        usable_axes=tuple(axis for axis in axes if axis in cases or axis == "pipe"),
        gradient_all_reduce=ProbedTraffic.of(
            r for r in whole if r.what == "all-reduce"
        ),
        norm_statistics=ProbedTraffic.of(
            r for r in whole if r.what in ("statistics", BALANCE_TERM)
        ),
        parameter_all_gather=ProbedTraffic.of(gathers),
        gradient_reduce_scatter=ProbedTraffic.of(
            row for row in sharded if row.what == "gradients"
        ),
        tensor_collectives={k: ProbedTraffic.of(own) for k, own in tensor_rows.items()},
        halo_exchange={
            axis: ProbedTraffic.of(
                row for row in rows[axis] if row.kind == "collective-permute"
            )
            for axis in SPATIAL_AXES
            if axis in rows
        },
        context_collectives=_context_traffic(rows.get(CONTEXT_AXIS, ()), few),
        expert_fraction=experts,
        expert_gradient_arrays=alone,
        expert_exchange=ProbedTraffic.of(
            replace(row, payload=few * row.payload)
            for row in rows.get(EXPERT_AXIS, ())
            if row.what == EXPERT_TERM
        ),
    )


def _context_traffic(
    rows: Iterable[PlannedCollective], devices: int
) -> dict[str, ProbedTraffic]:
    """Return what layers move between parts of the tokens, of all parts together.

    Args:
        rows: of the smallest layout along the axis.
        devices: those of that layout.
    """
    # Gathers have that already, and so have gradients that go round; keys and values
    # hop once less.
    read: dict[str, list[PlannedCollective]] = {}
    for row in rows:
        if row.what in (ATTENTION_TERM, ATTENTION_GRADIENTS, SLOTS_TERM):
            hops = devices if row.what == ATTENTION_GRADIENTS else devices - 1
            parts = {"all-gather": 1.0, "collective-permute": devices / hops}
            payload = round(parts.get(row.kind, devices) * row.payload)
            read.setdefault(row.kind, []).append(replace(row, payload=payload))
    found = {kind: ProbedTraffic.of(own) for kind, own in read.items()}
    if ring := found.get("collective-permute"):
        found["collective-permute"] = replace(ring, arrays=ring.arrays / devices)
    return found
