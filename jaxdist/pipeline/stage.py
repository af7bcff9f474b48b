"""Stages as functions on one device, and what tracing tells of them."""

import copy
from collections.abc import Callable, Iterator, Mapping
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
"""Parameters or statistics by their index in the network's order."""

StageFn = Callable[[LeavesByIndex, LeavesByIndex, Any, Microbatch], Any]
"""`(parameters, statistics, activations, microbatch) -> (activations, new statistics)`;
the last stage returns its share of the loss, or scores, for activations.
"""


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One stage as functions on one device."""

    index: int
    """From 0."""
    device: int
    """A device along the pipe axis that has it; replicas hold the same leaves."""
    forward: StageFn
    """The forward pass."""
    param_indices: tuple[int, ...]
    """Indices of the parameters that it uses."""
    stat_indices: tuple[int, ...]
    """Indices of its running statistics."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Stages and the schedule that runs them."""

    stages: tuple[PipelineStage, ...]
    """In order."""
    schedule_arrays: ScheduleArrays
    """Who does what when."""
    param_slots: SlotLayout
    """How parameters lie."""
    stat_slots: SlotLayout
    """How running statistics lie."""
    compute_dtype: Any
    """Dtype that matrices are cast to; None leaves them as they are."""

    def stage_params(
        self, stage: PipelineStage, slot_arrays: SlotArrays
    ) -> dict[int, jax.Array]:
        """Return a stage's parameters in the dtype of the computation."""
        own = self.param_slots.own(slot_arrays, stage.device)
        params = {place: own[place] for place in stage.param_indices}
        if self.compute_dtype is None:
            return params
        # Norms and biases stay in their own dtype: they are few, and precision matters.
        return {
            place: x.astype(self.compute_dtype) if x.ndim > 1 else x
            for place, x in params.items()
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
        """Return a stage as a function of its differentiable inputs.

        Returns:
            `(parameters, float inputs) -> (float outputs, (all outputs, new
            statistics))`.
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
    """Shapes of a stage, and its backward pass without arrays."""

    stage: PipelineStage
    """The stage."""
    input_spec: FlatTreeSpec
    """What it is called on."""
    output_spec: FlatTreeSpec
    """What it returns."""
    residual_spec: FlatTreeSpec
    """What its forward pass keeps for the backward pass, if there is one."""
    vjp_fn: Any = None
    """Its backward pass, to be bound to residuals; None where there is none."""

    @property
    def cotangent_spec(self) -> FlatTreeSpec:
        """The gradient that it sends back to the stage before."""
        return cotangent_spec(self.input_spec)


def cotangent_spec(spec: FlatTreeSpec) -> FlatTreeSpec:
    """Return the structure of the gradient of a tree: that of its floats."""
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
        params: of this device.
        stats: running statistics of this device.
        microbatches: microbatches, [M, b, ...].
        with_gradients: whether there are backward passes.
    """
    part = {key: x[0] for key, x in microbatches.items()}
    takes = flat_messages.flat_tree_spec(())
    for stage in pipe.stages:
        # `eval_shape` returns shapes alone, so the backward pass leaves by this list.
        found: list[Any] = []

        def probe(
            given: Any, stage: PipelineStage = stage, found: list[Any] = found
        ) -> Any:
            slopes, others = partition_floats(given[0])
            run = pipe.stage_function(
                stage, others, pipe.stage_stats(stage, stats), given[1]
            )
            leaves = pipe.stage_params(stage, params)
            # An evaluation has no residuals.
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
        # A stage receives exactly what the one before it sends.
        takes = gives


def vjp_residuals(vjp_fn: Any) -> Any:
    """Return what a `jax.vjp` function keeps besides its function's arguments.

    Arguments are at hand in the backward pass: parameters, and received activations.
    """
    return vjp_fn.opaque_residuals


def bind_vjp_residuals(vjp_fn: Any, residuals: Any, *primals: Any) -> Any:
    """Return a backward pass with the arrays of a forward pass.

    Args:
        vjp_fn: of a trace.
        residuals: what `vjp_residuals` returned in the forward pass.
        primals: those of the forward pass.
    """
    found = copy.copy(vjp_fn)
    found.opaque_residuals = residuals
    # Where the trace did not keep an argument it has a placeholder, which stays.
    found.args_res = [
        [
            new if isinstance(old, jax.Array) else old
            for old, new in zip(kept, jax.tree.leaves(primal), strict=True)
        ]
        for kept, primal in zip(vjp_fn.args_res, primals, strict=True)
    ]
    return found


def partition_floats(pytree: Any) -> tuple[list[Any], Any]:
    """Separate the floats of a tree, which have gradients, from the rest."""
    leaves, tree = jax.tree.flatten(pytree)
    smooth = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    # Integers, truth values and PRNG keys have no gradient: JAX would give them float0
    # cotangents, which cannot be sent.
    slopes = [x for x, has in zip(leaves, smooth, strict=True) if has]
    rest = [None if has else x for x, has in zip(leaves, smooth, strict=True)]
    return slopes, (tree, rest)


def combine_floats(float_leaves: list[Any], static: Any) -> Any:
    """Join what `partition_floats` has separated."""
    tree, rest = static
    floats = iter(float_leaves)
    return jax.tree.unflatten(tree, [next(floats) if x is None else x for x in rest])
