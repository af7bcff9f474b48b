"""Reduction: which gradients are summed exactly, and which in buckets of fewer bytes.

Rule: a gradient of a matrix or kernel of at least `dense_below` numbers on a device is
compressed over the data axis, after an exact sum over the other axes that do not split
it; a hierarchical sum takes all these axes at once, the innermost as that of a host.
Vectors (norms, biases), short arrays, and matrices that a low rank would not make
smaller are summed exactly. Leaves of a bucket are split over the same axes: what is
sent of one depends on all, so a leaf that devices have alike would part where its
neighbours differ. Buckets are filled from the last layer to the first, in the
order in which the backward pass finishes.
Traffic a step: of each bucket, that of its method (`jaxdist.collectives.compress`).
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.compress.hierarchical import HierarchicalAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm, Axes
from jaxdist.collectives.compress.powersgd import PowerSGD
from jaxdist.collectives.reduce import replicated_axes
from jaxdist.collectives.registry import (
    ALL_REDUCE_ALGORITHMS,
    make_algorithm,
    make_stateless_compressor,
)
from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.partition.powersgd_ranks import leaf_algorithms
from jaxdist.partition.traffic import PlannedCollective

DATA_AXIS: Final = "data"
"""Along which gradients are compressed."""
UNCOMPRESSED: Final = ("exact", "auto")
"""Sums as the backend likes; auto is so until something was measured."""


def check_reduction_config(plan: Plan) -> None:
    """Refuse settings out of range."""
    asked = plan.reduce
    legal = {
        "momentum": 0 <= asked.momentum < 1 and (asked.feedback or not asked.momentum),
        "warm_up": asked.warm_up >= 0,
        "bucket_mib": asked.bucket_mib > 0,
        "dense_below": asked.dense_below >= 0,
    }
    for name, holds in legal.items():
        if not holds:
            raise BadInput(
                f"plan.reduce.{name} is out of range",
                rule="0 <= momentum < 1, and 0 without feedback; warm_up >= 0, "
                "bucket_mib > 0, dense_below >= 0",
                values=f"plan.reduce.{name} = {getattr(asked, name)}",
                remedy=f"plan.reduce.{name}={getattr(type(asked)(), name)}",
            )


def check_hierarchical_axes(plan: Plan, bucket_axes: Sequence[Axes]) -> None:
    """Refuse a hierarchical sum over axes that are one level."""
    for axes in bucket_axes:
        if len(axes) < 2:
            raise BadInput(
                "a hierarchical sum needs two levels",
                rule="gradients are summed over data and another axis inside it",
                values=f"plan.reduce.via = hierarchical, {plan.title} sums over "
                f"{', '.join(axes)} alone",
                remedy=(
                    "plan.reduce.via=top_k",
                    "or a second axis: plan.mesh.spatial_h=2",
                ),
            )


def check_fsdp_compression(plan: Plan, leaves: Sequence[LeafSharding]) -> None:
    """Refuse what would round the parameters themselves, or fill the memory again."""
    asked, fsdp = plan.reduce, plan.mesh.fsdp
    if asked.gather != "exact" and plan.zero != 3:
        raise BadInput(
            "parameters would be rounded at every step",
            rule="parameters travel in fewer bits where whole ones are kept in shards, "
            "with plan.zero=3",
            values=f"plan.reduce.gather = {asked.gather}, plan.zero = {plan.zero}",
            remedy=("plan.zero=3", "or plan.reduce.gather=exact"),
        )
    for name in ("scatter", "gather"):
        if getattr(asked, name) != "exact" and fsdp == 1:
            warnings.warn(
                f"plan.reduce.{name} = {getattr(asked, name)} does nothing: "
                "plan.mesh.fsdp = 1",
                JaxdistWarning,
                stacklevel=3,
            )
    lossy = asked.via not in UNCOMPRESSED and not make_algorithm(asked).lossless
    if lossy and asked.feedback and fsdp > 1 and plan.mesh.size(DATA_AXIS) == 1:
        numbers = sum(math.prod(leaf.shape) for leaf in leaves)
        raise BadInput(
            f"{asked.via} along fsdp would keep what it does not send whole",
            rule="what is left is as large as the gradient that is packed: a shard "
            "along data, all parameters along fsdp",
            values=f"plan.reduce.via = {asked.via}, {plan.title}: {4 * numbers:,} B "
            f"more a device, where fsdp leaves it {4 * numbers // fsdp:,} B of "
            "parameters",
            remedy=(
                "plan.reduce.via=exact plan.reduce.scatter=int8",
                "or a data axis beside fsdp: plan.mesh.data=2",
            ),
        )


BUCKET_SCOPE: Final = "reduce_gradients/bucket"
"""How the scope of each bucket begins."""


@dataclass(frozen=True, kw_only=True)
class GradientBucket:
    """Gradients that are compressed together."""

    leaf_indices: tuple[int, ...]
    """Where they are in the tree's order."""
    axes: Axes
    """Axes they are summed over, outermost first."""
    algorithm: AllReduceAlgorithm
    """How they are summed."""


@dataclass(frozen=True, kw_only=True)
class GradientReduction:
    """How the gradients of a plan are summed."""

    exact_axes: tuple[Axes, ...]
    """Axes over which each gradient is summed exactly, first."""
    buckets: tuple[GradientBucket, ...]
    """What is compressed then."""
    scatter_compressor: AllReduceAlgorithm
    """How gradients of parameters that fsdp shares out are summed along it."""
    gather_compressor: Codec | None
    """How such parameters travel; None: as they are."""

    @property
    def lossless(self) -> bool:
        """Whether all that buckets hold is sent."""
        return all(bucket.algorithm.lossless for bucket in self.buckets)

    @property
    def compressed_indices(self) -> tuple[int, ...]:
        """Where the compressed gradients are, in the tree's order."""
        return tuple(sorted(place for b in self.buckets for place in b.leaf_indices))


