"""A device's share of the loss and its gradients, piece by piece of the network.

A network without loops over equal blocks is one piece, the loss included. With loops
its chain is cut at them: pieces run forward in order and backward in reverse, each from
the cotangent of what it returned.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxdist.partition.gradient_buckets import GradientReduction
from jaxdist.pipeline.stages import BlockNames, network_outputs
from jaxdist.profile.xla_cpu.backward_reads import saved_constants, saved_leaves
from jaxdist.train.block_scan import (
    BlockScan,
    ParamMovement,
    block_function,
    scan_blocks,
    stack_blocks,
)
from jaxdist.train.layout import Layout
from jaxdist.train.materialize_params import (
    frozen_arrays,
    gather_leaves,
    gather_params,
    merge_model,
    model_inputs,
    prevent_cse,
    select_local_samples,
    with_frozen,
)
from jaxdist.train.objective import Batch
from jaxdist.train.remat import (
    call_model,
    checkpoint_blocks,
    checkpoint_elementwise,
    maybe_checkpoint,
    partial_remat_blocks,
    run_with_partial_remat,
    tag_activations,
)
from jaxdist.train.state import TrainState, named_leaves, replace_leaves

Gradients = dict[int, jax.Array]
"""Gradients by the index of the parameter."""
Backward = Callable[[Any], tuple[Gradients, Any]]
"""Maps the cotangent of what a piece returned to gradients and the cotangent of what it
was given."""


def local_gradients(
    layout: Layout,
    reduction: GradientReduction,
    state: TrainState,
    stats: Any,
    batch: Batch,
) -> tuple[jax.Array, Any, list[jax.Array]]:
    """Return this device's share of the loss, new statistics, and its gradients.

    Args:
        layout: layout without stages.
        reduction: how gradients are summed; those of blocks in loops are scattered
            there.
        state: this device's state.
        stats: its running statistics.
        batch: this device's samples.

    Returns:
        Gradients in the order of the parameters: whole, but shards of those of blocks
        that run as loops.
    """
    network = _LocalNetwork(layout, reduction, state, stats, batch)
    backward: list[Backward] = []
    result: Any = model_inputs(layout.task, batch)
    for piece in network.pieces:
        # What enters the first piece is the batch, which has no gradient.
        first = not backward
        if isinstance(piece, BlockScan):
            result, stats, back = network.scan(piece, stats, result, first=first)
        else:
            result, stats, back = network.run(piece, stats, result, first=first)
        backward.append(back)
    loss, cotangent = result, jnp.ones_like(result)
    gradients: Gradients = {}
    for back in reversed(backward):
        own, cotangent = back(cotangent)
        for i, x in own.items():
            # Tables that pieces share have a gradient of each.
            gradients[i] = gradients[i] + x if i in gradients else x
    return loss, stats, [gradients[i] for i in range(network.trained)]


class _LocalNetwork:
    """The network of one step on one device, as pieces of its chain."""

    def __init__(
        self,
        layout: Layout,
        reduction: GradientReduction,
        state: TrainState,
        stats: Any,
        batch: Batch,
    ) -> None:
        self.layout, self.reduction, self.batch = layout, reduction, batch
        self.step = state.step
        # Of seed and step alone, so that a resumed run draws the same noise.
        self.key = jax.random.fold_in(jax.random.key(layout.task.seed), state.step)
        self.held, self.tree = jax.tree.flatten(state.params)
        # Frozen parameters that fsdp shards are gathered as the others, so they follow
        # them here; they are no arguments of gradients.
        self.trained = len(self.held)
        self.frozen = frozen_arrays(layout, stats)
        self.held = [*self.held, *self.frozen]
        if layout.gathers_params and layout.task.microbatches > 1:
            # XLA would gather them once, before the loop over microbatches, and keep
            # them; so they are made to depend on the samples of each.
            self.held = prevent_cse(self.held, batch["id"][0], batch["id"])
        looped = layout.scanned_params
        self.unlooped = [i for i in range(len(self.held)) if i not in looped]
        self.codec = layout.reduction.gather_compressor
        # A loop gathers the parameters of its blocks in its body, block by block.
        whole = [i not in looped for i in range(len(self.held))]
        self.params = gather_params(layout, self.held, self.codec, whole)
        self.pieces = tuple(_iter_pieces(layout))
        # What the backward pass reads of gathered parameters, by index.
        self.again: Gradients = {i: self.params[i] for i in layout.kept_params}

    def make(self, leaves: Sequence[jax.Array], stats: Any) -> Any:
        """Return the network with these parameters, ready to be called."""
        layout = self.layout
        params = jax.tree.unflatten(self.tree, leaves[: self.trained])
        stats = with_frozen(layout, stats, leaves[self.trained :])
        model = merge_model(layout.task, params, stats)
        model.train()
        layout.bind_layers(model, self.key, self.batch["id"], is_scored=True)
        looped = {block for scan in layout.block_scans for block in scan.blocks}
        tag_activations(layout.plan, model, looped)
        return model

    def run(
        self, piece: BlockNames | None, stats: Any, given: Any, *, first: bool
    ) -> tuple[Any, Any, Backward]:
        """Run blocks one after the other, and the loss behind the last piece.

        Args:
            piece: names of the blocks; None for the whole network, in one call.
            stats: running statistics.
            given: what the piece before returned, or the network's inputs.
            first: whether no piece is before it.

        Returns:
            Activations, or this device's share of the loss; new statistics; backward.
        """
        layout, plan = self.layout, self.layout.plan
        last = piece == self.pieces[-1]

        wrt = [i for i in self.unlooped if i < self.trained]

        def call(own: list[jax.Array], given: Any) -> tuple[Any, Any]:
            # Those of loops are still shards here, and no block of this piece reads
            # them.
            leaves = list(self.params)
            for i, x in zip(wrt, own, strict=True):
                leaves[i] = x
            if piece is None:
                outputs, new = call_model(plan, self.make, leaves, stats, given)
            else:
                x = (given if len(given) > 1 else given[0]) if first else given
                again = partial_remat_blocks(plan, layout.blocks)
                carried, new = run_with_partial_remat(
                    self.make, piece, again, (leaves, stats), (x, ())
                )
                outputs = network_outputs(carried)
            if not last:
                return outputs, new
            outputs, batch = select_local_samples(plan, outputs, self.batch)
            # A share of the loss: the rule of gradients is in jaxdist/train/step.py.
            mean = layout.objective.mean_loss(outputs, batch)
            return mean / plan.mesh.size(*plan.sum_axes), new

        used = [self.params[i] for i in wrt]
        args = (used,) if first else (used, given)
        fixed = partial(call, given=given) if first else call
        result: Any
        result, vjp, new = jax.vjp(maybe_checkpoint(plan, fixed), *args, has_aux=True)
        new = with_frozen(layout, new, self.frozen)

        def backward(cotangent: Any) -> tuple[Gradients, Any]:
            self._gather_again(vjp, result if last else cotangent)
            own, *before = vjp(cotangent)
            return dict(zip(wrt, own, strict=True)), before and before[0]

        return result, new, backward

    def scan(
        self, piece: BlockScan, stats: Any, given: Any, *, first: bool
    ) -> tuple[Any, Any, Backward]:
        """Run equal blocks as a loop; arguments and results as of `run`."""
        layout, reduction = self.layout, self.reduction
        if first:
            given = given if len(given) > 1 else given[0]
        block_fn, variables = block_function(piece, self.make(self.params, stats))
        again = piece.blocks[0] in layout.plan.remade(layout.blocks)
        block_fn = (checkpoint_blocks if again else checkpoint_elementwise)(block_fn)
        # The blocks of a loop are sharded alike.
        dims = [layout.gather_dims[each[0]] for each in piece.indices]
        trained = tuple(each[0] < self.trained for each in piece.indices)
        gathers = layout.gathers_params

        def gather(
            shards: list[jax.Array], needed: Sequence[bool] | None
        ) -> list[jax.Array]:
            return gather_leaves(layout, shards, dims, self.codec, needed)

        def scatter(gradients: list[jax.Array]) -> list[jax.Array]:
            own = [dim for dim, moves in zip(dims, trained, strict=True) if moves]
            return reduction.scatter(gradients, own)

        shards = stack_blocks(piece, self.held)
        moves = ParamMovement(
            gather=gather,
            scatter=scatter if layout.shards_params else list,
            # Stacked, a matrix has three dims; vectors are small and kept.
            gathers_again=tuple(
                gathers and dim is not None and x.ndim > 2
                for dim, x in zip(dims, shards, strict=True)
            ),
            trained=trained,
        )
        done = scan_blocks(block_fn, shards, variables, given, moves)

        def backward(cotangent: Any) -> tuple[Gradients, Any]:
            stacked, cotangent = done.backward(cotangent)
            moved = [each for each in piece.indices if each[0] < self.trained]
            gradients = {
                i: x[row]
                for each, x in zip(moved, stacked, strict=True)
                for row, i in enumerate(each)
            }
            return gradients, cotangent

        known = named_leaves(stats)
        moved = {
            name: x[row]
            for inner, x in done.variables.items()
            for row, block in enumerate(piece.blocks)
            if (name := f"{block}/{inner}") in known
        }
        return done.activations, replace_leaves(stats, known | moved), backward

    def _gather_again(self, vjp: Any, dependency: Any) -> None:
        """Replace gathered matrices that a piece has kept by second copies; in place.

        Gathered parameters are dropped after their use, and gathered once more for the
        backward pass where it reads them. Vectors, which are small, are kept.
        """
        if not self.layout.gathers_params:
            return
        fixed = [i for i in self.unlooped if i >= self.trained]
        kept = saved_constants(vjp, [self.params[i] for i in fixed])
        reads = dict(zip(self.unlooped, (*saved_leaves(vjp), *kept), strict=True))
        wanted = [reads.get(i, False) and x.ndim > 1 for i, x in enumerate(self.held)]
        missing = [want and i not in self.again for i, want in enumerate(wanted)]
        if any(missing):
            # Not before the backward pass has come here, or both copies would be held.
            (after, *_) = jax.tree.leaves(dependency)
            copies = gather_params(
                self.layout,
                prevent_cse(self.held, self.step, after),
                self.codec,
                missing,
            )
            self.again |= {i: copies[i] for i, miss in enumerate(missing) if miss}
        # What jax.vjp keeps of its arguments. A checkpoint policy would not drop the
        # first copy on all backends (docs/adr/0013).
        vjp.args_res[0] = [
            self.again[i] if wanted[i] else was
            for i, was in zip(self.unlooped, vjp.args_res[0])
        ]
        fresh = {id(self.params[i]): self.again[i] for i in fixed if wanted[i]}
        vjp.opaque_residuals[:] = [fresh.get(id(x), x) for x in vjp.opaque_residuals]


def _iter_pieces(layout: Layout) -> Iterator[BlockNames | BlockScan | None]:
    """Yield the loops of a chain, and what is before, between and behind them."""
    if not layout.block_scans:
        yield None
        return
    names = layout.blocks
    for scan in layout.block_scans:
        start = names.index(scan.blocks[0])
        if before := names[:start]:
            yield before
        yield scan
        names = names[start + len(scan.blocks) :]
    # The loss is behind the last block, also where no block is left.
    yield names
