"""The network inside a step: its gathered parameters, inputs and local samples.

Gradient accumulation: one gradient from several microbatches, one after the other.

The sum over microbatches of the mean loss over each, divided by their number, is the
mean over the whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.sharded_leaves import all_gather
from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.plan import Plan
from jaxdist.layers.halo import local_samples
from jaxdist.partition.param_sharding import FSDP_AXIS
from jaxdist.train.layout import Layout
from jaxdist.train.objective import Batch, cast_floats
from jaxdist.train.state import named_leaves, replace_leaves
from jaxdist.train.task import Task


def gather_params(
    layout: Layout,
    local_params: list[jax.Array],
    codec: Codec | None,
    needed: Sequence[bool] | None = None,
) -> list[jax.Array]:
    """All-gather the parameters that fsdp shards, in the dtype they are used in.

    Args:
        layout: layout of the parameters.
        local_params: this device's shards, in the order of the tree, and behind them
            those of frozen parameters.
        codec: compression of gathered matrices; None for none.
        needed: which parameters are gathered; None for all.
    """
    return gather_leaves(layout, local_params, layout.gather_dims, codec, needed)


def frozen_arrays(layout: Layout, stats: Any) -> list[jax.Array]:
    """Return the frozen parameters that fsdp shards, out of statistics."""
    held = jax.tree.leaves(stats)
    return [held[i] for i in layout.frozen_dims]


def with_frozen(layout: Layout, stats: Any, arrays: Sequence[jax.Array]) -> Any:
    """Return statistics with these for the frozen parameters that fsdp shards."""
    held, tree = jax.tree.flatten(stats)
    for i, x in zip(layout.frozen_dims, arrays, strict=True):
        held[i] = x
    return jax.tree.unflatten(tree, held)


def gather_leaves(
    layout: Layout,
    local_params: list[jax.Array],
    shard_dims: Sequence[int | None],
    codec: Codec | None,
    needed: Sequence[bool] | None = None,
) -> list[jax.Array]:
    """All-gather some of the parameters, as `gather_params` does all.

    Args:
        layout: layout of the parameters.
        local_params: this device's shards.
        shard_dims: dim of each that fsdp shards.
        codec: compression of gathered matrices; None for none.
        needed: which are gathered; None for all.
    """
    if not layout.gathers_params:
        return local_params
    dims = list(shard_dims)
    if needed is not None:
        dims = [d if want else None for d, want in zip(dims, needed, strict=True)]
    # Cast before they travel, which halves the bytes of bfloat16. Vectors keep their
    # dtype: norms use theirs in float32.
    used = [
        cast_floats(x, layout.task.dtype) if x.ndim > 1 else x for x in local_params
    ]
    inner = layout.reduction.gather_inner
    return all_gather(used, dims, FSDP_AXIS, codec, inner)


def prevent_cse(
    leaves: list[jax.Array], non_negative: jax.Array, dependency: jax.Array
) -> list[jax.Array]:
    """Return the same numbers in a form that XLA does not recognize as the same.

    Args:
        leaves: arrays that are gathered once more.
        non_negative: a number that is never negative.
        dependency: an array that must be computed before.
    """
    # XLA would see that the same shards are gathered twice, and keep the first result.
    # The barrier orders the second gather after the dependency; XLA's CPU backend drops
    # barriers, so a condition that always holds, and that XLA cannot know to hold,
    # makes the second operands differ.
    leaves, _ = lax.optimization_barrier((leaves, dependency))
    return [jnp.where(non_negative >= 0, x, jnp.zeros_like(x)) for x in leaves]


def merge_model(task: Task, params: Any, stats: Any) -> nnx.Module:
    """Return a new network of a task with these parameters and statistics."""
    # copy: batch norm assigns its running statistics, which must not leak out of the
    # trace.
    return nnx.merge(task.graph, params, stats, copy=True)


def network_state(model: nnx.Module, before: Any) -> Any:
    """Return what a network keeps besides its parameters, after a call.

    Args:
        model: a network that was called.
        before: the same before the call; what the call alone has made (`sow`) is
            dropped.
    """
    found = named_leaves(nnx.state(model, nnx.Variable))
    # A stream draws by its key and a counter: the counter moves, and the key, which
    # every device makes its own, stays.
    keys = named_leaves(nnx.state(model, nnx.RngKey))
    return replace_leaves(before, found | {k: named_leaves(before)[k] for k in keys})


def model_inputs(task: Task, batch: Batch) -> tuple[jax.Array, ...]:
    """Return the arguments of a task's network, in the dtype of its activations."""
    # Token ids and labels stay integers.
    inputs: tuple[jax.Array, ...] = cast_floats(
        task.objective.model_inputs(batch), task.dtype
    )
    return inputs


def select_local_samples(plan: Plan, outputs: Any, batch: Batch) -> tuple[Any, Batch]:
    """Return the outputs and targets that this device scores.

    Args:
        plan: the layout.
        outputs: outputs of the network.
        batch: this device's batch, `id [B]` among its arrays.
    """
    if plan.spatial_end_mode == "repeat":
        return outputs, batch
    # Where rows of images were exchanged for samples on the way, outputs are of a
    # device's own samples, and the batch is of all that the devices share; outputs of
    # heads before the exchange are, too.
    samples = batch["id"].shape[0]

    def cut(x: jax.Array) -> jax.Array:
        return local_samples(x, SPATIAL_AXES) if x.shape[0] == samples else x

    return jax.tree.map(cut, outputs), jax.tree.map(cut, dict(batch))


GradientFn = Callable[[Any, Batch], tuple[jax.Array, Any, Any]]
"""Maps statistics and a batch to loss, new statistics and gradients: sample means."""


def accumulate_gradients(gradient_fn: GradientFn, microbatches: int) -> GradientFn:
    """Return a gradient function that goes through a batch in microbatches.

    Args:
        gradient_fn: gradient function of a microbatch.
        microbatches: number of microbatches, of equal sizes.

    Returns:
        A gradient function of all samples, `[B, ...]`.
    """
    if microbatches == 1:
        return gradient_fn

    # A step holds the activations of one microbatch. Gradients are added on each
    # device, and reduced over devices once, at the end: in at least float32, as that
    # reduction is. Only what couples samples changes: batch statistics are those of a
    # microbatch, and running ones move once for each.
    def every(stats: Any, batch: Batch) -> tuple[jax.Array, Any, Any]:
        def add(carry: Any, part: Batch) -> tuple[Any, None]:
            sums, stats = carry
            loss, stats, grads = gradient_fn(stats, part)
            more = jax.tree.map(lambda x, y: x + y.astype(x.dtype), sums, (loss, grads))
            return (more, stats), None

        parts = {key: split_microbatches(x, microbatches) for key, x in batch.items()}
        first = {key: x[0] for key, x in parts.items()}
        loss, _, grads = jax.eval_shape(gradient_fn, stats, first)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, accumulation_dtype(x.dtype)), (loss, grads)
        )
        (sums, stats), _ = lax.scan(add, (zeros, stats), parts)
        loss, grads = jax.tree.map(lambda x: x / microbatches, sums)
        return loss, stats, grads

    return every


def split_microbatches(x: jax.Array, count: int) -> jax.Array:
    """Split samples [B, ...] into microbatches [count, B / count, ...]."""
    return x.reshape(count, x.shape[0] // count, *x.shape[1:])
