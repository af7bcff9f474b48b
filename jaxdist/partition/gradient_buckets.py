"""Gradient buckets: which gradients are all-reduced exactly, and which compressed.

A gradient of a matrix or kernel of at least `min_compressed_elements` on a device is
compressed over the data axis, after an exact sum over the other axes that do not split
it; a hierarchical sum takes all these axes at once, the innermost as that of a host.
Vectors (norms, biases), short arrays, and matrices that a low rank would not make
smaller are summed exactly. Buckets are filled from the last layer to the first, in the
order in which the backward pass finishes.
Traffic a step: of each bucket, that of its method (`jaxdist.collectives.compress`).
"""

import itertools
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.compress.hierarchical import HierarchicalAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm, Axes
from jaxdist.collectives.compress.powersgd import PowerSGD
from jaxdist.collectives.registry import (
    ALL_REDUCE_ALGORITHMS,
    make_algorithm,
    make_stateless_compressor,
)
from jaxdist.collectives.sharded_leaves import ShardDims, reduce_scatter
from jaxdist.core.dtypes import is_complex
from jaxdist.core.errors import BadInput, JaxdistWarning, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.partition.compiler_rewrites import NO_REWRITES, CompilerRules
from jaxdist.partition.param_sharding import FSDP_AXIS, LeafSharding
from jaxdist.partition.traffic import PlannedCollective


def all_reduce_leaves(
    leaves: Sequence[jax.Array], axes: Sequence[Axes]
) -> list[jax.Array]:
    """Sum each leaf over its axes, so that the devices along them hold the total.

    Args:
        leaves: arrays that hold this device's share, e.g. gradients of its part of the
            loss; any shapes and dtypes.
        axes: manual mesh axes along which the shares of each leaf differ.
    """
    whole = list(leaves)
    with jax.named_scope("reduce_gradients"):
        short, long = defaultdict(list), defaultdict(list)
        for place, leaf in enumerate(leaves):
            if leaf.ndim < 2:
                short[axes[place], leaf.dtype].append(place)
            else:
                long[axes[place]].append(place)
        # Scalars and vectors of one dtype are sent as one array. Besides being short,
        # some are equal by construction: where two biases are added, as at the end of a
        # residual block, their gradients are the same numbers, and the compiler would
        # send them once in some programs and twice in others. Packed, the bytes follow
        # from the leaves.
        for (over, _), places in short.items():
            packed = jnp.concatenate([jnp.ravel(leaves[place]) for place in places])
            summed = lax.psum(packed, over) if over else packed
            start = 0
            for place in places:
                stop = start + math.prod(leaves[place].shape)
                whole[place] = summed[start:stop].reshape(leaves[place].shape)
                start = stop
        for over, places in long.items():
            own = [leaves[place] for place in places]
            totals = lax.psum(own, over) if over else own
            for place, leaf in zip(places, totals, strict=True):
                whole[place] = leaf
    return whole


def replicated_axes(axes: Axes, spec: Sequence[str | None]) -> Axes:
    """Return the axes that do not split a leaf.

    >>> replicated_axes(("data", "fsdp", "tensor"), (None, "fsdp"))
    ('data', 'tensor')
    """
    return tuple(itertools.filterfalse(set(spec).__contains__, axes))


DATA_AXIS: Final = "data"
"""Along which gradients are compressed."""
UNCOMPRESSED: Final = ("exact", "auto")
"""Sums as the backend likes; auto is so until something was measured."""
BUCKET_SCOPE: Final = "reduce_gradients/bucket"
"""How the scope of each bucket begins."""


@dataclass(frozen=True, kw_only=True)
class GradientBucket:
    """Gradients that are compressed together."""

    leaf_indices: tuple[int, ...]
    """Their indices, in the tree's order."""
    axes: Axes
    """Axes they are summed over, outermost first."""
    algorithm: AllReduceAlgorithm
    """How they are summed."""


