"""Blocks: the seconds of whole blocks of a network, as stages run them.

A forward pass writes what its backward pass needs, and a backward pass reads that from
where it was kept. Between layers there is more than the layers: norms, residuals and
copies, each a kernel of its own where it is small.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxdist.calibrate.kernels import seconds_per_call
from jaxdist.core.cluster.block_timings import BlockTiming
from jaxdist.pipeline import flat_messages
from jaxdist.pipeline.stage import bind_vjp_residuals, partition_floats, vjp_residuals

_MIN_FLOPS: Final = 2e8
"""FLOPs between few and many calls, so that they are told from the noise."""
_LOOP_BOUNDS: Final = (4, 40)
"""Calls between them, at least and at most."""
_ISOLATED_AXIS: Final = "apart"
"""Of devices that say nothing to each other."""
_INIT_SCALE: Final = 0.02
"""Of random numbers: as small as first weights."""

ShapeTuple = tuple[jax.ShapeDtypeStruct, ...]
BlockFn = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]
"""`(weights, slopes, rest) -> what is handed on`."""


@dataclass(frozen=True, kw_only=True)
class BlockCase:
    """A block that is timed on so many samples."""

    key: str
    """As `signature` names it."""
    samples: int
    """Of a microbatch."""
    flops: float
    """Of its forward pass on them."""
    fn: BlockFn
    """Computes it."""
    weights: ShapeTuple
    """Parameters, which have gradients."""
    float_inputs: ShapeTuple
    """What it is called on and has gradients."""
    other_inputs: ShapeTuple
    """What has none: samples, labels, positions."""


def time_blocks(mesh: Mesh, cases: Iterable[BlockCase]) -> tuple[BlockTiming, ...]:
    """Time blocks, forward and backward.

    Args:
        mesh: every device of it computes the same, at once.
        cases: what is timed; the same in every process.
    """
    # Along an axis that layers do not know, so that norms do not sum over it.
    silent = Mesh(mesh.devices.reshape(-1), (_ISOLATED_AXIS,))
    return tuple(_time_block(silent, each) for each in cases)


@dataclass(frozen=True, kw_only=True)
class _BlockTrace:
    """What is known of a block before it runs."""

    case: BlockCase
    """The block."""
    vjp_fn: Any
    """Its backward pass, to be filled with arrays."""
    outputs: ShapeTuple
    """What it hands on that has gradients."""
    residual_spec: flat_messages.FlatTreeSpec
    """What its forward pass keeps."""


def _time_block(mesh: Mesh, case: BlockCase) -> BlockTiming:
    """Time one block; each of its calls is on another microbatch than the one before.

    It would be computed once otherwise.
    """
    traced, draw = _trace_block(case), np.random.default_rng(0)
    weights = [_random_array(draw, x) for x in case.weights]
    slopes = [_random_array(draw, x, 2) for x in case.float_inputs]
    rest = [_random_array(draw, x, 2) for x in case.other_inputs]
    rings = _residual_buffers(traced, weights, [x[0] for x in (*slopes, *rest)])
    steep = [_random_array(draw, x, 2) for x in traced.outputs]
    calls = int(np.clip(_MIN_FLOPS / max(1.0, case.flops), *_LOOP_BOUNDS))
    forward, backward = partial(_forward, case), partial(_backward, traced)
    given = *weights, *slopes
    return BlockTiming(
        key=case.key,
        samples=case.samples,
        forward_s=seconds_per_call(mesh, forward, *given, *rest, calls=calls),
        backward_s=seconds_per_call(
            mesh, backward, *given, *rings, *steep, calls=calls // 2
        ),
        kept=flat_messages.buffer_bytes(traced.residual_spec.lengths),
    )


def _trace_block(case: BlockCase) -> _BlockTrace:
    """Trace both passes on shapes."""
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
    """Return what a block hands on, and its backward pass."""

    def run(weights: Any, slopes: Any) -> list[jax.Array]:
        return partition_floats(case.fn(weights, slopes, other_inputs))[0]

    return jax.vjp(run, list(weights), list(float_inputs))


def _forward(case: BlockCase, i: jax.Array, *given: jax.Array) -> Any:
    """Return what is handed on, and what is kept."""
    count, more = len(case.weights), len(case.float_inputs)
    inputs = [x[i % 2] for x in given[count:]]
    out, back = _vjp(case, given[:count], inputs[:more], inputs[more:])
    return out, [
        flat_messages.raw_array(x) for x in jax.tree.leaves(vjp_residuals(back))
    ]


def _backward(trace: _BlockTrace, i: jax.Array, *given: jax.Array) -> Any:
    """Return the gradients of parameters and input."""
    left, turn = iter(given), i % 2
    weights = [next(left) for _ in trace.case.weights]
    slopes = [next(left)[turn] for _ in trace.case.float_inputs]
    rings = {dtype: next(left) for dtype in trace.residual_spec.lengths}
    kept = trace.residual_spec.read(rings, turn)
    return bind_vjp_residuals(trace.vjp_fn, kept, weights, slopes)(
        [x[turn] for x in left]
    )


def _residual_buffers(
    trace: _BlockTrace, weights: Any, inputs: Any
) -> list[np.ndarray]:
    """Return what two microbatches keep, [2, n] of each dtype."""
    more = len(trace.case.float_inputs)

    def write(weights: Any, slopes: Any, rest: Any) -> Any:
        _, back = _vjp(trace.case, weights, slopes, rest)
        empty = flat_messages.zero_buffers(trace.residual_spec.lengths)
        return trace.residual_spec.write(empty, vjp_residuals(back))

    made = jax.jit(write)(list(weights), inputs[:more], inputs[more:])
    return [
        np.stack([np.asarray(made[dtype])] * 2) for dtype in trace.residual_spec.lengths
    ]


def _random_array(
    draw: np.random.Generator, shape: jax.ShapeDtypeStruct, *rows: int
) -> np.ndarray:
    """Draw small numbers; whole ones are zero, which every table has a row for."""
    sizes = *rows, *shape.shape
    if not jnp.issubdtype(shape.dtype, jnp.floating):
        return np.zeros(sizes, shape.dtype)
    return (_INIT_SCALE * draw.standard_normal(sizes)).astype(shape.dtype)
