"""The ledger: traffic and FLOPs of a training step under a plan, on one device.

FLOPs of one device: what a plan predicts for a layer, and what the traced step does.

A convolution of B samples on a device, C_in channels in `groups`, C_out filters:

    forward     2 B C_out C_in / groups * prod_d m_d
    backward    as much for the kernel, and for the input unless nobody needs that

    m_d = outputs * taps           along a split dim: the rows of a halo are real rows
          taps that meet a row     along a whole dim: those on padding do no work

so that a split of rows costs 1/p of one device's work and, at the two edges of the
image, the taps on padding: a share (K - 1) / (N K) for K taps, SAME and N rows. A dense
layer costs 2 C_in C_out for each vector, as often.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from flax import nnx
from jax.extend.core import Jaxpr

from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.core.block_protocol import AttentionInputs
from jaxdist.core.dtypes import accumulation_dtype, real_dtype
from jaxdist.core.plan import Plan
from jaxdist.layers import Conv, ConvTranspose, Experts
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition import (
    context_parallel,
    data_parallel,
    expert_parallel,
    param_sharding,
    spatial_layers,
    spatial_parallel,
    tensor_parallel,
)
from jaxdist.partition.gradient_buckets import (
    BUCKET_SCOPE,
    GradientReduction,
    bucket_traffic,
    exact_reduction,
)
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.partition.param_sharding import LeafSharding, split_axes
from jaxdist.partition.spatial_parallel import block_shape, device_windows
from jaxdist.partition.tensor_parallel import localize_channels
from jaxdist.partition.traffic import (
    PlannedCollective,
    TrafficKey,
    nontrivial_axes,
)
from jaxdist.profile.flops import valid_taps, walk_jaxpr
from jaxdist.profile.layer_calls import LayerCall, calls_of_type

REMAT_SCOPE: Final = "rematted_computation"
"""The scope of what a backward pass computes again on purpose."""

MATRIX_SCOPE: Final = "whole_matrices"
"""The scope in which an optimizer gathers whole matrices."""

_REDUNDANCY_THRESHOLD: Final = 1.25
"""More than the plan says by this much is a repeat: along an axis it is at least 2."""


@dataclass(frozen=True, kw_only=True)
class LayerFlops:
    """FLOPs of one layer in one step."""

    layer: str
    """Path of the layer."""
    planned: int
    """FLOPs a device that the plan predicts."""
    traced: int
    """FLOPs a device in the traced step, without what is computed again on purpose."""

    @property
    def is_redundant(self) -> bool:
        """Whether the step does more than the plan accounts for."""
        return self.traced > _REDUNDANCY_THRESHOLD * self.planned


def predict_flops(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> dict[str, int]:
    """Predict the FLOPs of convolutions, dense layers, experts and tied tables' logits.

    Forward and backward, biases included.

    Args:
        plan: the layout.
        calls: the network's layer calls on the global batch.
        roles: what layers do with the tensor axis.

    Returns:
        FLOPs on one device, by the path of the layer.
    """
    total: Counter[str] = Counter()
    for call in (
        *calls_of_type(calls, Conv),
        *calls_of_type(calls, ConvTranspose),
    ):
        # Channels by the role along tensor, rows and samples by the block of a device.
        local, layer = localize_channels(plan, roles, call), call.layer
        samples, windows = (
            local.shape[0] // plan.mesh.batch_shards,
            device_windows(plan, local),
        )
        products = 1
        for window in windows:
            taps = window.taps
            products *= (
                window.outputs * taps
                if window.axis is not None
                else valid_taps(
                    window.rows,
                    taps,
                    window.outputs,
                    stride=window.stride,
                    low=window.pads[0],
                    rhs_dilation=window.dilation,
                )
            )
        # Channels that one filter reads: those of its group, or a device's share.
        split = plan.mesh.tensor if roles.get(call.path) in ("channel", "row") else 1
        channels = int(layer.kernel.shape[-2]) // split
        # Two FLOPs, a multiplication and an addition, for each product; forward, for
        # the kernel and, unless nobody needs it, for the input. A transpose has those
        # of the convolution whose windows these are.
        filters = samples * local.out_shape[-1]
        once = 2 * filters * channels * products
        # The bias is one addition an output, and one more for its gradient.
        is_transpose = isinstance(layer, ConvTranspose)
        added = filters * math.prod(
            w.rows if is_transpose else w.outputs for w in windows
        )
        passes = 1 + call.weight_gradient + call.input_gradient
        biases = (1 + call.output_gradient) * (layer.bias is not None)
        total[call.path] += passes * once + biases * added

    for call in calls_of_type(calls, nnx.Linear):
        local = localize_channels(plan, roles, call)
        # [samples, positions..., features] of a device; each vector is multiplied once.
        *outer, features = block_shape(plan, local.shape)
        outputs = math.prod(outer) * local.out_shape[-1]
        passes = 1 + call.weight_gradient + call.input_gradient
        biases = (1 + call.output_gradient) * (call.layer.bias is not None)
        total[call.path] += passes * 2 * outputs * features + biases * outputs
        if (adapter := getattr(call.layer, "lora_a", None)) is not None:
            # Products with A and B, whose gradients and inner one are always computed,
            # the scale of x A both ways, and the sum of both paths.
            rank, samples = adapter.shape[-1], math.prod(outer)
            products = (2 + call.input_gradient) * features + 3 * local.out_shape[-1]
            total[call.path] += 2 * samples * rank * (products + 1) + outputs

    for call in calls_of_type(calls, Experts):
        total[call.path] += expert_parallel.expert_flops(plan, call, roles)

    for call in calls_of_type(calls, nnx.Embed):
        if call.method == "attend":  # a lookup does no arithmetic
            local = localize_channels(plan, roles, call)
            *outer, features = block_shape(plan, local.shape)
            outputs = math.prod(outer) * local.out_shape[-1]
            passes = 1 + call.weight_gradient + call.input_gradient
            total[call.path] += passes * 2 * outputs * features
    return dict(total)


def sum_traced_flops(jaxpr: Jaxpr, layers: Iterable[str]) -> Counter[str]:
    """Sum the FLOPs a device of a traced step by layer; "" collects the rest.

    Args:
        jaxpr: the traced step; shapes inside its `shard_map` are those of a device.
        layers: paths whose scopes are looked for.
    """
    # Of the traced step: XLA's count is one number for all layers, in which fusion
    # repeats work and loops count once (docs/adr/0015).
    known, total = set(layers), Counter[str]()
    for use in walk_jaxpr(jaxpr):
        # Recomputation is asked for by plan.remat: it is no repeat to warn of.
        if REMAT_SCOPE in use.scopes:
            continue
        # What a checkpoint keeps is rounded to the dtype that it has, which is no work.
        if use.eqn.primitive.name == "reduce_precision":
            continue
        # Gradients of an array that several layers read are summed in one's scope.
        shared = use.eqn.primitive.name == "add_any"
        owner = next((s for s in reversed(use.scopes) if s in known), "")
        total["" if shared else owner] += use.flops
    return total


def compare_flops(
    planned: Mapping[str, int], traced: Mapping[str, int]
) -> tuple[LayerFlops, ...]:
    """Compare the FLOPs of a traced step with the plan's, layer by layer.

    Args:
        planned: FLOPs by the path of a layer; one without a scope of its own in the
            step is left out.
        traced: FLOPs in the step.
    """
    return tuple(
        LayerFlops(layer=layer, planned=flops, traced=traced[layer])
        for layer, flops in planned.items()
        # XLA may drop a layer whose result nobody needs; it has no scope then.
        if traced.get(layer)
    )


MeanRequest = tuple[int, tuple[int, ...]]
"""A dim over which an optimizer wants the mean of a leaf, and the whole result's shape:
one row where the dim was."""


@dataclass(frozen=True, kw_only=True)
class ParameterReads:
    """The parameters of a step and how it reads them."""

    leaves: tuple[LeafSharding, ...]
    """Each parameter and how it is split."""
    backward_reads: tuple[bool, ...]
    """Whether the backward pass reads each one's value, the frozen ones behind."""
    dtype: Any
    """Dtype of the activations; None is the parameters' own."""
    norm_requests: tuple[tuple[bool, ...], ...] = ()
    """For each time that the optimizer asks for norms of leaves, of which ones."""
    global_norms: int = 0
    """How often it asks for the norm of all parameters together."""
    matrix_requests: tuple[tuple[bool, ...], ...] = ()
    """For each time that it asks for whole momenta, of which parameters."""
    mean_requests: tuple[tuple[MeanRequest | None, ...], ...] = ()
    """For each time that it asks for means over a dim, of which parameters."""
    gathers_per_step: int = 1
    """How often a step gathers the parameters that fsdp splits."""
    frozen: tuple[LeafSharding, ...] = ()
    """Frozen parameters that fsdp splits: gathered as the others, without gradients."""

    @property
    def gathered(self) -> tuple[LeafSharding, ...]:
        """All that a step gathers, the frozen ones behind."""
        return (*self.leaves, *self.frozen)


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
    update_flops: int = 0
    """FLOPs a device of matrix products in the optimizer's update."""

    def renamed(self, blocks: Mapping[str, str]) -> "Ledger":
        """Return the ledger of a device that has other blocks, equal to its own.

        Args:
            blocks: names of the others by those of its own, `block1`.
        """

        def rename(path: str) -> str:
            block, dot, rest = path.partition(".")
            return f"{blocks[block]}{dot}{rest}" if block in blocks else path

        rows = (
            replace(row, layer=rename(row.layer))
            if row.layer.partition(".")[0] in blocks
            else row
            for row in self.rows
        )
        flops = {rename(path): work for path, work in self.layer_flops.items()}
        return replace(self, rows=tuple(rows), layer_flops=flops)

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


