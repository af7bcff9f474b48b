"""Scan over equal blocks: one block in the program, whatever their number.

Consecutive blocks with the same modules, arrays and shardings run as one loop over
their stacked parameters, so that neither the program nor its compile time grows with
depth. The forward loop keeps what the backward loop reads of each block. Where fsdp
shards parameters, those of a block are gathered together in the loop's body, used and
dropped; the backward loop gathers again what it reads, and scatters the block's
gradients. So a device has its shards and the whole parameters of one block at a time:
two copies in different loops are nothing that a compiler could merge.

Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3; the loop is that of
MaxText's `scan_layers`, the gathers in its body those of seqax.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.interpreters import partial_eval
from jax.sharding import AbstractMesh, Mesh

from jaxdist.core.plan import Plan
from jaxdist.partition.compiler_rewrites import mesh_platform
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.pipeline.stages import (
    BlockNames,
    combine_floats,
    partition_floats,
    variable_ids,
)
from jaxdist.train.state import named_leaves, replace_leaves

Arrays = list[jax.Array]
BlockFn = Callable[[Arrays, Mapping[str, jax.Array], Any], tuple[Any, Any]]
"""Maps parameters of a block, its other arrays by name, and activations to activations
and the other arrays after it."""


@dataclass(frozen=True, kw_only=True)
class BlockScan:
    """Consecutive equal blocks that a step runs as one loop."""

    blocks: BlockNames
    """Their names, in order."""
    names: tuple[str, ...]
    """Names of the parameters inside of each block."""
    indices: tuple[tuple[int, ...], ...]
    """For each of them the parameters of the network, one of each block."""


def scans_blocks(plan: Plan, mesh: Mesh | AbstractMesh) -> bool:
    """Return whether equal blocks run as a loop: by themselves on accelerators."""
    # Activations are offloaded in loops alone, on every platform.
    if plan.scan != "auto" or plan.offload:
        return plan.scan != "off"
    # Compilers of CPUs schedule unrolled blocks as fast, and a person can read them.
    return mesh_platform(mesh) != "cpu"


def find_block_scans(
    network: Any,
    outputs_alike: Callable[[str], bool],
    params: Sequence[LeafSharding],
    marks: Mapping[str, object],
) -> tuple[BlockScan, ...]:
    """Find the runs of equal blocks that can be loops.

    Args:
        network: abstract, its layers bound to a layout; changed.
        outputs_alike: whether a block returns arrays of the shapes it is given.
        params: shardings of the network's parameters.
        marks: what else must be equal, by the name of a parameter or of a block.
    """
    # Auxiliary heads hang on blocks by name.
    if not hasattr(network, "chain") or (getattr(network, "heads", dict)() or {}):
        return ()
    index = {leaf.name: i for i, leaf in enumerate(params)}
    used = {name: variable_ids(block) for name, block in network.chain()}
    keys = dict[str, Any]()
    for name, block in network.chain():
        others = (ids for other, ids in used.items() if other != name)
        shared = any(ids & used[name] for ids in others)
        # A stream of random numbers counts the calls before it.
        draws = any(isinstance(v, nnx.RngState) for _, v in nnx.iter_graph(block))
        # Its own name is a key that no other block has.
        keys[name] = name
        # Parameters are looked up by the name of the block, so it must be the
        # attribute's.
        if shared or draws or getattr(network, name, None) is not block:
            continue
        # Scopes begin with the block's name, which would tell equal blocks apart.
        _drop_paths(block)
        graph, state = nnx.split(block)
        form = [
            (leaf, x.shape, x.dtype, _likeness(f"{name}/{leaf}", index, params, marks))
            for leaf, x in named_leaves(state).items()
        ]
        keys[name] = graph, tuple(form), marks.get(name)
    # Neighbours alone: a block of another kind in between ends the loop.
    runs = [tuple(run) for _, run in groupby(keys, key=lambda name: keys[name])]
    return tuple(
        BlockScan(
            blocks=run,
            names=(own := tuple(_own_names(run[0], index))),
            indices=tuple(tuple(index[f"{b}/{x}"] for b in run) for x in own),
        )
        for run in runs
        # Equal blocks that are given equal shapes return equal shapes: the first tells.
        if len(run) > 1 and outputs_alike(run[0])
    )


def _drop_paths(block: Any) -> None:
    """Give the layers of a block their paths inside of it as scopes; in place."""
    for path, layer in nnx.iter_modules(block):
        if hasattr(layer, "scope"):
            layer.scope = ".".join(map(str, path))


def _likeness(
    name: str,
    index: Mapping[str, int],
    params: Sequence[LeafSharding],
    marks: Mapping[str, object],
) -> Any:
    """Return what must be equal of leaves that are stacked, besides their shapes."""
    if name not in index:
        return None
    return replace(params[index[name]], name=""), marks.get(name)


def _own_names(block: str, index: Mapping[str, int]) -> Iterator[str]:
    for name in index:
        first, _, rest = name.partition("/")
        if first == block:
            yield rest


class ParamMovement(NamedTuple):
    """How the body of a loop gets whole parameters, and lets go of their gradients."""

    gather: Callable[[Arrays, Sequence[bool] | None], Arrays]
    """Gathers a block's shards: all, or those that are needed."""
    scatter: Callable[[Arrays], Arrays]
    """Sums whole gradients to this device's shards."""
    gathers_again: tuple[bool, ...]
    """Which parameters the backward loop gathers again; it is given the others as they
    were, or stacked where nothing is gathered."""
    trained: tuple[bool, ...]
    """Which of them have gradients, in the order of `scatter`; others are frozen."""