@dataclass(frozen=True, kw_only=True)
class GradientReduction:
    """How the gradients of a plan are reduced."""

    exact_axes: tuple[Axes, ...]
    """Axes over which each gradient is summed exactly, first."""
    buckets: tuple[GradientBucket, ...]
    """What is compressed afterwards."""
    scatter_compressor: AllReduceAlgorithm
    """How gradients of parameters that fsdp splits are summed along it."""
    gather_compressor: Codec | None
    """How such parameters are encoded when gathered; None: not at all."""
    scatter_inner: int = 1
    """Neighbours of the second of two steps in which gradients are scattered along
    fsdp; 1: one step."""
    gather_inner: int = 1
    """Neighbours of the first of two steps in which parameters are gathered along fsdp;
    1: one step."""
    scatter_lanes: int = 1
    """Where parts of the last dim are no multiples of so many numbers, that dim is
    moved first before gradients are scattered along it."""

    def scatter(
        self, gradients: Sequence[jax.Array], shard_dims: ShardDims
    ) -> list[jax.Array]:
        """Sum gradients along fsdp, and keep this device's shard of each.

        Args:
            gradients: this device's shares of the sums.
            shard_dims: dim of each that fsdp shards; None leaves it as it is.
        """
        return reduce_scatter(
            gradients,
            shard_dims,
            FSDP_AXIS,
            self.scatter_compressor,
            self.scatter_inner,
            self.scatter_lanes,
        )

    @property
    def lossless(self) -> bool:
        """Whether no bucket leaves part of a gradient unsent."""
        return all(bucket.algorithm.lossless for bucket in self.buckets)

    @property
    def compressed_indices(self) -> tuple[int, ...]:
        """Indices of the compressed gradients, in the tree's order."""
        return tuple(sorted(place for b in self.buckets for place in b.leaf_indices))


def exact_reduction(plan: Plan, leaves: Sequence[LeafSharding]) -> GradientReduction:
    """Return the exact sum of every gradient."""
    asked = plan.reduce
    return GradientReduction(
        # Where the loss does not depend on a parameter, there is nothing to sum.
        exact_axes=tuple(
            replicated_axes(plan.sum_axes, x.spec()) if x.has_gradient else ()
            for x in leaves
        ),
        buckets=(),
        scatter_compressor=make_stateless_compressor(
            asked.reduce_scatter, asked.block_size
        )[0],
        gather_compressor=make_stateless_compressor(asked.all_gather, asked.block_size)[
            1
        ],
    )


def without_compression(reduction: GradientReduction) -> GradientReduction:
    """Return the same buckets, each summed exactly."""
    exact = ALL_REDUCE_ALGORITHMS["exact"]
    buckets = tuple(replace(bucket, algorithm=exact) for bucket in reduction.buckets)
    return replace(reduction, buckets=buckets)


def plan_reduction(
    plan: Plan, leaves: Sequence[LeafSharding], rules: CompilerRules = NO_REWRITES
) -> GradientReduction:
    """Decide how gradients are reduced.

    Args:
        plan: the layout.
        leaves: all parameters, in the tree's order.
        rules: of the compiler that the reduction is written for.

    Raises:
        BadInput: settings out of range, or a method that this mesh does not have.
    """
    exact = exact_reduction(plan, leaves)
    exact = replace(exact, scatter_lanes=rules.lanes)
    # Some compilers make a sum of a scatter or gather over all devices, which two steps
    # avoid; over some of the devices they leave it as it is.
    if plan.mesh.fsdp == plan.mesh.devices:
        exact = replace(
            exact,
            scatter_inner=rules.scatter_inner(plan.mesh.fsdp),
            gather_inner=rules.gather_inner(plan.mesh.fsdp),
        )
    asked = plan.reduce
    _check_reduction(plan, leaves)
    if asked.algorithm in UNCOMPRESSED:
        return exact
    if plan.mesh.size(DATA_AXIS) == 1:
        warnings.warn(
            f"plan.reduce.algorithm = {asked.algorithm} does nothing: "
            f"plan.mesh.{DATA_AXIS} = 1",
            JaxdistWarning,
            stacklevel=2,
        )
        return exact
    method = make_algorithm(asked)
    hierarchical = isinstance(method, HierarchicalAllReduce)
    algorithms = _leaf_algorithms(plan, leaves, method)

    # Leaves of a bucket are split over the same axes: what is sent of one depends on
    # all, so a leaf that devices have alike would diverge where its neighbours differ.
    exact_axes, together = list(exact.exact_axes), defaultdict[Any, list[int]](list)
    # From the last layer to the first, as the backward pass finishes them.
    for index in reversed(range(len(leaves))):
        leaf, over, algorithm = leaves[index], exact_axes[index], algorithms[index]
        if DATA_AXIS in over and is_compressed(plan, leaf, algorithm):
            axes = over if hierarchical else (DATA_AXIS,)
            split = frozenset(axis for axis in leaf.spec() if axis)
            together[axes, algorithm, split].append(index)
            exact_axes[index] = (
                () if hierarchical else replicated_axes(over, (DATA_AXIS,))
            )
    for axes, *_ in together:
        if hierarchical and len(axes) < 2:
            raise BadInput(
                "a hierarchical sum needs two levels",
                rule="gradients are summed over data and another axis inside it",
                values=f"plan.reduce.algorithm = hierarchical, {plan.title} sums over "
                f"{', '.join(axes)} alone",
                remedy=(
                    "plan.reduce.algorithm=top_k",
                    "or a second axis: plan.mesh.spatial_h=2",
                ),
            )

    # A bucket is closed by the leaf that fills it: a large leaf is never cut.
    buckets = []
    for (axes, algorithm, _), indices in together.items():
        held: list[int] = []
        size = 0
        for index in indices:
            leaf = leaves[index]
            held.append(index)
            size += math.prod(leaf.local_shape(plan)) * np.dtype(leaf.dtype).itemsize
            if size >= asked.bucket_mib * 2**20 or index == indices[-1]:
                buckets.append(
                    GradientBucket(
                        leaf_indices=tuple(held), axes=axes, algorithm=algorithm
                    )
                )
                held, size = [], 0
    return replace(exact, exact_axes=tuple(exact_axes), buckets=tuple(buckets))


