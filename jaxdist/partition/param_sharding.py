"""Parameter sharding: how leaves are split, by tensor roles and by fsdp, dim by dim.

    expert   the dim of a mixture's experts
    tensor   the dim that the layer's role splits
    fsdp     the largest other dim that divides, if any does

Statistics and the optimizer's state of a parameter are split as the parameter is; with
`plan.zero = 1` parameters themselves are not split over fsdp, only that state is.

Fully sharded data parallelism: each device stores a shard of what DP replicates.

Rule: a parameter is split along its largest dim that the fsdp axis divides; one that no
dim of divides stays whole. Samples divide over fsdp as over data.
Traffic a step of a parameter of W bytes (p devices along fsdp, V vectors together):

    zero 3   all-gather of W before its use, once more backward if it is no vector and
             its value has a part in a gradient, in each microbatch; reduce-scatter of
             its gradient, W / p
    zero 1   reduce-scatter of its gradient, W / p; all-gather of its new value, W

Parameters travel in the dtype of the activations, vectors in their own; gradients of
less than 64 KiB are scattered as one array. Source:
Rajbhandari et al. 2020, arXiv:1910.02054, sections 5 and 7.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    ReduceScatterAllReduce,
)
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS
from jaxdist.collectives.sharded_leaves import PACKED_BYTES, step_axes
from jaxdist.core.axes import EXPERT_AXIS
from jaxdist.core.dtypes import accumulation_dtype, is_complex
from jaxdist.core.plan import Plan
from jaxdist.layers.experts import EXPERT_WEIGHTS
from jaxdist.layers.tensor_role import TENSOR_AXIS, Role, Roles
from jaxdist.partition.traffic import PlannedCollective

# Kernels are [..., channels, filters] (HWIO): -1 splits filters, -2 channels.
_OUTPUT_DIMS: Final = {"kernel": -1, "recurrent": -1, "bias": -1, "lora_b": -1}
_INPUT_DIMS: Final = {"kernel": -2, "lora_a": -2}
_EXPERT_DIMS: Final = {"gate": -1, "up": -1, "down": -2}
_SPLIT_DIMS: Final[Mapping[Role, Mapping[str, int]]] = MappingProxyType(
    {
        "filter": _OUTPUT_DIMS,
        "column": _OUTPUT_DIMS,
        "channel": _INPUT_DIMS,
        "row": _INPUT_DIMS,
        "inner": {"scale": 0, "bias": 0, "mean": 0, "var": 0},
        "vocabulary": {"embedding": 0},
        "logits": _OUTPUT_DIMS,
        "experts": _EXPERT_DIMS,
        "scatter": _INPUT_DIMS,
        "combine": _EXPERT_DIMS,
        "lookup": {"embedding": 0},
        "own": {},
        "gather": {},
    }
)
"""The dim of each of a layer's leaves that its role splits; others stay whole."""


StateUpdate = Literal["constant", "synchronized", "mean", "maximum"]
"""How devices agree on a variable after a step (`jaxdist.partition.variable_sync`)."""


@dataclass(frozen=True, kw_only=True)
class LeafSharding:
    """One parameter or other variable and how it is split."""

    name: str
    """Path in the tree, with slashes."""
    shape: tuple[int, ...]
    """Of the whole leaf."""
    dtype: Any
    """Of its numbers."""
    tensor_dim: int | None
    """Dim that is split over the tensor axis."""
    fsdp_dim: int | None
    """Dim that is split over the fsdp axis."""
    pipe_dim: int | None = None
    """Dim that has a row for each device of a pipeline."""
    expert_dim: int | None = None
    """Dim that is split over the expert axis."""
    compress_gradient: bool | None = None
    """Whether its gradient is compressed, where that is a plan's way; None: its shape
    says so.
    """
    has_gradient: bool = True
    """Whether the loss has a gradient with respect to it. Nothing is moved of one
    without, which is whole on each device; a frozen one may be split and gathered.
    """
    scanned: bool = False
    """Whether its block runs in a loop over equal blocks: its gradient is scattered
    there, once for each microbatch.
    """
    update: StateUpdate = "synchronized"
    """How devices agree on it after a step, where it is no parameter."""

    def spec(self, *, include_fsdp: bool = True) -> tuple[str | None, ...]:
        """Return the mesh axis of each dim, as a `PartitionSpec` has them.

        Args:
            include_fsdp: whether fsdp splits it here; not where it was just gathered.

        >>> leaf = {"name": "k", "shape": (8, 4), "dtype": "f4"}
        >>> LeafSharding(**leaf, tensor_dim=1, fsdp_dim=0).spec()
        ('fsdp', 'tensor')
        """
        if include_fsdp:
            return self._spec
        return tuple(
            None if dim == self.fsdp_dim else axis
            for dim, axis in enumerate(self._spec)
        )

    # The layouts of a search have leaves in common, and each reads their specs often.
    @cached_property
    def _spec(self) -> tuple[str | None, ...]:
        # Order does not matter: the dims are different.
        axis_of = {
            self.tensor_dim: TENSOR_AXIS,
            self.fsdp_dim: FSDP_AXIS,
            self.pipe_dim: "pipe",
            self.expert_dim: EXPERT_AXIS,
        }
        return tuple(axis_of.get(dim) for dim in range(len(self.shape)))

    def local_shape(self, plan: Plan, *, include_fsdp: bool = True) -> tuple[int, ...]:
        """Return the shape that one device holds."""
        axes = self.spec(include_fsdp=include_fsdp)
        return tuple(
            rows // plan.mesh.size(axis) if axis else rows
            for rows, axis in zip(self.shape, axes, strict=True)
        )