class ScannedRun(NamedTuple):
    """A loop over equal blocks, as it was run forward."""

    activations: Any
    """Outputs of the last block."""
    variables: Mapping[str, jax.Array]
    """Other arrays of the blocks after it, stacked."""
    backward: Callable[[Any], tuple[Arrays, Any]]
    """Maps the cotangent of the activations to stacked gradients of the parameters, as
    `scatter` returns them, and the cotangent of the loop's input."""


def scan_blocks(
    block_fn: BlockFn,
    shards: Arrays,
    variables: Mapping[str, jax.Array],
    activations: Any,
    moves: ParamMovement,
) -> ScannedRun:
    """Run equal blocks as a loop.

    Args:
        block_fn: one block.
        shards: this device's part of each parameter, `[blocks, ...]`.
        variables: other arrays of the blocks, stacked alike.
        activations: outputs of the block before.
        moves: how parameters are gathered and gradients scattered.
    """

    def differentiate(
        params: Arrays, variables: Mapping[str, jax.Array], x: Any
    ) -> tuple[Any, Any, Any]:
        # Integers beside the activations, such as segments, have no gradient.
        slopes, others = partition_floats(x)
        own = [p for p, moves in zip(params, trained, strict=True) if moves]

        def call(own: Arrays, slopes: Any) -> tuple[Any, Any]:
            given = iter(own)
            both = zip(params, trained, strict=True)
            leaves = [next(given) if moves else p for p, moves in both]
            y, new = block_fn(leaves, variables, combine_floats(slopes, others))
            return partition_floats(y)[0], (y, new)

        _, back, (y, new) = jax.vjp(call, own, slopes, has_aux=True)
        return y, back, new

    # Two loops by hand: one that jax differentiates keeps all gathered parameters, and
    # a checkpoint with a policy keeps them under other names (docs/adr/0076).
    again, trained = moves.gathers_again, moves.trained
    first = jax.tree.map(lambda x: x[0], (shards, dict(variables)))
    params = jax.eval_shape(lambda x: moves.gather(x, None), first[0])
    shapes_in = jax.eval_shape(lambda x: x, activations)
    saves = _residual_saves(differentiate, params, first[1], activations, again)

    def forward(x: Any, block: Any) -> tuple[Any, Any]:
        own, rest = block
        params = moves.gather(own, None)
        y, back, new = differentiate(params, rest, x)
        residuals = jax.tree.leaves(back)
        saved = [r for r, save in zip(residuals, saves, strict=True) if save]
        # Vectors are small, and gathered once.
        kept = [
            p for p, s, g in zip(params, own, again, strict=True) if _is_kept(p, s, g)
        ]
        return y, (saved, kept, new)

    def backward(cotangent: Any, block: Any) -> tuple[Any, Arrays]:
        own, rest, saved, kept = block
        whole = moves.gather(own, again)
        given = iter(kept)
        shapes = zip(params, own, whole, again, strict=True)
        full = [next(given) if _is_kept(p, s, g) else w for p, s, w, g in shapes]
        # Traced once more for what it has of parameters alone; what depends on the
        # activations was saved, and computing it again is dead code.
        unread = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes_in)
        _, back, _ = differentiate(full, rest, unread)
        fresh, tree = jax.tree.flatten(back)
        stored = iter(saved)
        filled = [
            next(stored) if save else x for x, save in zip(fresh, saves, strict=True)
        ]
        gradients, cotangent = jax.tree.unflatten(tree, filled)(cotangent)
        return cotangent, moves.scatter(gradients)

    blocks = shards, dict(variables)
    y, (saved, kept, new) = lax.scan(forward, activations, blocks)

    def run_back(cotangent: Any) -> tuple[Arrays, Any]:
        slopes, others = partition_floats(cotangent)
        slopes, gradients = lax.scan(
            backward, slopes, (*blocks, saved, kept), reverse=True
        )
        return gradients, combine_floats(slopes, others)

    return ScannedRun(activations=y, variables=new, backward=run_back)


