"""Held: the parameters that a device holds, as the network inside a step has them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.sharded_leaves import all_gather
from jaxdist.partition import fsdp
from jaxdist.train.layout import Layout
from jaxdist.train.objective import Batch, cast_floats
from jaxdist.train.task import Task


def gather_params(
    layout: Layout,
    local_params: list[jax.Array],
    codec: Codec | None,
    needed: Sequence[bool] | None = None,
) -> list[jax.Array]:
    """Put the parameters together that fsdp shares out, in the dtype they are used in.

    A vector stays in its own: norms use theirs in float32.

    Args:
        layout: says which are shared out.
        local_params: what this device holds, in the order of the tree.
        codec: how matrices travel; none: as they are.
        needed: those that are needed; none: all.
    """
    if not layout.gathers_params:
        return local_params
    dims = layout.fsdp_dims
    if needed is not None:
        dims = [d if want else None for d, want in zip(dims, needed, strict=True)]
    used = [
        cast_floats(x, layout.task.dtype) if x.ndim > 1 else x for x in local_params
    ]
    return all_gather(used, dims, fsdp.FSDP_AXIS, codec)


def prevent_cse(
    leaves: list[jax.Array], non_negative: jax.Array, dependency: jax.Array
) -> list[jax.Array]:
    """Return the same numbers, such that the compiler reads them once more.

    Args:
        leaves: what is read again.
        non_negative: a number that is never negative.
        dependency: what comes before.

    It would otherwise see that the same shards are joined twice and keep the first. The
    barrier says when; XLA's CPU backend drops barriers, so a condition that always
    holds, and that it cannot know to, makes the second time differ.
    """
    leaves, _ = lax.optimization_barrier((leaves, dependency))
    return [jnp.where(non_negative >= 0, x, jnp.zeros_like(x)) for x in leaves]


def merge_model(task: Task, params: Any, stats: Any) -> nnx.Module:
    """Return a fresh network of a task with these parameters and statistics."""
    # copy: batch norm writes its running statistics, and must not reach outside.
    return nnx.merge(task.graph, params, stats, copy=True)


def batch_stats(model: nnx.Module) -> Any:
    """Return the running statistics of a network."""
    return nnx.state(model, nnx.BatchStat)


def model_inputs(task: Task, batch: Batch) -> tuple[jax.Array, ...]:
    """Return what a task's network is called on, in the dtype of its activations."""
    inputs: tuple[jax.Array, ...] = cast_floats(
        task.objective.model_inputs(batch), task.dtype
    )
    return inputs