def _check_reduction(plan: Plan, leaves: Sequence[LeafSharding]) -> None:
    """Refuse settings that are out of range or cost more than they save."""
    asked, fsdp = plan.reduce, plan.mesh.fsdp
    legal = {
        "momentum": 0 <= asked.momentum < 1
        and (asked.error_feedback or not asked.momentum),
        "warmup_steps": asked.warmup_steps >= 0,
        "bucket_mib": asked.bucket_mib > 0,
        "min_compressed_elements": asked.min_compressed_elements >= 0,
    }
    for name, holds in legal.items():
        if not holds:
            raise BadInput(
                f"plan.reduce.{name} is out of range",
                rule="0 <= momentum < 1, and 0 without error_feedback; "
                "warmup_steps >= 0, bucket_mib > 0, min_compressed_elements >= 0",
                values=f"plan.reduce.{name} = {getattr(asked, name)}",
                remedy=f"plan.reduce.{name}={getattr(type(asked)(), name)}",
            )
    # With zero 1 what is gathered becomes the parameters: errors of rounding would add
    # up from step to step. With zero 3 each device keeps its shard in full precision.
    if asked.all_gather != "exact" and plan.zero != 3:
        raise BadInput(
            "parameters would be rounded at every step",
            rule="parameters travel in fewer bits where whole ones are kept in shards, "
            "with plan.zero=3",
            values=f"plan.reduce.all_gather = {asked.all_gather}, "
            f"plan.zero = {plan.zero}",
            remedy=("plan.zero=3", "or plan.reduce.all_gather=exact"),
        )
    for name in ("reduce_scatter", "all_gather"):
        if getattr(asked, name) != "exact" and fsdp == 1:
            warnings.warn(
                f"plan.reduce.{name} = {getattr(asked, name)} does nothing: "
                "plan.mesh.fsdp = 1",
                JaxdistWarning,
                stacklevel=3,
            )
    # Error feedback keeps a residual of each compressed gradient. Along data that is a
    # shard; without data, fsdp's own sum is over whole gradients.
    lossy = asked.algorithm not in UNCOMPRESSED and not make_algorithm(asked).lossless
    if lossy and asked.error_feedback and fsdp > 1 and plan.mesh.size(DATA_AXIS) == 1:
        numbers = sum(math.prod(leaf.shape) for leaf in leaves)
        raise BadInput(
            f"{asked.algorithm} along fsdp would keep what it does not send whole",
            rule="what is left is as large as the gradient that is packed: a shard "
            "along data, all parameters along fsdp",
            values=f"plan.reduce.algorithm = {asked.algorithm}, {plan.title}: "
            f"{4 * numbers:,} B more a device, where fsdp leaves it "
            f"{4 * numbers // fsdp:,} B of parameters",
            remedy=(
                "plan.reduce.algorithm=exact plan.reduce.reduce_scatter=int8",
                "or a data axis beside fsdp: plan.mesh.data=2",
            ),
        )


