"""Blockwise: the blocks of an experiment's network, to be timed one by one."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxdist.calibrate.blocks import BlockCase
from jaxdist.core.cluster.block_timings import block_signature
from jaxdist.core.profile import Profile
from jaxdist.launch.config import Experiment
from jaxdist.launch.training.job.abstract_step import (
    abstract_task,
    bind_dropout_rng,
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
    """List the blocks of an experiment's network, those of equal layers once.

    Args:
        config: checked settings.
        divisors: into which samples are divided.
        max_flops: FLOPs of the largest that is timed.

    Returns:
        None where the network is no chain.

    Raises:
        BadInput: data that the network cannot be trained on.
    """
    task, shapes = abstract_task(config)
    profile = profile_task(task, shapes, config.model.name)
    if not profile.blocks:
        return ()
    found = {
        (subject.key, subject.samples): subject
        for part in divisors
        for subject in _iter_block_cases(task, _divide_batch(shapes, part), profile)
        if subject.flops <= max_flops
    }
    return tuple(found.values())


def _divide_batch(shapes: BatchShapes, divisor: int) -> BatchShapes:
    """Return the shapes of a part of a batch, of one sample at least."""
    return {
        key: jax.ShapeDtypeStruct(
            (max(1, x.shape[0] // divisor), *x.shape[1:]), x.dtype
        )
        for key, x in shapes.items()
    }


def _iter_block_cases(
    task: Task, shapes: BatchShapes, profile: Profile
) -> Iterator[BlockCase]:
    """Yield the blocks of a network in order, each on what the one before hands on."""
    owned = _block_param_indices(task)
    given = jax.eval_shape(partial(model_inputs, task), dict(shapes))
    carried: Any = (given if len(given) > 1 else given[0]), ()
    for block in profile.blocks:
        last = block is profile.blocks[-1]
        scored = dict(shapes) if last else {}
        floats = 0 if block is profile.blocks[0] else len(jax.tree.leaves(carried))
        call = _BlockCall(
            task, block.name, owned[block.name], (carried, scored), floats
        )
        samples = shapes["id"].shape[0]
        yield BlockCase(
            key=block_signature(profile, block.name),
            samples=samples,
            flops=block.flops_forward * samples / profile.batch,
            fn=call,
            weights=call.weights,
            float_inputs=call.float_inputs,
            other_inputs=call.other_inputs,
        )
        carried = jax.eval_shape(
            call, call.weights, call.float_inputs, call.other_inputs
        )


class _BlockCall:
    """A block as a function of what has gradients, and of the rest."""

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
        self.weights = tuple(
            _compute_shape(params[k], task.dtype) for k in param_indices
        )

    def __call__(
        self, weights: Sequence[Any], slopes: Sequence[Any], rest: Sequence[Any]
    ) -> Any:
        """Return what the block hands on, the loss behind the last."""
        state, left = self.task.state, {True: iter(slopes), False: iter(rest)}
        own = dict(zip(self.param_indices, weights, strict=True))
        model: Any = merge_model(
            self.task,
            fill_with_zeros(state.params, own),
            fill_with_zeros(state.stats, {}),
        )
        carried, scored = jax.tree.unflatten(
            self.input_structure, [next(left[has]) for has in self.has_gradient]
        )
        model.train()
        bind_dropout_rng(model, len(jax.tree.leaves(carried)[0]))
        after = run_blocks(model, (self.name,), carried)
        if not scored:
            return after
        return self.task.objective.losses(network_outputs(after), scored).mean()


def _block_param_indices(task: Task) -> dict[str, list[int]]:
    """Return the places of the parameters that each block uses, by its name."""
    network = task_network(task)
    leaves = [
        id(variable_by_name(network, name)) for name in leaf_names(task.state.params)
    ]
    return {
        block: [place for place, leaf in enumerate(leaves) if leaf in used]
        for block, used in variable_ids_by_block(network)
    }


def _compute_shape(x: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    """Return the shape of a parameter as it is used: matrices in the task's dtype."""
    own = dtype if dtype is not None and len(x.shape) > 1 else x.dtype
    return jax.ShapeDtypeStruct(x.shape, own)