def split_axes(leaf: LeafSharding) -> tuple[str, ...]:
    """Return the axes over which the squares of a leaf are summed for its norm.

    Those that split it, in the order of its dims; not pipe, along which are different
    leaves.
    """
    return tuple(axis for axis in leaf.spec() if axis not in (None, "pipe"))


def leaf_shardings(
    plan: Plan,
    roles: Roles,
    arrays: Mapping[str, Any],
    mixtures: Container[str] = (),
) -> tuple[LeafSharding, ...]:
    """Decide how each leaf is split.

    Args:
        plan: the layout.
        roles: what layers do with the tensor axis.
        arrays: arrays or shapes by path, `block1/conv2/kernel`.
        mixtures: paths of the mixtures of experts.
    """
    shards = 1 if "fsdp" in plan.replicated_axes else plan.mesh.fsdp
    found = []
    for name, x in arrays.items():
        # The role belongs to the layer, the dim to its leaf: kernel, bias, scale.
        *path, last = name.split("/")
        role = roles.get(".".join(path))
        dim = _SPLIT_DIMS[role].get(last) if role else None
        tensor = None if dim is None else dim % len(x.shape)
        is_expert = ".".join(path) in mixtures and last in EXPERT_WEIGHTS
        expert = 0 if is_expert and plan.mesh.expert > 1 else None
        # No dim is split twice: fsdp takes the largest that the others leave whole.
        dims = [
            d
            for d, n in enumerate(x.shape)
            if d not in (tensor, expert) and n % shards == 0 < n
        ]
        largest = max(dims, key=lambda d: x.shape[d], default=None)
        found.append(
            LeafSharding(
                name=name,
                shape=tuple(x.shape),
                dtype=x.dtype,
                tensor_dim=tensor,
                expert_dim=expert,
                fsdp_dim=largest if shards > 1 else None,
            )
        )
    return tuple(found)


FSDP_AXIS = "fsdp"


