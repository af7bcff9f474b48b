"""The evaluation step: sums over a batch of held-out samples, in one program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxdist.core.errors import BadInput
from jaxdist.train.count_words import count_true
from jaxdist.train.layout import Layout
from jaxdist.train.materialize_params import (
    frozen_arrays,
    gather_params,
    merge_model,
    model_inputs,
    select_local_samples,
    with_frozen,
)
from jaxdist.train.objective import Batch
from jaxdist.train.pipeline import sync_gradients


def make_eval_step(layout: Layout) -> Callable[..., Any]:
    """Build `evaluate(params, stats, batch)`, which returns sums over the batch.

    The batch has a `weight [B]` as well, 1 for a sample and 0 for padding, so every
    held-out sample counts once however the batches are cut.

    Returns:
        A function to `loss` and metrics of one's own (over samples), `correct` and
        `answers` (over labels, tokens or pixels, as the objective says), `samples`, and
        arrays that the objective makes scores of. Whole numbers are two words each,
        int32 [2, ...], that `words_total` reads.
    """

    def metric_sums(outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        objective, weight = layout.objective, batch["weight"]
        losses = objective.losses(outputs, batch)
        return {
            **own_sums(outputs, batch),
            **objective.loss_sums(losses, batch, weight > 0),
            "loss": real_sum(losses * weight.astype(losses.dtype), weight),
            # Padding has weight 0.
            "samples": count_true(weight > 0),
            **objective.answer_sums(outputs, batch, weight > 0),
        }

    def real_sum(values: jax.Array, weight: jax.Array) -> jax.Array:
        # What is not finite for the padding must not count: 0 x NaN is NaN.
        return jnp.where(weight > 0, values, jnp.zeros_like(values)).sum()

    def own_sums(outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        weight, sums = batch["weight"], {}
        for name, metric in layout.task.metrics.items():
            each = jnp.asarray(metric(outputs, batch))
            if each.shape != weight.shape:
                raise BadInput(
                    f"the metric {name} is not one number a sample",
                    rule="metric(outputs, batch) returns an array [B]",
                    values=f"of {weight.shape[0]} samples it returned "
                    f"{list(each.shape)}",
                    remedy="a mean over what a sample has: each.mean(-1)",
                )
            sums[name] = real_sum(each.astype(weight.dtype), weight)
        return sums

    def local(state: tuple[Any, Any], batch: Batch) -> Any:
        if layout.slot_layout is not None:
            params, stats = state
            sums = sync_gradients.pipeline_eval(
                layout, params, stats, batch, metric_sums
            )
            # Only devices of the last stage have sums; the others add zeros.
            return lax.psum(sums, (*layout.plan.sample_axes, "pipe"))
        # Metrics of one's own are functions of whole outputs.
        outputs = _outputs(layout, state, batch, is_scored=not layout.task.metrics)
        sums = metric_sums(*select_local_samples(layout.plan, outputs, batch))
        return lax.psum(sums, layout.plan.sample_axes)

    specs = layout.specs.params, layout.specs.stats
    return lambda params, stats, batch: layout.shard_map(local, specs, batch, P())(
        (params, stats), batch
    )


def make_predict_step(layout: Layout) -> Callable[..., Any]:
    """Build `predict(params, stats, batch)`, which returns what the network does.

    Outputs of a dense objective, [B, ..., n], are cut as their images are, and padded
    as they are.
    """
    key, _ = layout.task.objective.inputs[0]

    def local(state: tuple[Any, Any], batch: Batch) -> Any:
        if layout.slot_layout is None:
            return _outputs(layout, state, batch)
        samples = batch["id"].shape[0]

        def outputs_in_place(outputs: jax.Array, part: Batch) -> jax.Array:
            # What stages return is summed over microbatches and over devices: all but
            # a microbatch's own samples are zeros.
            zeros = jnp.zeros((samples, *outputs.shape[1:]), outputs.dtype)
            return lax.dynamic_update_slice_in_dim(zeros, outputs, part["row"][0], 0)

        rows = {**batch, "row": jnp.arange(samples)}
        found = sync_gradients.pipeline_eval(layout, *state, rows, outputs_in_place)
        return lax.psum(found, "pipe")

    def predict(params: Any, stats: Any, batch: Batch) -> Any:
        dims = layout.task.objective.dim_axes(key, batch[key].ndim)
        states = layout.specs.params, layout.specs.stats
        out = P(layout.plan.batch_axes, *dims)
        return layout.shard_map(local, states, batch, out)((params, stats), batch)

    return predict


def _outputs(
    layout: Layout, state: tuple[Any, Any], batch: Batch, *, is_scored: bool = False
) -> Any:
    """Run the network on a device's part of a batch, in evaluation mode."""
    params, stats = state
    held, tree = jax.tree.flatten(params)
    # Gathered without a codec: the evaluated parameters are the exact ones.
    shards = [*held, *frozen_arrays(layout, stats)]
    whole, count = gather_params(layout, shards, None), len(held)
    params = jax.tree.unflatten(tree, whole[:count])
    stats = with_frozen(layout, stats, whole[count:])
    model = merge_model(layout.task, params, stats)
    model.eval()
    layout.bind_layers(model, is_scored=is_scored)
    return model(*model_inputs(layout.task, batch))