def parameter_traffic(
    plan: Plan,
    parameter_reads: ParameterReads,
    reduction: GradientReduction | None = None,
    updates: int = 1,
) -> tuple[PlannedCollective, ...]:
    """Predict the traffic of parameters, their gradients and their norms in a step.

    Args:
        plan: the layout.
        parameter_reads: the parameters and how the step reads them.
        reduction: how gradients are reduced; None: exactly.
        updates: parameter updates a step.
    """
    leaves = parameter_reads.leaves
    reduction = reduction or exact_reduction(plan, leaves)
    return (
        *data_parallel.gradient_traffic(plan, leaves, reduction.exact_axes, updates),
        *bucket_traffic(plan, leaves, reduction),
        *param_sharding.fsdp_traffic(
            plan,
            parameter_reads.gathered,
            parameter_reads.backward_reads,
            parameter_reads.dtype,
            parameter_reads.gathers_per_step,
            reduction.scatter_compressor,
            reduction.gather_compressor,
            reduction.scatter_inner,
            reduction.gather_inner,
        ),
        *norm_traffic(plan, parameter_reads, updates),
        *matrix_traffic(plan, parameter_reads, updates),
        *mean_traffic(plan, parameter_reads, updates),
    )


def build_ledger(
    plan: Plan,
    calls: Iterable[LayerCall],
    roles: Roles,
    parameter_rows: Iterable[PlannedCollective],
    microbatches: int = 1,
    outer_syncs: tuple[OuterSync, ...] = (),
    select_calls: Callable[[Sequence[LayerCall]], Iterable[LayerCall]] = tuple,
    attention: Sequence[AttentionInputs] = (),
) -> Ledger:
    """Predict all traffic and work of a plan's training step.

    Args:
        plan: the layout.
        calls: the network's layer calls on the batch of a replica, or one microbatch.
        roles: what layers do with the tensor axis.
        parameter_rows: what `parameter_traffic` returns.
        microbatches: microbatches a step; layers communicate in each, gradients are
            reduced once.
        outer_syncs: what replicas average between steps.
        select_calls: picks the calls that are a device's own, where stages differ.
        attention: what the network's attention reads.
    """
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
        layers += spatial_parallel.group_norm_traffic(each.plan, each.calls, roles)
        layers += spatial_parallel.gather_traffic(each.plan, each.calls, roles)
        layers += tensor_parallel.tensor_traffic(each.plan, each.calls, roles)
        layers += expert_parallel.expert_traffic(each.plan, each.calls)
        layers += context_parallel.context_traffic(
            each.plan, each.calls, roles, attention
        )
        work |= predict_flops(each.plan, each.calls, roles)
    rows = (
        *parameter_rows,
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


def _norm_bytes(leaf: LeafSharding) -> int:
    """Return the bytes of a leaf's norm, a real number."""
    return accumulation_dtype(real_dtype(leaf.dtype)).itemsize


def norm_traffic(
    plan: Plan, reads: ParameterReads, updates: int
) -> Iterator[PlannedCollective]:
    """Yield the all-reduces of the norms that an optimizer asks for, an update each.

    One number, float32 or wider, for each leaf, over the axes that split the leaf.
    """
    sums: Counter[tuple[str, ...]] = Counter()
    if plan.stages > 1:
        # The norm of all parameters: stages hold different ones, of different dtypes.
        widest = max(_norm_bytes(leaf) for leaf in reads.leaves)
        sums["pipe",] = reads.global_norms * widest
    for wanted in reads.norm_requests:
        # A leaf that no axis splits has its norm on each device already.
        for leaf, want in zip(reads.leaves, wanted, strict=True):
            over = nontrivial_axes(plan, split_axes(leaf))
            sums[over] += _norm_bytes(leaf) * want
    yield from _length_rows(sums, updates)


def mean_traffic(
    plan: Plan, reads: ParameterReads, updates: int
) -> Iterator[PlannedCollective]:
    """Yield the all-reduces of means over dims that are split, an update each.

    One for each time and axis; of a leaf it has one row or column, which may be cut
    along the other dims.
    """
    for wanted in reads.mean_requests:
        sums: Counter[tuple[str, ...]] = Counter()
        for leaf, want in zip(reads.leaves, wanted, strict=True):
            if want is None:
                continue
            (dim, shape), axes = want, leaf.spec()
            cut = [
                plan.mesh.size(axis) if axis and rows == whole else 1
                for axis, rows, whole in zip(axes, shape, leaf.shape, strict=True)
            ]
            size = math.prod(shape) // math.prod(cut)
            over = nontrivial_axes(plan, filter(None, axes[dim : dim + 1]))
            sums[over] += size * np.dtype(real_dtype(leaf.dtype)).itemsize
        yield from _length_rows(sums, updates)


def _length_rows(
    sums: Mapping[tuple[str, ...], int], updates: int
) -> Iterator[PlannedCollective]:
    """Yield the all-reduces of an update by axes, of so many bytes."""
    for axes, payload in sums.items():
        if axes:
            yield PlannedCollective(
                what="lengths",
                kind="all-reduce",
                axes=axes,
                payload=updates * payload,
                layer="whole_lengths",
            )


def matrix_traffic(
    plan: Plan, reads: ParameterReads, updates: int
) -> Iterator[PlannedCollective]:
    """Yield the all-gathers of momenta that an optimizer asks for whole.

    One for each leaf and axis that splits it, an update each; the second gathers what
    the first has made.
    """
    for wanted in reads.matrix_requests:
        for leaf, want in zip(reads.leaves, wanted, strict=True):
            shape = leaf.local_shape(plan)
            size = math.prod(shape) * np.dtype(leaf.dtype).itemsize
            for axis in split_axes(leaf) if want else ():
                size *= plan.mesh.size(axis)
                if plan.mesh.size(axis) == 1:
                    continue
                yield PlannedCollective(
                    what="momenta",
                    kind="all-gather",
                    axes=(axis,),
                    payload=updates * size,
                    layer=MATRIX_SCOPE,
                )


def matrix_flops(reads: ParameterReads) -> int:
    """Return the FLOPs of the whole matrices that an optimizer orthogonalizes.

    Each device multiplies all of them, five times for m rows and n >= m columns:

        4 m^2 n + 2 m^3        X X^T, its square, and their product with X
    """
    flops = 0
    for wanted in reads.matrix_requests:
        for leaf, want in zip(reads.leaves, wanted, strict=True):
            if want:
                # A kernel [h, w, in, out] is orthogonalized as a matrix [h w in, out],
                # on its shorter side, where X X^T is smallest.
                sides = leaf.shape[-1], math.prod(leaf.shape[:-1])
                m, n = min(sides), max(sides)
                flops += 5 * (4 * m * m * n + 2 * m**3)
    return flops
