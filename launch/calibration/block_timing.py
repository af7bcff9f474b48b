"""The blocks of an experiment's network, as functions that are timed one by one."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxdist.calibrate.blocks import BlockCase
from jaxdist.core.cluster.kernel_timings import block_signature
from jaxdist.launch.config import Experiment
from jaxdist.launch.training.job.abstract_step import (
    bind_dropout_rng,
    fit_batch_shapes,
    make_abstract_task,
    profile_task,
)
from jaxdist.launch.training.job.job import task_network
from jaxdist.pipeline.stages import network_outputs
from jaxdist.pipeline.stages import run as run_blocks
from jaxdist.train.layout import BatchShapes
from jaxdist.train.materialize_params import merge_model, model_inputs
from jaxdist.train.pipeline.stages import variable_by_name, variable_ids_by_block
from jaxdist.train.pipeline.sync_gradients import fill_with_zeros
from jaxdist.train.state import leaf_names
from jaxdist.train.task import Task


def network_block_cases(
    config: Experiment, divisors: Sequence[int], max_flops: float
) -> tuple[BlockCase, ...]:
    """List the blocks of an experiment's network to be timed, equal ones once.

    Args:
        config: checked settings.
        divisors: parts of the batch on which blocks are timed: 4 is a quarter of it.
        max_flops: FLOPs of the largest block that is timed.

    Returns:
        Nothing where the network is no chain of blocks.

    Raises:
        BadInput: data that the network cannot be trained on.
    """
    # Nothing is read or initialised: shapes and structure are enough to compile.
    sized, shapes, _ = fit_batch_shapes(config)
    task = make_abstract_task(sized)
    profile = profile_task(task, shapes, config.model.name)
    if not profile.blocks:
        return ()
    # Places of the parameters that each block uses: shared ones are of several blocks.
    network = task_network(task)
    leaves = [
        id(variable_by_name(network, name)) for name in leaf_names(task.state.params)
    ]
    owned = {
        block: [place for place, leaf in enumerate(leaves) if leaf in used]
        for block, used in variable_ids_by_block(network)
    }
    found: dict[tuple[Any, float], BlockCase] = {}
    for divisor in divisors:
        part: BatchShapes = {
            key: jax.ShapeDtypeStruct(
                (max(1, x.shape[0] // divisor), *x.shape[1:]), x.dtype
            )
            for key, x in shapes.items()
        }
        samples = part["id"].shape[0]
        given = jax.eval_shape(partial(model_inputs, task), dict(part))
        carried: Any = (given if len(given) > 1 else given[0]), ()
        for block in profile.blocks:
            # The first block's inputs are samples, which need no gradient; the last
            # block is timed with the loss.
            floats = 0 if block is profile.blocks[0] else len(jax.tree.leaves(carried))
            scored = dict(part) if block is profile.blocks[-1] else {}
            call = _BlockCall(
                task, block.name, owned[block.name], (carried, scored), floats
            )
            inputs = call.weights, call.float_inputs, call.other_inputs
            # Shapes alone: nothing is computed here, and no weights are made.
            carried = jax.eval_shape(call, *inputs)
            flops = block.flops_forward * samples / profile.batch
            # Blocks of equal layers and shapes take equally long, whatever their names.
            key = block_signature(profile, block.name)
            if flops <= max_flops:
                found[key, samples] = BlockCase(
                    key=key,
                    samples=samples,
                    flops=flops,
                    fn=call,
                    weights=call.weights,
                    float_inputs=call.float_inputs,
                    other_inputs=call.other_inputs,
                )
    return tuple(found.values())


class _BlockCall:
    """A block as a function of weights and inputs with gradients, and of the others."""

    def __init__(
        self,
        task: Task,
        name: str,
        param_indices: Sequence[int],
        inputs: Any,
        floats: int,
    ) -> None:
        self.task, self.name, self.param_indices = task, name, param_indices
        leaves, self.input_structure = jax.tree.flatten(inputs)
        # Samples, positions and labels have no gradient, though some are floats.
        self.has_gradient = [
            k < floats and bool(jnp.issubdtype(x.dtype, jnp.floating))
            for k, x in enumerate(leaves)
        ]
        both = list(zip(leaves, self.has_gradient, strict=True))
        self.float_inputs = tuple(x for x, has in both if has)
        self.other_inputs = tuple(x for x, has in both if not has)
        params = jax.tree.leaves(task.state.params)
        # Matrices are cast to the dtype of the task before they are used, vectors not.
        cast = task.dtype is not None
        self.weights = tuple(
            jax.ShapeDtypeStruct(
                x.shape, task.dtype if cast and len(x.shape) > 1 else x.dtype
            )
            for x in (params[k] for k in param_indices)
        )

    def __call__(
        self, weights: Sequence[Any], slopes: Sequence[Any], rest: Sequence[Any]
    ) -> Any:
        """Return the outputs of the block; of the last block the loss."""
        state, left = self.task.state, {True: iter(slopes), False: iter(rest)}
        # Parameters of other blocks are zeros, which the compiler removes: the block is
        # timed with its own weights alone.
        own = dict(zip(self.param_indices, weights, strict=True))
        model: Any = merge_model(
            self.task,
            fill_with_zeros(state.params, own),
            fill_with_zeros(state.stats, {}),
        )
        carried, scored = jax.tree.unflatten(
            self.input_structure, [next(left[has]) for has in self.has_gradient]
        )
        # Dropout and batch statistics cost time: blocks are timed as in training.
        model.train()
        bind_dropout_rng(model, len(jax.tree.leaves(carried)[0]))
        # The same call as in a pipeline's stage, so that both take equally long.
        after = run_blocks(model, (self.name,), carried)
        if not scored:
            return after
        return self.task.objective.losses(network_outputs(after), scored).mean()
