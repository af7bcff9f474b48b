"""The ledger: all traffic and work of a plan's training step, on one device."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.plan import Plan
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition import (
    data_parallel,
    fsdp,
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
from jaxdist.partition.param_sharding import LeafSharding, split_axes
from jaxdist.partition.traffic import PlannedCollective, nontrivial_axes
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
    """For each time that the optimizer asks for norms of leaves, of which ones."""
    global_norms: int = 0
    """How often it asks for the norm of all parameters together."""
    gathers_per_step: int = 1
    """How often a step gathers the parameters that fsdp splits."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All traffic and work of one training step, and of the syncs that follow some."""

    plan: Plan
    """The plan it was written for."""
    rows: tuple[PlannedCollective, ...]
    """One row a layer, direction and kind."""
    layer_flops: Mapping[str, int] = field(default_factory=dict)
    """FLOPs a device, forward and backward, by the path of a layer with a kernel."""
    outer_syncs: tuple[OuterSync, ...] = ()
    """The syncs of replicas between steps, in the order of a period."""

    def with_rows(self, rows: Iterable[PlannedCollective]) -> "Ledger":
        """Return the ledger with more rows."""
        return replace(self, rows=(*self.rows, *(row for row in rows if row.payload)))

    def sync_ledger(self, sync: OuterSync) -> "Ledger":
        """Return the ledger of one of the syncs alone."""
        return Ledger(plan=self.plan, rows=sync.rows)

    def with_reduction(
        self, reduction: GradientReduction, leaves: Sequence[LeafSharding]
    ) -> "Ledger":
        """Return the ledger with the buckets reduced in another way."""
        # Rows of buckets are found by their scope; all others are as before.
        others = [row for row in self.rows if not row.layer.startswith(BUCKET_SCOPE)]
        sums = bucket_traffic(self.plan, leaves, reduction)
        return replace(self, rows=(*others, *(row for row in sums if row.payload)))

    def payload_by_axes(self) -> dict[TrafficKey, int]:
        """Payload bytes on a device by (kind, axes)."""
        total: Counter[TrafficKey] = Counter()
        for row in self.rows:
            total[row.kind, row.axes] += row.payload
        # Without zeros: a compiled program lists no empty collective.
        return {key: size for key, size in total.items() if size}

    def sent_bytes_by_term(self) -> dict[str, int]:
        """Bytes a device sends by `what, axes`, largest first: a report's words.

        Syncs count by the step: their bytes over a period, divided by its steps.
        """
        step: Counter[str] = Counter()
        period: Counter[str] = Counter()
        outer = [row for sync in self.outer_syncs for row in sync.rows]
        for total, rows in ((step, self.rows), (period, outer)):
            for row in rows:
                devices = self.plan.mesh.size(*row.axes)
                term = f"{row.what}, {' x '.join(row.axes)}"
                total[term] += wire_bytes(row.kind, row.payload, devices)
        # By the step: the bytes of all syncs of a period over its steps.
        every = self.plan.outer.sync_interval
        step.update({term: round(sent / every) for term, sent in period.items()})
        return dict(step.most_common())


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
    """Predict all traffic and work of a plan's training step.

    Args:
        plan: the layout.
        calls: the network's layer calls on the batch of a replica, or one microbatch.
        roles: what layers do with the tensor axis.
        parameter_reads: the parameters and how the step reads them.
        microbatches: microbatches a step; layers communicate in each, gradients are
            reduced once.
        reduction: how gradients are reduced; None: exactly.
        outer_syncs: what replicas average between steps.
        updates: parameter updates a step.
        select_calls: picks the calls that are a device's own, where stages differ.
    """
    reduction = reduction or exact_reduction(plan, parameter_reads.leaves)
    leaves = parameter_reads.leaves
    # Where a plan gathers images midway, the calls behind follow another plan.
    ranges = [
        replace(each, calls=tuple(select_calls(each.calls)))
        for each in spatial_layers.call_ranges(plan, tuple(calls))
    ]
    layers: list[PlannedCollective] = []
    work: dict[str, int] = {}
    for each in ranges:
        # Batch statistics may be shared by other devices than hold the images.
        layers += data_parallel.batch_norm_traffic(each.norm_plan, each.calls, roles)
        layers += spatial_parallel.halo_traffic(each.plan, each.calls, roles)
        layers += spatial_parallel.mean_traffic(each.plan, each.calls)
        layers += spatial_parallel.gather_traffic(each.plan, each.calls, roles)
        layers += tensor_parallel.tensor_traffic(each.plan, each.calls, roles)
        work |= predict_flops(each.plan, each.calls, roles)
    rows = (
        *data_parallel.gradient_traffic(plan, leaves, reduction.exact_axes, updates),
        *bucket_traffic(plan, leaves, reduction),
        *fsdp.fsdp_traffic(
            plan,
            leaves,
            parameter_reads.backward_reads,
            parameter_reads.dtype,
            parameter_reads.gathers_per_step,
            reduction.scatter_compressor,
            reduction.gather_compressor,
        ),
        *norm_traffic(plan, parameter_reads, updates),
        *(
            replace(
                row,
                payload=microbatches * row.payload,
                arrays=microbatches * row.arrays,
            )
            for row in layers
        ),
    )
    return Ledger(
        plan=plan,
        # Axes of size one leave rows without bytes: no collective is compiled for them.
        rows=tuple(row for row in rows if row.payload),
        # Layers communicate and compute once a microbatch, each on its samples.
        layer_flops={path: microbatches * flops for path, flops in work.items()},
        outer_syncs=outer_syncs,
    )


def norm_traffic(
    plan: Plan, reads: ParameterReads, updates: int
) -> Iterator[PlannedCollective]:
    """Yield the all-reduces of the norms that an optimizer asks for, an update each.

    One number, float32 or wider, for each leaf, over the axes that split the leaf.
    """
    sums: Counter[tuple[str, ...]] = Counter()
    if plan.stages > 1:
        # The norm of all parameters: stages hold different ones, of different dtypes.
        widest = max(accumulation_dtype(leaf.dtype).itemsize for leaf in reads.leaves)
        sums["pipe",] = reads.global_norms * widest
    for wanted in reads.norm_requests:
        # A leaf that no axis splits has its norm on each device already.
        for leaf, want in zip(reads.leaves, wanted, strict=True):
            over = nontrivial_axes(plan, split_axes(leaf))
            sums[over] += accumulation_dtype(leaf.dtype).itemsize * want
    for axes, payload in sums.items():
        if axes:
            yield PlannedCollective(
                what="lengths",
                kind="all-reduce",
                axes=axes,
                payload=updates * payload,
                layer="whole_lengths",
            )
