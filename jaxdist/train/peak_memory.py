"""Memory of a layout's step beside its arguments, on a device and on its host."""

import math
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params
from jax.interpreters import partial_eval

from jaxdist.profile.xla_cpu.peak_memory import peak_temporary_bytes
from jaxdist.train.layout import Layout
from jaxdist.train.program import trace_train_step


def trace_device_program(layout: Layout) -> Jaxpr:
    """Trace what one device does in a step, without dead code.

    Args:
        layout: task, plan and mesh, which needs no devices.
    """
    # What one device does is the body of the largest shard_map. Dead code is removed,
    # and unused arguments are not, so that they can be counted from the end.
    eqns = trace_train_step(layout).jaxpr.jaxpr.eqns
    maps = [eqn for eqn in eqns if eqn.primitive.name == "shard_map"]
    body: Any = max(maps, key=lambda eqn: len(eqn.invars)).params["jaxpr"]
    body = body.jaxpr if isinstance(body, ClosedJaxpr) else body
    outputs = [True] * len(body.outvars)
    program, *_ = partial_eval.dce_jaxpr(body, outputs, instantiate=True)
    return program


def step_temporary_bytes(layout: Layout, program: Jaxpr) -> int:
    """Return the peak bytes of a device's temporary arrays during a step.

    Args:
        layout: the layout.
        program: what a device does under it.
    """
    # Its last arguments are the state, which is donated, and the batch.
    state = len(jax.tree.leaves(layout.state))
    first = len(program.invars) - state - len(layout.batch_shapes)
    return peak_temporary_bytes(program, [(first + k, k) for k in range(state)])


def host_bytes(program: Jaxpr) -> int:
    """Return the bytes of what loops of a program hand on in the host's memory."""
    total = 0
    for eqn in program.eqns:
        if eqn.primitive.name == "scan":
            arrays: Any = [var.aval for var in eqn.outvars]
            total += sum(
                x.size * x.dtype.itemsize
                for x in arrays
                if x.memory_space == jax.memory.Space.Host
            )
        total += sum(map(host_bytes, jaxprs_in_params(eqn.params)))
    return total


def device_batch_bytes(layout: Layout) -> int:
    """Return the bytes of a device's part of a batch."""
    shardings = layout.batch_shardings(layout.batch_shapes)
    return sum(
        array.dtype.itemsize * math.prod(shardings[key].shard_shape(array.shape))
        for key, array in layout.padded_shapes(layout.batch_shapes).items()
    )
