"""Shares: how much of each layer's work a device does under a layout.

The step is traced twice, on one device and on the layout, with a scope around every
layer, and both programs are walked; nothing is compiled.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxdist.core.plan import Plan
from jaxdist.partition.flops import sum_traced_flops
from jaxdist.profile.trace import add_layer_scopes, modules_by_path, trace_pruned
from jaxdist.train.build_layout import build_layout
from jaxdist.train.layout import Layout
from jaxdist.train.step import make_train_step
from jaxdist.train.task import Task


@dataclass(frozen=True, kw_only=True)
class LayerWorkShare:
    """The work of one layer in one step."""

    layer: str
    """Path of the layer; empty for loss, optimizer and what no layer does."""
    whole: int
    """FLOPs of the step on one device."""
    device: int
    """FLOPs on one device of the layout."""
    devices: int
    """Devices of the layout."""

    @property
    def share(self) -> float:
        """The part of the work that a device does."""
        return self.device / self.whole if self.whole else 0.0

    @property
    def repeats(self) -> float:
        """How often the work is done: 1 is a perfect split."""
        return self.share * self.devices


def layer_work_shares(layout: Layout) -> tuple[LayerWorkShare, ...]:
    """Return the share of every layer that does something, in the order of use.

    Args:
        layout: the task, its plan and mesh.
    """
    task = replace(layout.task, model=_ScopedModelFn(layout.task.model))
    scoped, layers = replace(layout, task=task), _layer_paths(task)
    whole = _layer_flops(_single_device_layout(scoped), layers)
    device = _layer_flops(scoped, layers)
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
    """Makes a network whose layers open scopes of their paths when they are called."""

    model_fn: Callable[..., nnx.Module]

    def __call__(self, **how: Any) -> nnx.Module:
        network = self.model_fn(**how)
        add_layer_scopes(network, {})
        return network


def _layer_paths(task: Task) -> tuple[str, ...]:
    state = task.state
    network = nnx.merge(task.graph, state.params, state.stats)
    return tuple(modules_by_path(network))


def _single_device_layout(layout: Layout) -> Layout:
    """Return the layout of the same task on the first of its devices."""
    names, kinds = layout.mesh.axis_names, layout.mesh.axis_types
    first = np.reshape(layout.mesh.devices.ravel()[:1], (1,) * len(names))
    mesh = Mesh(first, names, axis_types=kinds)
    return build_layout(layout.task, Plan(), mesh, layout.batch_shapes)


def _layer_flops(layout: Layout, layers: Sequence[str]) -> Counter[str]:
    batch = layout.padded_shapes(layout.batch_shapes)
    step = trace_pruned(make_train_step(layout), layout.state, batch)
    return sum_traced_flops(step, layers)
