"""Samples: what each axis moves by itself, read off small layouts described in full."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.cluster.device import Device
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.oracle.compute_times import ComputeCostModel
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.traffic import PlannedCollective


@dataclass(frozen=True, kw_only=True)
class ProbedTraffic:
    """Traffic of one kind in one microbatch, or step."""

    payload: float = 0.0
    """Bytes of the whole global batch, or of all parameters."""
    arrays: float = 0.0
    """Messages of it."""


@dataclass(frozen=True, kw_only=True)
class TrafficProbes:
    """What axes move where each of them is alone."""

    parameter_bytes: int
    """Bytes of the parameters."""
    state: float = 1.0
    """Bytes of the state for each byte of the parameters."""
    batch_bytes: int = 0
    """Bytes of the samples of a global batch."""
    tensor_split_fraction: float = 0.0
    """Part of the parameters that the tensor axis splits."""
    tensor_parallel_layers: frozenset[str] = frozenset()
    """Layers whose work it divides."""
    gathered_ratio: float = 1.0
    """Bytes of the parameters as they are used for each byte of them."""
    usable_axes: tuple[str, ...] = ()
    """Axes that split something of this network."""
    gradient_all_reduce: ProbedTraffic = ProbedTraffic()
    """Of gradients, in a step."""
    norm_statistics: ProbedTraffic = ProbedTraffic()
    """Of batch norms, in a microbatch."""
    parameter_all_gather: ProbedTraffic = ProbedTraffic()
    """Of parameters that fsdp shares out, in a microbatch."""
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


def probe_traffic(
    base_plan: Plan,
    devices: int,
    axes: Sequence[str],
    describe_step: Callable[[Plan], StepDescription],
    parameter_bytes: int,
    device: Device,
) -> TrafficProbes:
    """Describe a layout along each axis alone, and read what it moves.

    An axis that refuses the smallest number of devices is left out.

    Args:
        base_plan: what stays as it is.
        devices: whose smallest divisor is tried.
        axes: to be tried; `pipe` is taken as it is.
        describe_step: gives a plan's case; it may refuse.
        parameter_bytes: bytes of all of them.
        device: any: its speed is not used.
    """
    few = next((n for n in range(2, devices + 1) if devices % n == 0), 1)
    cases = dict(_probe_steps(base_plan, few, axes, describe_step))
    rows = {axis: case.ledgers[0].rows for axis, case in cases.items()}
    some = next(iter(cases.values()), None) or describe_step(
        _single_axis_plan(base_plan, "data", 1)
    )
    held = some.state_bytes.get("parameters", parameter_bytes)
    state = sum(some.state_bytes.values()) / max(1, held)
    whole = rows.get("data") or rows.get("spatial_h") or rows.get("fsdp") or ()
    tensor = cases.get("tensor")
    kept = tensor.state_bytes["parameters"] / parameter_bytes if tensor else 1.0
    return TrafficProbes(
        parameter_bytes=parameter_bytes,
        state=state,
        batch_bytes=some.batch_bytes,
        tensor_split_fraction=min(1.0, (1 - kept) * few / (few - 1))
        if few > 1
        else 0.0,
        tensor_parallel_layers=_tensor_parallel_layers(tensor, device)
        if tensor
        else frozenset(),
        gathered_ratio=_gathered_ratio(rows.get("fsdp", ()), parameter_bytes),
        usable_axes=tuple(axis for axis in axes if axis in cases or axis == "pipe"),
        gradient_all_reduce=_sum_traffic(whole, what="all-reduce"),
        norm_statistics=_sum_traffic(whole, what="statistics"),
        parameter_all_gather=_sum_traffic(rows.get("fsdp", ()), what="parameters"),
        gradient_reduce_scatter=_sum_traffic(rows.get("fsdp", ()), what="gradients"),
        tensor_collectives=_tensor_collectives(rows.get("tensor", ()), few),
        halo_exchange={a: _halo_exchange(rows[a]) for a in SPATIAL_AXES if a in rows},
    )


def _tensor_parallel_layers(case: StepDescription, device: Device) -> frozenset[str]:
    """Return the layers of which a device along the tensor axis does a part."""
    micro, halfway = case.microbatches, (1 + 1 / case.plan.mesh.tensor) / 2
    worker = ComputeCostModel(
        case=case, device=device, ledger=case.ledgers[0], microbatches=micro
    )
    whole = halfway / case.sample_shards / micro
    return frozenset(
        x.name for x in case.profile.layers if worker.work_fraction(x) < whole
    )


def _gathered_ratio(rows: Sequence[PlannedCollective], parameter_bytes: int) -> float:
    """Return the bytes that are put together at a time for each byte of them."""
    whole = sum(row.payload // row.arrays for row in rows if row.what == "parameters")
    return whole / parameter_bytes or 1.0


def _probe_steps(
    base: Plan,
    devices: int,
    axes: Sequence[str],
    describe: Callable[[Plan], StepDescription],
) -> Iterator[tuple[str, StepDescription]]:
    for axis in axes if devices > 1 else ():
        if axis == "pipe":
            continue
        try:
            yield axis, describe(_single_axis_plan(base, axis, devices))
        except BadInput:
            continue


def _single_axis_plan(base: Plan, axis: str, devices: int) -> Plan:
    mesh = MeshShape(**{axis: devices})
    one = replace(base.on(mesh), remat=False, remat_until="")
    return replace(one, mesh=mesh, microbatches=1)


def _sum_traffic(rows: Sequence[PlannedCollective], *, what: str) -> ProbedTraffic:
    own = [row for row in rows if row.what == what]
    return ProbedTraffic(
        payload=sum(row.payload for row in own), arrays=sum(row.arrays for row in own)
    )


def _tensor_collectives(
    rows: Sequence[PlannedCollective], devices: int
) -> dict[str, ProbedTraffic]:
    """Sum what layers move; what is dealt out is counted whole."""
    found: dict[str, ProbedTraffic] = {}
    for row in rows:
        if row.what in ("all-reduce", "gradients", "statistics", "lengths"):
            continue
        was = found.get(row.kind, ProbedTraffic())
        whole = devices if row.kind == "reduce-scatter" else 1
        found[row.kind] = ProbedTraffic(
            payload=was.payload + whole * row.payload, arrays=was.arrays + row.arrays
        )
    return found


def _halo_exchange(rows: Sequence[PlannedCollective]) -> ProbedTraffic:
    own = [row for row in rows if row.kind == "collective-permute"]
    return ProbedTraffic(
        payload=sum(row.payload for row in own), arrays=sum(row.arrays for row in own)
    )
