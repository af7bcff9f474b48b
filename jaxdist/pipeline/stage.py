"""A stage as a function on one device, and what is known of it before it runs."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxdist.pipeline import flat_messages
from jaxdist.pipeline.flat_messages import FlatTreeSpec
from jaxdist.pipeline.schedule_arrays import ScheduleArrays
from jaxdist.pipeline.stage_parameters import SlotArrays, SlotLayout

Microbatch = Mapping[str, jax.Array]
"""A microbatch: arrays of its samples by name."""

LeavesByIndex = Mapping[int, jax.Array]
"""Parameters or statistics by their places in the network's order."""

StageFn = Callable[[LeavesByIndex, LeavesByIndex, Any, Microbatch], Any]
"""`(parameters, statistics, carried, part) -> (carried, new statistics)`; of the last
stage the first result is the share of the loss, or scores.
"""


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One stage as functions on one device."""

    index: int
    """From 0."""
    device: int
    """A device along the pipe axis that has it; its replicas hold the same leaves."""
    forward: StageFn
    """Its forward pass."""
    param_indices: tuple[int, ...]
    """Places of the parameters that it uses."""
    stat_indices: tuple[int, ...]
    """Places of its running statistics."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A table and the stages that it moves."""

    stages: tuple[PipelineStage, ...]
    """In order."""
    schedule_arrays: ScheduleArrays
    """Who does what when."""
    param_slots: SlotLayout
    """How parameters lie."""
    stat_slots: SlotLayout
    """How running statistics lie."""
    compute_dtype: Any
    """Dtype in which matrices are used; None is their own."""

    def stage_params(
        self, stage: PipelineStage, slot_arrays: SlotArrays
    ) -> dict[int, jax.Array]:
        """Return a stage's parameters as they are used."""
        own = self.param_slots.own(slot_arrays, stage.device)
        return {
            place: _cast_matrix(own[place], self.compute_dtype)
            for place in stage.param_indices
        }

    def stage_stats(
        self, stage: PipelineStage, slot_arrays: SlotArrays
    ) -> dict[int, jax.Array]:
        """Return a stage's running statistics."""
        own = self.stat_slots.own(slot_arrays, stage.device)
        return {place: own[place] for place in stage.stat_indices}

    def stage_function(
        self,
        stage: PipelineStage,
        static: Any,
        stats: LeavesByIndex,
        microbatch: Microbatch,
    ) -> Callable[..., Any]:
        """Return a stage as a function of what it has gradients of.

        Returns:
            `(parameters, slopes) -> (what it hands on that has gradients, (all that it
            hands on, new statistics))`.
        """

        def call(leaves: LeavesByIndex, slopes: list[jax.Array]) -> Any:
            out, new = stage.forward(
                leaves, stats, combine_floats(slopes, static), microbatch
            )
            last = stage is self.stages[-1]
            return out if last else partition_floats(out)[0], (out, new)

        return call


@dataclass(frozen=True, kw_only=True)
class StageTrace:
    """What is known of a stage before it runs."""

    stage: PipelineStage
    """The stage."""
    input_spec: FlatTreeSpec
    """What it is called on."""
    output_spec: FlatTreeSpec
    """What it returns."""
    residual_spec: FlatTreeSpec
    """What its forward pass keeps for the backward pass; nothing where there is none.
    """
    vjp_fn: Any = None
    """Its backward pass, to be filled with arrays; None where there is none."""

    @property
    def cotangent_spec(self) -> FlatTreeSpec:
        """What comes back as the gradient of what it is called on."""
        return cotangent_spec(self.input_spec)


def cotangent_spec(spec: FlatTreeSpec) -> FlatTreeSpec:
    """Return the form of the gradient of a tree: that of its floats."""
    return flat_messages.flat_tree_spec(partition_floats(spec.abstract_tree)[0])


def trace_stages(
    pipe: Pipeline,
    params: SlotArrays,
    stats: SlotArrays,
    microbatches: Microbatch,
    *,
    with_gradients: bool,
) -> Iterator[StageTrace]:
    """Trace every stage on shapes, in order; inside a `shard_map`.

    Args:
        pipe: the stages.
        params: what this device holds.
        stats: its running statistics.
        microbatches: microbatches, [M, b, ...].
        with_gradients: whether there are backward passes.
    """
    part = {key: x[0] for key, x in microbatches.items()}
    takes = flat_messages.flat_tree_spec(())
    for stage in pipe.stages:
        found: list[Any] = []

        def probe(
            given: Any, stage: PipelineStage = stage, found: list[Any] = found
        ) -> Any:
            slopes, others = partition_floats(given[0])
            run = pipe.stage_function(
                stage, others, pipe.stage_stats(stage, stats), given[1]
            )
            leaves = pipe.stage_params(stage, params)
            if not with_gradients:
                return run(leaves, slopes)[1][0], ()
            _, back, (out, _) = jax.vjp(run, leaves, slopes, has_aux=True)
            found.append(back)
            return out, vjp_residuals(back)

        out, kept = jax.eval_shape(probe, (takes.abstract_tree, part))
        gives = flat_messages.flat_tree_spec(out)
        yield StageTrace(
            stage=stage,
            input_spec=takes,
            output_spec=gives,
            residual_spec=flat_messages.flat_tree_spec(kept),
            vjp_fn=found[0] if found else None,
        )
        takes = gives


def vjp_residuals(vjp_fn: Any) -> Any:
    """Return what a backward pass of `jax.vjp` keeps besides its function's arguments.

    Arguments are there anyway: parameters, and what arrived from the stage before.
    """
    return vjp_fn.opaque_residuals


def bind_vjp_residuals(vjp_fn: Any, residuals: Any, *primals: Any) -> Any:
    """Return a backward pass of other numbers.

    Args:
        vjp_fn: of a trace.
        residuals: what `vjp_residuals` returned in the forward pass.
        primals: those of the forward pass.
    """
    found = copy.copy(vjp_fn)
    found.opaque_residuals = residuals
    found.args_res = [
        _replace_arrays(old, jax.tree.leaves(new))
        for old, new in zip(vjp_fn.args_res, primals, strict=True)
    ]
    return found


def _replace_arrays(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Put arrays where a backward pass kept an argument; what it did not stays so."""
    kept = zip(old, new, strict=True)
    return [x if isinstance(was, jax.Array) else was for was, x in kept]


def partition_floats(pytree: Any) -> tuple[list[Any], Any]:
    """Part the floats of a tree, which have gradients, from the rest."""
    leaves, tree = jax.tree.flatten(pytree)
    smooth = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    slopes = [x for x, has in zip(leaves, smooth, strict=True) if has]
    rest = [None if has else x for x, has in zip(leaves, smooth, strict=True)]
    return slopes, (tree, rest)


def combine_floats(float_leaves: list[Any], static: Any) -> Any:
    """Put a tree together again that `partition_floats` has parted."""
    tree, rest = static
    floats = iter(float_leaves)
    return jax.tree.unflatten(tree, [next(floats) if x is None else x for x in rest])


def _cast_matrix(x: jax.Array, dtype: Any) -> jax.Array:
    return x.astype(dtype) if dtype is not None and x.ndim > 1 else x