def fsdp_traffic(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    backward_reads: Sequence[bool],
    dtype: Any,
    microbatches: int = 1,
    scatter_compressor: AllReduceAlgorithm = ALL_REDUCE_ALGORITHMS["exact"],
    gather_compressor: Codec | None = None,
    scatter_inner: int = 1,
    gather_inner: int = 1,
) -> Iterator[PlannedCollective]:
    """Yield the all-gathers of parameters and the reduce-scatters of gradients.

    Args:
        plan: the layout.
        leaves: all parameters, frozen ones that are split too.
        backward_reads: whether the backward pass reads each one's value.
        dtype: of the activations; None is the parameters' own.
        microbatches: microbatches a step, each of which reads the parameters.
        scatter_compressor: how gradients of matrices are summed.
        gather_compressor: how matrices are encoded; None: not at all.
        scatter_inner: neighbours of the last step of a sum that is scattered in two.
        gather_inner: neighbours of the first step of a gather in two.
    """
    split = [leaf for leaf in leaves if leaf.fsdp_dim is not None]
    gathers = _gather_traffic(
        plan, split, leaves, backward_reads, dtype, microbatches, gather_compressor
    )
    for row in gathers:
        if gather_inner > 1:
            # The second step has the payload of one alone.
            far, near = step_axes(FSDP_AXIS, gather_inner)
            outer = plan.mesh.size(FSDP_AXIS) // gather_inner
            yield replace(row, axes=(near,), payload=row.payload // outer)
            yield replace(row, axes=(far,))
        else:
            yield row
    yield from _scatter_traffic(
        plan, split, dtype, microbatches, scatter_compressor, scatter_inner
    )


def _sent_dtype(plan: Plan, leaf: LeafSharding, dtype: Any) -> Any:
    """Return the dtype in which a leaf is gathered, and its gradient is computed."""
    # A cast before the gather halves its bytes. Vectors are few and keep their digits,
    # zero 1 sends the parameters themselves, and complex numbers are not cast.
    narrow = len(leaf.shape) > 1 and plan.zero == 3 and dtype is not None
    return np.dtype(dtype if narrow and not is_complex(leaf.dtype) else leaf.dtype)


def _gather_traffic(
    plan: Plan,
    split: Sequence[LeafSharding],
    leaves: Sequence[LeafSharding],
    backward_reads: Sequence[bool],
    dtype: Any,
    microbatches: int,
    compressor: Codec | None,
) -> Iterator[PlannedCollective]:
    # zero 3 gathers parameters in every microbatch; zero 1 gathers the new values once,
    # behind the update.
    shards = plan.mesh.size(FSDP_AXIS)
    reads = microbatches if plan.zero == 3 else 1
    read_again = {
        leaf.name for leaf, read in zip(leaves, backward_reads, strict=True) if read
    }
    # A matrix is a message of its own; vectors of one dtype travel as one array.
    messages: dict[str, list[LeafSharding]] = defaultdict(list)
    for leaf in split:
        # A leaf that no dim of divides is whole on each device: nothing to gather.
        vector = f"vectors of {np.dtype(leaf.dtype).name}"
        messages[leaf.name if len(leaf.shape) > 1 else vector].append(leaf)
    for name, group in messages.items():
        is_matrix = len(group[0].shape) > 1
        sent = _sent_dtype(plan, group[0], dtype)
        # Numbers of a device's shard; the all-gather's result is all shards together.
        part = sum(_device_elements(plan, leaf) for leaf in group) // shards
        # Dropped after the forward pass; vectors are small and kept until the backward.
        backward = is_matrix and any(x.name in read_again for x in group)
        times_read = reads * (1 + backward)
        # An encoded shard has scales beside its numbers, so its codec counts the bytes.
        message = part * sent.itemsize
        if is_matrix and compressor is not None and not is_complex(group[0].dtype):
            wide = accumulation_dtype(sent).itemsize
            message = compressor.message_bytes(part, wide)
        yield PlannedCollective(
            what="parameters",
            kind="all-gather",
            axes=(FSDP_AXIS,),
            payload=times_read * shards * message,
            layer=name,
            arrays=times_read,
        )


def _scatter_traffic(
    plan: Plan,
    split: Sequence[LeafSharding],
    dtype: Any,
    microbatches: int,
    compressor: AllReduceAlgorithm,
    inner: int,
) -> Iterator[PlannedCollective]:
    shards = plan.mesh.size(FSDP_AXIS)
    packed: Counter[Any] = Counter()
    steps = {(FSDP_AXIS,): 1}
    if inner > 1:
        far, near = step_axes(FSDP_AXIS, inner)
        steps = {(far,): inner, (near,): 1}

    def exact(layer: str, payload: int) -> Iterator[PlannedCollective]:
        for axes, times in steps.items():
            yield _gradient_row("reduce-scatter", axes, times * payload, layer)

    for leaf in split:
        if not leaf.has_gradient:
            continue
        # A device that adds up the gradients of microbatches holds them whole, but for
        # those of blocks in a loop.
        rounds = microbatches if leaf.scanned else 1
        # Sums of gradients are taken in float32 at least.
        wide = accumulation_dtype(_sent_dtype(plan, leaf, dtype))
        size = _device_elements(plan, leaf) * wide.itemsize
        vector = len(leaf.shape) == 1
        if (
            isinstance(compressor, ReduceScatterAllReduce)
            and not vector
            and not is_complex(leaf.dtype)
        ):
            for each in compressor.reduce_scatter_payloads(
                _device_elements(plan, leaf) // shards,
                wide.itemsize,
                {FSDP_AXIS: shards},
            ):
                payload = rounds * each.payload_bytes
                yield _gradient_row(each.kind, (FSDP_AXIS,), payload, leaf.name)
        elif vector or size < PACKED_BYTES:
            packed[wide.name] += rounds * size // shards
        else:
            yield from exact(leaf.name, rounds * size // shards)
    for name, payload in packed.items():
        yield from exact(f"small gradients of {name}", payload)


def _gradient_row(
    kind: str, axes: tuple[str, ...], payload: int, layer: str
) -> PlannedCollective:
    return PlannedCollective(
        what="gradients", kind=kind, axes=axes, payload=payload, layer=layer
    )


def _device_elements(plan: Plan, leaf: LeafSharding) -> int:
    """Return how many numbers of a leaf a device has where it is gathered."""
    return math.prod(leaf.local_shape(plan, include_fsdp=False))