def _leaf_algorithms(
    plan: Plan, leaves: Sequence[LeafSharding], algorithm: AllReduceAlgorithm
) -> list[AllReduceAlgorithm]:
    """Return how each gradient is compressed: PowerSGD with a rank by path.

    Raises:
        BadInput: ranks of another method, no number, or a path that nothing has.
    """
    ranks: dict[str, int] = {}
    for word in plan.reduce.ranks:
        path, _, rank = word.rpartition(":")
        if not (path and rank.isdigit() and int(rank)):
            raise BadInput(
                f"{word} is no rank of a part of the network",
                rule="plan.reduce.ranks are PATH:RANK, separated by commas",
                values=f"plan.reduce.ranks has {word!r}",
                remedy="plan.reduce.ranks=block3:8,head:2",
            )
        ranks[path] = int(rank)
    # The usual case: one rank for all.
    if not ranks:
        return [algorithm] * len(leaves)
    if not isinstance(algorithm, PowerSGD):
        raise BadInput(
            f"{plan.reduce.algorithm} has no ranks",
            rule="plan.reduce.ranks are of plan.reduce.algorithm=power",
            values=f"plan.reduce.ranks = {','.join(plan.reduce.ranks)}",
            remedy=("plan.reduce.algorithm=power", "or plan.reduce.ranks="),
        )
    # The dot behind a name keeps block1 from meaning block10 as well.
    names = [f"{leaf.name.replace('/', '.')}." for leaf in leaves]
    for path in ranks:
        if not any(name.startswith(f"{path}.") for name in names):
            blocks = sorted({name.split(".")[0] for name in names})
            near = did_you_mean(path, blocks)
            raise BadInput(
                f"no parameters are at {path}",
                rule="plan.reduce.ranks are PATH:RANK, paths as profiles have them",
                values=f"the network has {', '.join(blocks)}",
                remedy=f"did you mean {near}?" if near else f"{blocks[0]}:2",
            )
    found: list[AllReduceAlgorithm] = []
    for name in names:
        paths = [path for path in ranks if name.startswith(f"{path}.")]
        # The longest path is the most specific one.
        own = ranks[max(paths, key=len)] if paths else algorithm.rank
        found.append(replace(algorithm, rank=own))
    return found


def bucket_traffic(
    plan: Plan, leaves: Sequence[LeafSharding], reduction: GradientReduction
) -> Iterator[PlannedCollective]:
    """Yield the collectives of the buckets."""
    for number, bucket in enumerate(reduction.buckets):
        shapes = [leaves[place].local_shape(plan) for place in bucket.leaf_indices]
        dtype = leaves[bucket.leaf_indices[0]].dtype
        sizes = {axis: plan.mesh.size(axis) for axis in bucket.axes}
        payloads = bucket.algorithm.payloads(shapes, dtype, sizes)
        for place, payload in enumerate(payloads):
            yield PlannedCollective(
                what=bucket.algorithm.name,
                kind=payload.kind,
                axes=payload.axes,
                payload=payload.payload_bytes,
                layer=f"{BUCKET_SCOPE}{number}",
                arrays=payload.arrays,
                # All numbers are packed once, before the first of its collectives.
                packed=0 if place else sum(map(math.prod, shapes)),
            )


def compression_predicate(plan: Plan) -> Callable[[LeafSharding], bool]:
    """Return a predicate: does the plan compress a leaf's gradient along data?"""
    if plan.reduce.algorithm in UNCOMPRESSED or plan.mesh.size(DATA_AXIS) == 1:
        return lambda leaf: False
    return partial(is_compressed, plan, algorithm=make_algorithm(plan.reduce))


def is_compressed(
    plan: Plan, leaf: LeafSharding, algorithm: AllReduceAlgorithm
) -> bool:
    """Tell whether a gradient is compressed along data by an algorithm."""
    # A pipeline packs leaves of several stages: the shape of the pack says nothing, so
    # the packing decides.
    if leaf.compress_gradient is not None:
        return leaf.compress_gradient
    if is_complex(leaf.dtype) or not leaf.has_gradient:
        return False
    shape = leaf.local_shape(plan)
    # On a device: what fsdp or tensor leaves of a matrix may be too short to compress.
    numbers = math.prod(shape)
    if len(shape) < 2 or numbers < plan.reduce.min_compressed_elements:
        return False
    if isinstance(algorithm, PowerSGD):
        # Factors [m, r] and [n, r] in place of [m, n].
        return algorithm.rank * (numbers // shape[-1] + shape[-1]) < numbers
    return True
