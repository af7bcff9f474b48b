"""Dealt samples: what a device scores where images have left it a part of its samples.

Where rows were exchanged for samples (`plan.spatial_then`) a network returns outputs of
a device's own samples, while its batch is of all that the devices shared.
"""

from typing import Any

import jax

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.plan import Plan
from jaxdist.layers.halo import local_samples
from jaxdist.train.objective import Batch


def select_local_samples(plan: Plan, outputs: Any, batch: Batch) -> tuple[Any, Batch]:
    """Keep those of a device's own samples: what it scores, and against what.

    Args:
        plan: the layout.
        outputs: of the network; those of heads before the exchange are of all samples.
        batch: `id [B]` among its arrays.
    """
    if plan.spatial_then == "repeat":
        return outputs, batch
    samples = batch["id"].shape[0]

    def cut(x: jax.Array) -> jax.Array:
        return local_samples(x, SPATIAL_AXES) if x.shape[0] == samples else x

    return jax.tree.map(cut, outputs), jax.tree.map(cut, dict(batch))