def _is_kept(whole: Any, shard: Any, gathered_again: bool) -> bool:
    """Return whether a gathered parameter is kept from forward to backward."""
    return whole.shape != shard.shape and not gathered_again


def _residual_saves(
    differentiate: Callable[..., Any],
    params: Sequence[Any],
    variables: Mapping[str, Any],
    activations: Any,
    again: Sequence[bool],
) -> list[bool]:
    """Tell which residuals of a block's gradient depend on what is not there later."""

    def residuals(params: Arrays, variables: Any, x: Any) -> Any:
        return jax.tree.leaves(differentiate(params, variables, x)[1])

    jaxpr = jax.make_jaxpr(residuals)(list(params), dict(variables), activations).jaxpr
    count = len(jaxpr.outvars)

    def depends(out: int) -> bool:
        _, used = partial_eval.dce_jaxpr(jaxpr, [i == out for i in range(count)])
        # Of variables too: masks of dropout are drawn once.
        return any(used[len(params) :])

    return [depends(out) for out in range(count)]


def stack_blocks(scan: BlockScan, leaves: Sequence[jax.Array]) -> Arrays:
    """Stack the parameters of the blocks of a loop.

    Args:
        scan: the loop.
        leaves: of all parameters, this device's part.
    """
    # Inside of the step: the state, checkpoints and optimizers know of leaves alone.
    return [jnp.stack([leaves[i] for i in each]) for each in scan.indices]


def block_function(scan: BlockScan, model: Any) -> tuple[BlockFn, Any]:
    """Return one block of a loop as a function, and the other arrays of all, stacked.

    Args:
        scan: the loop.
        model: the network inside a step, its layers bound.
    """
    blocks = dict(model.chain())
    graph, template = nnx.split(blocks[scan.blocks[0]])
    own = frozenset(scan.names)

    def others(block: nnx.Module) -> dict[str, jax.Array]:
        held = named_leaves(nnx.split(block)[1])
        return {name: x for name, x in held.items() if name not in own}

    rows = [others(blocks[name]) for name in scan.blocks]
    stacked = {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}

    def run(
        params: Arrays, variables: Mapping[str, jax.Array], x: Any
    ) -> tuple[Any, dict[str, jax.Array]]:
        given = dict(zip(scan.names, params, strict=True)) | dict(variables)
        block: Any = nnx.merge(graph, replace_leaves(template, given), copy=True)
        # The loop's body bears the name of the first block.
        with jax.named_scope(scan.blocks[0]):
            y = block(x)
        after = named_leaves(nnx.state(block, nnx.Variable))
        return y, {name: after[name] for name in variables if name in after}

    return run, stacked
