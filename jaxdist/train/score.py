"""The score: sums over a batch of held-out samples, manual over every axis."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxdist.train.dealt import scored
from jaxdist.train.held import inputs_of, model_of, whole
from jaxdist.train.layout import Layout
from jaxdist.train.objective import Batch


def eval_step(layout: Layout) -> Callable[..., Any]:
    """Build `score(params, stats, batch)`, sums over the batch.

    The batch has a `weight [B]` as well, 1 for a sample and 0 for padding, so every
    held-out sample counts once however the batches are cut.

    Returns:
        A function to `loss` (over samples), `correct` and `answers` (over what the
        objective asks for: labels or tokens) and `samples`.
    """
    task, objective = layout.task, layout.objective

    def local(state: tuple[Any, Any], batch: Batch) -> dict[str, jax.Array]:
        held, tree = jax.tree.flatten(state[0])
        # What is scored are the parameters, not what their messages say.
        params = jax.tree.unflatten(tree, whole(layout, held, None))
        model = model_of(task, params, state[1])
        model.eval()
        layout.bind(model)
        outputs, batch = scored(layout.plan, model(*inputs_of(task, batch)), batch)
        weight = batch["weight"]
        each, right = objective.losses(outputs, batch), objective.right(outputs, batch)
        real = (weight > 0).reshape(-1, *(1,) * (right.ndim - 1))
        asked = objective.asked(right, batch) & real
        sums = {
            "loss": (each * weight.astype(each.dtype)).sum(),
            "correct": (right & asked).astype(jnp.int32).sum(),
            "answers": asked.astype(jnp.int32).sum(),
            "samples": real.astype(jnp.int32).sum(),
        }
        return lax.psum(sums, layout.plan.sample_axes)

    specs = layout.specs.params, layout.specs.stats
    return lambda params, stats, batch: layout.map(local, specs, batch, P())(
        (params, stats), batch
    )
