"""Block timings: the seconds of whole blocks of a network, as pipeline stages run them.

Between layers there is more than the layers: norms, residuals and copies, each a kernel
of its own where it is small.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxdist.calibrate.synchronized_timing import seconds_per_call
from jaxdist.core.cluster.kernel_timings import BlockTiming
from jaxdist.pipeline import flat_messages
from jaxdist.pipeline.stages import bind_vjp_residuals, partition_floats, vjp_residuals

# FLOPs between few and many calls, so that the difference exceeds the noise; and the
# least and largest number of calls between them.
_MIN_FLOPS: Final = 2e8
_LOOP_BOUNDS: Final = (4, 40)
# An axis that layers do not know, so that norms do not sum over it.
_ISOLATED_AXIS: Final = "apart"
# Standard deviation of random numbers, as small as initial weights.
_INIT_SCALE: Final = 0.02

ShapeTuple = tuple[jax.ShapeDtypeStruct, ...]
BlockFn = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]
"""`(weights, float_inputs, other_inputs) -> outputs`."""


@dataclass(frozen=True, kw_only=True)
class BlockCase:
    """A block to be timed on a number of samples."""

    key: str
    """Signature of the block."""
    samples: int
    """Samples of a microbatch."""
    flops: float
    """FLOPs of the forward pass on them."""
    fn: BlockFn
    """Function of the block."""
    weights: ShapeTuple
    """Shapes of the parameters."""
    float_inputs: ShapeTuple
    """Shapes of the inputs that have gradients."""
    other_inputs: ShapeTuple
    """Shapes of the inputs that have none: sample ids, labels, positions."""


def time_blocks(mesh: Mesh, cases: Iterable[BlockCase]) -> tuple[BlockTiming, ...]:
    """Time the forward and backward passes of blocks.

    Args:
        mesh: mesh whose devices all compute the same, at once.
        cases: blocks to time; the same in every process.
    """
    isolated = Mesh(mesh.devices.reshape(-1), (_ISOLATED_AXIS,))
    found = []
    for case in cases:
        # Two microbatches of everything but the weights: each call is on another than
        # the one before, or XLA would compute the block once, outside of the loop.
        trace, draw = _trace_block(case), np.random.default_rng(0)
        weights = [_random_array(draw, x) for x in case.weights]
        floats = [_random_array(draw, x, 2) for x in case.float_inputs]
        others = [_random_array(draw, x, 2) for x in case.other_inputs]
        one = [x[0] for x in (*floats, *others)]
        residuals = _residual_buffers(trace, weights, one)
        cotangents = [_random_array(draw, x, 2) for x in trace.outputs]
        calls = int(np.clip(_MIN_FLOPS / max(1.0, case.flops), *_LOOP_BOUNDS))
        forward, backward = partial(_forward, case), partial(_backward, trace)
        inputs = *weights, *floats
        back = *inputs, *residuals, *cotangents
        found.append(
            BlockTiming(
                key=case.key,
                samples=case.samples,
                forward_s=seconds_per_call(
                    isolated, forward, *inputs, *others, calls=calls
                ),
                backward_s=seconds_per_call(
                    isolated, backward, *back, calls=calls // 2
                ),
                kept=flat_messages.buffer_bytes(trace.residual_spec.lengths),
            )
        )
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class _BlockTrace:
    """A block after its passes were traced on shapes."""

    case: BlockCase
    """The block."""
    vjp_fn: Any
    """Its backward pass, without the arrays of its residuals."""
    outputs: ShapeTuple
    """Shapes of the outputs that have gradients."""
    residual_spec: flat_messages.FlatTreeSpec
    """Layout of the residuals of the forward pass in flat buffers."""


def _trace_block(case: BlockCase) -> _BlockTrace:
    """Trace both passes on shapes."""
    # The backward pass is a pytree whose leaves are the residuals: its structure is
    # taken out of the trace, and filled with arrays from memory later.
    found: list[Any] = []

    def probe(weights: Any, slopes: Any, rest: Any) -> Any:
        out, back = _vjp(case, weights, slopes, rest)
        found.append(back)
        return out, vjp_residuals(back)

    given = [list(x) for x in (case.weights, case.float_inputs, case.other_inputs)]
    out, kept = jax.eval_shape(probe, *given)
    return _BlockTrace(
        case=case,
        vjp_fn=found[0],
        outputs=tuple(out),
        residual_spec=flat_messages.flat_tree_spec(kept),
    )


def _vjp(case: BlockCase, weights: Any, float_inputs: Any, other_inputs: Any) -> Any:
    """Return the outputs of a block, and its backward pass."""

    def run(weights: Any, slopes: Any) -> list[jax.Array]:
        return partition_floats(case.fn(weights, slopes, other_inputs))[0]

    return jax.vjp(run, list(weights), list(float_inputs))


def _forward(case: BlockCase, i: jax.Array, *given: jax.Array) -> Any:
    """Return outputs and residuals; a stage writes both to memory."""
    count, more = len(case.weights), len(case.float_inputs)
    inputs = [x[i % 2] for x in given[count:]]
    out, back = _vjp(case, given[:count], inputs[:more], inputs[more:])
    return out, [
        flat_messages.raw_array(x) for x in jax.tree.leaves(vjp_residuals(back))
    ]


def _backward(trace: _BlockTrace, i: jax.Array, *given: jax.Array) -> Any:
    """Return the gradients of parameters and inputs, from residuals in memory."""
    # In the order in which `time_blocks` gives them: weights, inputs, residuals,
    # cotangents.
    left, turn = iter(given), i % 2
    weights = [next(left) for _ in trace.case.weights]
    slopes = [next(left)[turn] for _ in trace.case.float_inputs]
    shapes = flat_messages.buffer_shapes(trace.residual_spec.lengths)
    rings = jax.tree.map(lambda _: next(left), shapes)
    kept = trace.residual_spec.read(rings, turn)
    return bind_vjp_residuals(trace.vjp_fn, kept, weights, slopes)(
        [x[turn] for x in left]
    )


def _residual_buffers(
    trace: _BlockTrace, weights: Any, inputs: Any
) -> list[np.ndarray]:
    """Return the residuals of two microbatches, [2, n] of each vector."""
    # Written as a stage writes them: in flat buffers of each dtype.
    more = len(trace.case.float_inputs)

    def write(weights: Any, slopes: Any, rest: Any) -> Any:
        _, back = _vjp(trace.case, weights, slopes, rest)
        empty = flat_messages.zero_buffers(trace.residual_spec.lengths)
        return trace.residual_spec.write(empty, vjp_residuals(back))

    made = jax.jit(write)(list(weights), inputs[:more], inputs[more:])
    return [np.stack([np.asarray(x)] * 2) for x in jax.tree.leaves(made)]


def _random_array(
    draw: np.random.Generator, shape: jax.ShapeDtypeStruct, *rows: int
) -> np.ndarray:
    """Draw small floats; integers are 0, which is an index into every table."""
    sizes = *rows, *shape.shape
    if not jnp.issubdtype(shape.dtype, jnp.floating):
        return np.zeros(sizes, shape.dtype)
    return (_INIT_SCALE * draw.standard_normal(sizes)).astype(shape.dtype)
