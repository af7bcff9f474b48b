"""How mixtures of experts route the tokens of a step, as scalars of the step.

Each mixture keeps the shares of its choices as a statistic, the mean over devices
(`partition/variable_sync.py`); of several microbatches those of the last. Stages have
those of their own layers, and tell each other in one all-reduce over `pipe`.
"""

from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.core.plan import Plan
from jaxdist.partition.gradient_buckets import all_reduce_leaves
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.partition.variable_sync import SYNC_SCOPE
from jaxdist.train.layout import Layout
from jaxdist.train.state import leaf_names, named_leaves
from jaxdist.train.task import Task

DROPPED_SHARE: Final = "dropped_share"
"""Share of choices that found no slot, of all mixtures."""
BUSIEST_SHARE: Final = "busiest_expert_share"
"""Share of a mixture's choices that its busiest expert has, the largest of all."""


def routing_scalars(layout: Layout, stats: Any) -> dict[str, jax.Array]:
    """Return how a step routed its tokens; nothing without experts.

    Args:
        layout: the layout.
        stats: this device's statistics after the step.
    """
    names = layout.task.routing_stats
    if not names:
        return {}
    if layout.slot_layout is None:
        held = named_leaves(stats)
        shares = [held[name] for name in sorted(names)]
    else:
        shares = _stage_shares(layout, stats)
    # All mixtures of a network route the same tokens.
    dropped = jnp.stack([x[-1] for x in shares]).mean()
    busiest = jnp.stack([x[:-1].max() for x in shares]).max()
    return {DROPPED_SHARE: dropped, BUSIEST_SHARE: busiest}


def _stage_shares(layout: Layout, stats: Any) -> list[jax.Array]:
    """Return the shares of all stages' mixtures, from this device's slots."""
    assert layout.slot_layout is not None
    slots, rank = layout.slot_layout.stat_slots, lax.axis_index("pipe")
    own = [slots.own(stats, device) for device in range(layout.plan.mesh.pipe)]
    parts = []
    for place, name in enumerate(leaf_names(layout.task.state.stats)):
        if name in layout.task.routing_stats:
            # Stages may have replicas, which agree: the first one speaks.
            device = min(slots.devices[place])
            x = own[device][place]
            parts.append(jnp.where(rank == device, x, jnp.zeros_like(x)))
    with jax.named_scope(SYNC_SCOPE):
        return all_reduce_leaves(parts, [("pipe",)] * len(parts))


def routing_traffic(plan: Plan, task: Task) -> Iterator[PlannedCollective]:
    """Yield the all-reduce in which stages tell each other of their experts."""
    if plan.stages > 1:
        held = named_leaves(task.state.stats)
        own = [held[name] for name in task.routing_stats]
        yield PlannedCollective(
            what="variables",
            kind="all-reduce",
            axes=("pipe",),
            payload=sum(x.size * np.dtype(x.dtype).itemsize for x in own),
            layer=SYNC_SCOPE,
        )