def exact_reduction(plan: Plan, leaves: Sequence[LeafSharding]) -> GradientReduction:
    """Return the exact sum of every gradient."""
    over = tuple(replicated_axes(plan.sum_axes, leaf.spec()) for leaf in leaves)
    asked = plan.reduce
    return GradientReduction(
        exact_axes=over,
        buckets=(),
        scatter_compressor=make_stateless_compressor(asked.scatter, asked.block)[0],
        gather_compressor=make_stateless_compressor(asked.gather, asked.block)[1],
    )


def without_compression(reduction: GradientReduction) -> GradientReduction:
    """Return the same buckets, with everything sent."""
    exact = [
        replace(b, algorithm=ALL_REDUCE_ALGORITHMS["exact"]) for b in reduction.buckets
    ]
    return replace(reduction, buckets=tuple(exact))


def plan_reduction(plan: Plan, leaves: Sequence[LeafSharding]) -> GradientReduction:
    """Say how gradients are summed.

    Args:
        plan: the layout.
        leaves: all parameters, in the tree's order.

    Raises:
        BadInput: settings out of range, or a way that this mesh does not have.
    """
    exact = exact_reduction(plan, leaves)
    check_reduction_config(plan)
    check_fsdp_compression(plan, leaves)
    if plan.reduce.via in UNCOMPRESSED:
        return exact
    if plan.mesh.size(DATA_AXIS) == 1:
        warnings.warn(
            f"plan.reduce.via = {plan.reduce.via} does nothing: plan.mesh.{DATA_AXIS} "
            "= 1",
            JaxdistWarning,
            stacklevel=2,
        )
        return exact
    method = make_algorithm(plan.reduce)
    levels = isinstance(method, HierarchicalAllReduce)
    own = leaf_algorithms(plan, leaves, method)
    exactly, grouped = list(exact.exact_axes), defaultdict(list)
    for place in reversed(range(len(leaves))):
        over = exact.exact_axes[place]
        if DATA_AXIS in over and is_compressed(plan, leaves[place], own[place]):
            axes = over if levels else (DATA_AXIS,)
            grouped[axes, own[place], _split_axes(leaves[place])].append(place)
            exactly[place] = () if levels else replicated_axes(over, (DATA_AXIS,))
    if levels:
        check_hierarchical_axes(plan, [axes for axes, *_ in grouped])
    return replace(
        exact,
        exact_axes=tuple(exactly),
        buckets=tuple(
            GradientBucket(leaf_indices=tuple(places), axes=axes, algorithm=each)
            for (axes, each, _), together in grouped.items()
            for places in _fill_buckets(plan, leaves, together)
        ),
    )


def bucket_traffic(
    plan: Plan, leaves: Sequence[LeafSharding], reduction: GradientReduction
) -> Iterator[PlannedCollective]:
    """Yield what the buckets move."""
    for number, bucket in enumerate(reduction.buckets):
        shapes = [leaves[place].local_shape(plan) for place in bucket.leaf_indices]
        dtype = leaves[bucket.leaf_indices[0]].dtype
        sizes = {axis: plan.mesh.size(axis) for axis in bucket.axes}
        numbers = sum(map(math.prod, shapes))
        for place, payload in enumerate(
            bucket.algorithm.payloads(shapes, dtype, sizes)
        ):
            yield PlannedCollective(
                what=bucket.algorithm.name,
                kind=payload.kind,
                axes=payload.axes,
                payload=payload.payload_bytes,
                layer=f"{BUCKET_SCOPE}{number}",
                arrays=payload.arrays,
                packed=0 if place else numbers,
            )


def compression_predicate(plan: Plan) -> Callable[[LeafSharding], bool]:
    """Return what tells whether a plan compresses a leaf's gradient along data."""
    if plan.reduce.via in UNCOMPRESSED or plan.mesh.size(DATA_AXIS) == 1:
        return lambda leaf: False
    return partial(is_compressed, plan, algorithm=make_algorithm(plan.reduce))


def is_compressed(
    plan: Plan, leaf: LeafSharding, algorithm: AllReduceAlgorithm
) -> bool:
    """Tell whether a gradient is compressed along data by a method."""
    if leaf.compress_gradient is not None:
        return leaf.compress_gradient
    shape = leaf.local_shape(plan)
    numbers = math.prod(shape)
    if len(shape) < 2 or numbers < plan.reduce.dense_below:
        return False
    if isinstance(algorithm, PowerSGD):
        return algorithm.rank * (numbers // shape[-1] + shape[-1]) < numbers
    return True


def _split_axes(leaf: LeafSharding) -> frozenset[str]:
    """Return the axes that split a leaf."""
    return frozenset(axis for axis in leaf.spec() if axis)


def _fill_buckets(
    plan: Plan, leaves: Sequence[LeafSharding], places: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Cut the places into buckets, each as soon as it is full."""
    full, so_far, held = plan.reduce.bucket_mib * 2**20, 0, []
    for place in places:
        leaf = leaves[place]
        held.append(place)
        so_far += math.prod(leaf.local_shape(plan)) * np.dtype(leaf.dtype).itemsize
        if so_far >= full:
            yield tuple(held)
            so_far, held = 0, []
    if held:
        yield tuple(held)
