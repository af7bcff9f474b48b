"""The ledger: what a plan's step must move, and the work it leaves to a device."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.core.plan import Plan
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition import (
    data_parallel,
    fsdp,
    global_norm_axes,
    spatial_layers,
    spatial_parallel,
    tensor_parallel,
)
from jaxdist.partition.flops import predict_flops
from jaxdist.partition.gradient_buckets import (
    BUCKET_SCOPE,
    GradientReduction,
    bucket_traffic,
    exact_reduction,
)
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.profile.layer_calls import LayerCall

TrafficKey = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class ParameterReads:
    """The parameters of a step and how it reads them."""

    leaves: tuple[LeafSharding, ...]
    """Each parameter and how it is split."""
    backward_reads: tuple[bool, ...]
    """Whether the backward pass reads each one's value."""
    dtype: Any
    """Dtype of the activations; None is the parameters' own."""
    norm_requests: tuple[tuple[bool, ...], ...] = ()
    """The leaves whose length the optimizer asks for, each time that it does."""
    global_norms: int = 0
    """How often it asks for the sum of the squares of all."""
    gathers_per_step: int = 1
    """How often a step puts them together where fsdp shares them out."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All traffic and work of one training step under a plan, and what follows some."""

    plan: Plan
    """The plan it was written for."""
    rows: tuple[PlannedCollective, ...]
    """One row a layer, direction and kind."""
    layer_flops: Mapping[str, int] = field(default_factory=dict)
    """FLOPs a device, forward and backward, by the path of a layer with a kernel."""
    outer_syncs: tuple[OuterSync, ...] = ()
    """What replicas move between steps, in the order of a period."""

    def with_rows(self, rows: Iterable[PlannedCollective]) -> "Ledger":
        """Return the ledger with more rows."""
        return replace(self, rows=(*self.rows, *(row for row in rows if row.payload)))

    def sync_ledger(self, sync: OuterSync) -> "Ledger":
        """Return the ledger of one of the syncs alone."""
        return Ledger(plan=self.plan, rows=sync.rows)

    def with_reduction(
        self, reduction: GradientReduction, leaves: Sequence[LeafSharding]
    ) -> "Ledger":
        """Return the ledger with other sums of the same buckets."""
        others = [row for row in self.rows if not row.layer.startswith(BUCKET_SCOPE)]
        sums = bucket_traffic(self.plan, leaves, reduction)
        return replace(self, rows=(*others, *(row for row in sums if row.payload)))

    def payload_by_axes(self) -> dict[TrafficKey, int]:
        """Payload bytes on a device by (kind, axes)."""
        total: Counter[TrafficKey] = Counter()
        for row in self.rows:
            total[row.kind, row.axes] += row.payload
        return {key: size for key, size in total.items() if size}

    def sent_bytes_by_term(self) -> dict[str, int]:
        """Bytes a device sends by `what, axes`, largest first: a report's words.

        Syncs count by the step: their bytes over a period, divided by its steps.
        """
        total: Counter[str] = Counter()
        for row in self.rows:
            total[_term_name(row)] += self._sent_bytes(row)
        joint: Counter[str] = Counter()
        for row in (row for sync in self.outer_syncs for row in sync.rows):
            joint[_term_name(row)] += self._sent_bytes(row)
        every = self.plan.outer.every
        total.update({term: round(sent / every) for term, sent in joint.items()})
        return dict(total.most_common())

    def _sent_bytes(self, row: PlannedCollective) -> int:
        return wire_bytes(row.kind, row.payload, self.plan.mesh.size(*row.axes))


def _term_name(row: PlannedCollective) -> str:
    return f"{row.what}, {' x '.join(row.axes)}"


def build_ledger(
    plan: Plan,
    calls: Iterable[LayerCall],
    roles: Roles,
    parameter_reads: ParameterReads,
    microbatches: int = 1,
    reduction: GradientReduction | None = None,
    outer_syncs: tuple[OuterSync, ...] = (),
    updates: int = 1,
    select_calls: Callable[[Sequence[LayerCall]], Iterable[LayerCall]] = tuple,
) -> Ledger:
    """Write the ledger of a plan's training step.

    Args:
        plan: the layout.
        calls: the network's layer calls on the batch of a replica, or one microbatch.
        roles: what layers do with the tensor axis.
        parameter_reads: the parameters and how the step reads them.
        microbatches: microbatches a step; layers talk in each, gradients are summed
        once. reduction: how gradients are summed; none: exactly.
        outer_syncs: what replicas average between steps.
        updates: times that parameters move in a step.
        select_calls: picks the calls that are a device's own, where stages differ.
    """
    sums = reduction or exact_reduction(plan, parameter_reads.leaves)
    ranges = [
        replace(each, calls=tuple(select_calls(each.calls)))
        for each in spatial_layers.call_ranges(plan, tuple(calls))
    ]
    layers = [row for each in ranges for row in _layer_traffic(each, roles)]
    rows = (
        *data_parallel.gradient_traffic(
            plan, parameter_reads.leaves, sums.exact_axes, updates
        ),
        *bucket_traffic(plan, parameter_reads.leaves, sums),
        *fsdp.fsdp_traffic(
            plan,
            parameter_reads.leaves,
            parameter_reads.backward_reads,
            parameter_reads.dtype,
            parameter_reads.gathers_per_step,
            sums.scatter_compressor,
            sums.gather_compressor,
        ),
        *global_norm_axes.norm_traffic(
            plan,
            parameter_reads.leaves,
            parameter_reads.norm_requests,
            parameter_reads.global_norms,
            updates,
        ),
        *(_scale_traffic(row, microbatches) for row in layers),
    )
    work = {
        path: flops
        for each in ranges
        for path, flops in predict_flops(each.plan, each.calls, roles).items()
    }
    return Ledger(
        plan=plan,
        rows=tuple(row for row in rows if row.payload),
        layer_flops={path: microbatches * flops for path, flops in work.items()},
        outer_syncs=outer_syncs,
    )


def _scale_traffic(row: PlannedCollective, times: int) -> PlannedCollective:
    """Return what a layer moves in so many microbatches."""
    return replace(row, payload=times * row.payload, arrays=times * row.arrays)


def _layer_traffic(
    part: spatial_layers.CallRange, roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield what layers move for one batch or microbatch."""
    plan, calls = part.plan, part.calls
    yield from data_parallel.batch_norm_traffic(part.norm_plan, calls, roles)
    yield from spatial_parallel.halo_traffic(plan, calls, roles)
    yield from spatial_parallel.mean_traffic(plan, calls)
    yield from spatial_parallel.gather_traffic(plan, calls, roles)
    yield from tensor_parallel.tensor_traffic(plan, calls, roles)
