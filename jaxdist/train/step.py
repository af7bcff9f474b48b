"""The step: one program, manual over every axis, that a plan compiles to.

Each device computes its share of the global loss,

    share = sum of its samples' losses / (global batch * devices that repeat the sample)

so that the shares of all devices sum to the mean loss. With `check_vma=False`, `grad`
inside the `shard_map` differentiates that sum with respect to the device's own copy of
the parameters (a psum transposes to a psum), and the whole gradient of every leaf is
the sum of the copies' gradients over `plan.sum_axes`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.reduce import sum_shares
from jaxdist.core.axes import BATCH_AXES, spatial_axes_of
from jaxdist.core.plan import Plan
from jaxdist.layers import bind
from jaxdist.train.objective import Batch, cast
from jaxdist.train.state import TrainState
from jaxdist.train.task import Task

Shapes = Mapping[str, jax.ShapeDtypeStruct]


def batch_spec(rank: int) -> P:
    """Return how an array of a batch is split: samples, then an image's positions.

    Dims that are not spatial (tokens) stay whole.

    >>> batch_spec(1), batch_spec(4)
    (P(('data', 'fsdp'),), P(('data', 'fsdp'), 'spatial_h', 'spatial_w'))
    """
    return P(BATCH_AXES, *spatial_axes_of(rank))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A plan on a mesh: where each array of a step lies."""

    plan: Plan
    """Sizes of the axes."""
    mesh: Mesh
    """The same axes on devices."""

    @property
    def whole(self) -> NamedSharding:
        """The sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, P())

    def batch(self, shapes: Shapes) -> dict[str, NamedSharding]:
        """Return the sharding of each array of a batch."""
        return {
            key: NamedSharding(self.mesh, batch_spec(len(s.shape)))
            for key, s in shapes.items()
        }

    def map(self, local: Callable[..., Any], batch: Batch) -> Callable[..., Any]:
        """Run `local(state, batch)` on every device, manual over every axis."""
        specs = {key: batch_spec(x.ndim) for key, x in batch.items()}
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(P(), specs),
            out_specs=P(),
            check_vma=False,
        )


def train_step(task: Task, layout: Layout) -> Callable[..., Any]:
    """Build `step(state, batch) -> (state, loss)`, to be jitted with `state` donated.

    Args:
        task: network, loss and optimizer.
        layout: the plan on its mesh.

    Returns:
        A function of a `TrainState` and a global batch (the objective's keys, for one
        `image [B, H, W, C]` and `label [B]`, and `id [B]`), to the next state and the
        mean loss over the batch.
    """
    graph, plan, objective = task.graph, layout.plan, task.objective

    def local(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        key = jax.random.fold_in(jax.random.key(task.seed), state.step)

        def share(params: Any) -> tuple[jax.Array, Any]:
            model = _model(graph, params, state.stats)
            model.train()
            bind(model, key, batch["id"])
            mean = objective.losses(model(*_inputs(task, batch)), batch).mean()
            return mean / plan.mesh.size(*plan.sum_axes), _stats(model)

        (loss, stats), grads = jax.value_and_grad(share, has_aux=True)(state.params)
        loss, grads = sum_shares((loss, grads), plan.sum_axes)
        # optax counts steps in int32 and lets jax promote them, also where a user or a
        # test has asked for strict promotion.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = task.optimizer.update(grads, state.opt, state.params)
        params = optax.apply_updates(state.params, updates)
        new = TrainState(step=state.step + 1, params=params, stats=stats, opt=opt)
        return new, loss

    return lambda state, batch: layout.map(local, batch)(state, batch)


def eval_step(task: Task, layout: Layout) -> Callable[..., Any]:
    """Build `score(params, stats, batch)`, sums over the batch.

    The batch has a `weight [B]` as well, 1 for a sample and 0 for padding, so every
    held-out sample counts once however the batches are cut.

    Returns:
        A function to `loss` (over samples), `correct` and `answers` (over what the
        objective scores: labels or tokens) and `samples`.
    """
    graph, objective = task.graph, task.objective

    def local(state: tuple[Any, Any], batch: Batch) -> dict[str, jax.Array]:
        model = _model(graph, *state)
        model.eval()
        bind(model)
        outputs, weight = model(*_inputs(task, batch)), batch["weight"]
        each, right = objective.losses(outputs, batch), objective.right(outputs, batch)
        real = (weight > 0).reshape(-1, *(1,) * (right.ndim - 1))
        samples = real.astype(jnp.int32).sum()
        sums = {
            "loss": (each * weight.astype(each.dtype)).sum(),
            "correct": (right & real).astype(jnp.int32).sum(),
            "answers": samples * math.prod(right.shape[1:]),
            "samples": samples,
        }
        return lax.psum(sums, BATCH_AXES)

    return lambda params, stats, batch: layout.map(local, batch)((params, stats), batch)


def _model(graph: nnx.GraphDef[nnx.Module], params: Any, stats: Any) -> nnx.Module:
    # copy: batch norm writes its running statistics, and must not reach outside.
    return nnx.merge(graph, params, stats, copy=True)


def _stats(model: nnx.Module) -> Any:
    return nnx.state(model, nnx.BatchStat)


def _inputs(task: Task, batch: Batch) -> tuple[jax.Array, ...]:
    inputs: tuple[jax.Array, ...] = cast(task.objective.arguments(batch), task.dtype)
    return inputs
