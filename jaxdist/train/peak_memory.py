"""Temporaries: what a layout's step needs in memory beside its arguments."""

from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters import partial_eval

from jaxdist.profile.xla_cpu.peak_memory import peak_temporary_bytes
from jaxdist.train.layout import Layout
from jaxdist.train.program import trace_train_step


def step_temporary_bytes(layout: Layout) -> int:
    """Return the bytes of temporary arrays of a device at the step's fullest moment.

    Args:
        layout: the task, its plan and mesh, which needs no devices.
    """
    program = _device_jaxpr(trace_train_step(layout).jaxpr.jaxpr)
    # Its last arguments are the state, which is donated, and the batch.
    state = len(jax.tree.leaves(layout.state))
    first = len(program.invars) - state - len(layout.batch_shapes)
    return peak_temporary_bytes(program, [(first + k, k) for k in range(state)])


def device_batch_bytes(layout: Layout) -> int:
    """Return the bytes of a device's part of a batch."""
    places = layout.batch_shardings(layout.batch_shapes)
    return sum(
        _array_bytes(array, places[key].shard_shape(array.shape))
        for key, array in layout.padded_shapes(layout.batch_shapes).items()
    )


def _device_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """Return what one device does, with all arguments, without what nothing needs."""
    maps = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map"]
    whole: Any = max(maps, key=lambda eqn: len(eqn.invars)).params["jaxpr"]
    own: Jaxpr = whole.jaxpr if isinstance(whole, ClosedJaxpr) else whole
    every = [True] * len(own.outvars)
    return partial_eval.dce_jaxpr(own, every, instantiate=True)[0]


def _array_bytes(array: jax.ShapeDtypeStruct, shape: tuple[int, ...]) -> int:
    size = array.dtype.itemsize
    for dim in shape:
        size *= dim
    return size
