"""Work shares: how much of each layer's work a device does under a layout.

The step is traced twice, on one device and on the layout, with a scope around every
layer, and the FLOPs of both programs are counted; nothing is compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxdist.core.plan import Plan
from jaxdist.profile.trace import add_layer_scopes, modules_by_path, trace_pruned
from jaxdist.train.build_layout import build_layout
from jaxdist.train.layout import Layout
from jaxdist.train.step import make_train_step


@dataclass(frozen=True, kw_only=True)
class LayerWorkShare:
    """The work of one layer in one step."""

    layer: str
    """Path of the layer; empty for loss, optimizer and the rest."""
    whole: int
    """FLOPs of the step on one device."""
    device: int
    """FLOPs on one device of the layout."""
    devices: int
    """Devices of the layout."""

    @property
    def share(self) -> float:
        """Share of the work that a device does."""
        return self.device / self.whole if self.whole else 0.0

    @property
    def repeats(self) -> float:
        """How many times the work is done: 1 is a perfect split."""
        return self.share * self.devices


def layer_work_shares(layout: Layout) -> tuple[LayerWorkShare, ...]:
    """Return the share of every layer that does something, in the order of use.

    Args:
        layout: task, plan and mesh.
    """
    # The scope of a layer is the name under which its FLOPs are summed.
    task = replace(layout.task, model=_ScopedModelFn(layout.task.model))
    network = nnx.merge(task.graph, task.state.params, task.state.stats)
    layers = tuple(modules_by_path(network))
    # The same task on the first of the layout's devices.
    names, kinds = layout.mesh.axis_names, layout.mesh.axis_types
    # With the layout's axes, each of size 1: `shard_map` names all of them.
    first = np.reshape(layout.mesh.devices.ravel()[:1], (1,) * len(names))
    one = Mesh(first, names, axis_types=kinds)
    whole, device = (
        traced.traced_flops(
            trace_pruned(
                make_train_step(traced),
                traced.state,
                traced.padded_shapes(traced.batch_shapes),
            ),
            layers,
        )
        for traced in (
            build_layout(task, Plan(), one, layout.batch_shapes),
            replace(layout, task=task),
        )
    )
    return tuple(
        LayerWorkShare(
            layer=layer,
            whole=flops,
            device=device[layer],
            devices=layout.plan.mesh.devices,
        )
        for layer, flops in whole.items()
        if flops or device[layer]
    )


@dataclass(frozen=True)
class _ScopedModelFn:
    """Constructor of a network whose layers are called in named scopes."""

    model_fn: Callable[..., nnx.Module]

    def __call__(self, **how: Any) -> nnx.Module:
        network = self.model_fn(**how)
        add_layer_scopes(network, {}, {})
        return network
