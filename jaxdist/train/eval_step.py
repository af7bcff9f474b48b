"""The score: sums over a batch of held-out samples, manual over every axis."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxdist.train.layout import Layout
from jaxdist.train.materialize_params import gather_params, merge_model, model_inputs
from jaxdist.train.objective import Batch
from jaxdist.train.pipeline import sync_gradients
from jaxdist.train.sample_exchange import select_local_samples


def make_eval_step(layout: Layout) -> Callable[..., Any]:
    """Build `score(params, stats, batch)`, sums over the batch.

    The batch has a `weight [B]` as well, 1 for a sample and 0 for padding, so every
    held-out sample counts once however the batches are cut.

    Returns:
        A function to `loss` (over samples), `correct` and `answers` (over what the
        objective asks for: labels or tokens) and `samples`.
    """
    sums = (
        _pipelined_metrics if layout.slot_layout is not None else _unpipelined_metrics
    )
    over = (*layout.plan.sample_axes, *["pipe"] * (layout.slot_layout is not None))

    def local(state: tuple[Any, Any], batch: Batch) -> Any:
        return lax.psum(sums(layout, *state, batch), over)

    specs = layout.specs.params, layout.specs.stats
    return lambda params, stats, batch: layout.shard_map(local, specs, batch, P())(
        (params, stats), batch
    )


def _unpipelined_metrics(layout: Layout, params: Any, stats: Any, batch: Batch) -> Any:
    """Score a device's samples with a network that it has whole."""
    held, tree = jax.tree.flatten(params)
    # What is scored are the parameters, not what their messages say.
    params = jax.tree.unflatten(tree, gather_params(layout, held, None))
    model = merge_model(layout.task, params, stats)
    model.eval()
    layout.bind_layers(model)
    outputs = model(*model_inputs(layout.task, batch))
    return _metric_sums(layout, *select_local_samples(layout.plan, outputs, batch))


def _pipelined_metrics(layout: Layout, params: Any, stats: Any, batch: Batch) -> Any:
    """Score a device's samples with a network in stages."""
    last = functools.partial(_metric_sums, layout)
    return sync_gradients.pipeline_eval(layout, params, stats, batch, last)


def _metric_sums(layout: Layout, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
    """Sum the scores of samples, those of padding left out."""
    objective, weight = layout.objective, batch["weight"]
    each, right = objective.losses(outputs, batch), objective.correct(outputs, batch)
    real = (weight > 0).reshape(-1, *(1,) * (right.ndim - 1))
    asked = objective.target_mask(right, batch) & real
    return {
        "loss": (each * weight.astype(each.dtype)).sum(),
        "correct": (right & asked).astype(jnp.int32).sum(),
        "answers": asked.astype(jnp.int32).sum(),
        "samples": real.astype(jnp.int32).sum(),
    }
