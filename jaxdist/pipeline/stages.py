"""Stages: the blocks of a network distributed along the pipe axis.

Stage k of a chain has the blocks from its cut to the next, and the auxiliary heads that
read them.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxdist.core.dtypes import MAX_VECTOR_ELEMENTS
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.pipeline import flat_messages
from jaxdist.pipeline.backward_split import BackwardSplit, split_backward
from jaxdist.pipeline.flat_messages import FlatTreeSpec
from jaxdist.pipeline.plan_schedule import StagePlacement, stage_placement
from jaxdist.pipeline.schedule_arrays import ScheduleArrays
from jaxdist.pipeline.stage_parameters import SlotArrays, SlotLayout

BlockNames = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stages:
    """A network cut into stages."""

    blocks: tuple[BlockNames, ...]
    """Names of the blocks of each stage, in order."""
    placement: StagePlacement
    """Where along the pipe axis they are."""

    @property
    def count(self) -> int:
        """Stages in all."""
        return len(self.blocks)

    def blocks_of(self, device: int) -> BlockNames:
        """Return the blocks of all stages of a device, in order."""
        held = self.placement.stages_of(device)
        return tuple(name for stage in held for name in self.blocks[stage])

    def stage_of(self, block: str) -> int:
        """Return the stage that has a block."""
        return next(k for k, names in enumerate(self.blocks) if block in names)


def cut_network(
    plan: Plan, network: Any, block_flops: Callable[[], Mapping[str, int]]
) -> Stages:
    """Cut a network into the stages of a plan.

    Args:
        plan: says where, or leaves it open: then the largest stage has as few FLOPs as
            possible.
        network: has a `chain()` of named blocks.
        block_flops: FLOPs of its blocks by name; called only where the plan leaves
            cuts open.

    Raises:
        BadInput: the network is no chain, a cut is before no block of it, or there are
            more stages than blocks.
    """
    chain = tuple(network.chain()) if hasattr(network, "chain") else ()
    if not chain or not all(isinstance(block, nnx.Module) for _, block in chain):
        raise BadInput(
            f"{type(network).__name__} cannot be cut into stages",
            rule="a network with stages has chain(): its blocks, which are modules, "
            "by name and in order",
            values=f"plan.mesh.pipe = {plan.mesh.pipe}",
            remedy=f"plan.mesh.data={plan.mesh.data * plan.mesh.pipe} plan.mesh.pipe=1",
        )
    names, cuts = tuple(name for name, _ in chain), plan.pipe.cuts
    _check_stage_count(plan, names)
    if cuts:
        starts = [_cut_index(cut, names) for cut in cuts]
        if sorted(starts) != starts:
            raise BadInput(
                "the cuts of the network are not in its order",
                rule="plan.pipe.cuts follows the order of the blocks",
                values=f"plan.pipe.cuts = {','.join(cuts)}",
                remedy=f"plan.pipe.cuts={','.join(names[i] for i in sorted(starts))}",
            )
    else:
        flops = block_flops()
        starts = balanced_cuts([flops[name] for name in names], plan.stages)
    parts = tuple(names[a:b] for a, b in itertools.pairwise([0, *starts, len(names)]))
    return Stages(blocks=parts, placement=stage_placement(plan))


def balanced_cuts(costs: Sequence[int], parts: int) -> list[int]:
    """Return the starts of all parts but the first that minimize the largest cost.

    >>> balanced_cuts([4, 1, 1, 2, 6], 3)
    [1, 4]
    """
    # Sums of FLOPs may exceed 64 bits, and only their order counts: the table of all
    # parts [start, end] has the places of its sums among each other.
    ends, sums = range(len(costs) + 1), [0, *itertools.accumulate(costs)]
    sizes = np.array([[max(0, sums[b] - sums[a]) for b in ends] for a in ends], object)
    _, places = np.unique(sizes, return_inverse=True)
    part = places.reshape(sizes.shape)
    never = 1 + int(part.max())
    part[np.tril_indices(len(sums))] = never

    # Dynamic program over prefixes, for one part more in each round: the cost of the
    # largest part, and the place of the prefix's starts in their lexical order, of
    # which the first of equal cost is taken.
    best = np.array([0, *[never] * len(costs)])
    lexical, chosen = np.zeros(len(sums), int), []
    for _ in range(parts):
        cost = np.maximum(best[:, None], part)
        start = (cost * len(sums) + lexical[:, None]).argmin(axis=0)
        best = cost[start, ends]
        _, lexical = np.unique(lexical[start] * len(sums) + start, return_inverse=True)
        chosen.append(start)
    starts, end = list[int](), len(costs)
    for start in reversed(chosen):
        end = int(start[end])
        starts.append(end)
    return starts[-2::-1]


def variable_ids(block: Any) -> set[int]:
    """Return the ids of the variables that a block reaches, shared ones included."""
    nodes = (node for _, node in nnx.iter_graph(block))
    return {id(node) for node in nodes if isinstance(node, nnx.Variable)}


def run(model: Any, blocks: BlockNames, activations: Any) -> Any:
    """Apply some blocks of a network to the activations of the block before them.

    Args:
        model: a chain; auxiliary heads, if any, are applied in training alone.
        blocks: names, of consecutive blocks.
        activations: (output of the block before, outputs of heads so far).

    Returns:
        The same after the last of the blocks.
    """
    x, others = activations
    # Auxiliary heads exist for their gradients alone (GoogLeNet), so evaluation skips
    # them.
    heads = model.heads() if hasattr(model, "heads") else {}
    if getattr(model, "deterministic", False):
        heads = {}
    for name, block in model.chain():
        if name not in blocks:
            continue
        with jax.named_scope(name):
            x = block(x)
        if name in heads:
            with jax.named_scope(heads[name][0]):
                others = (*others, heads[name][1](x))
    return x, others


def network_outputs(activations: Any) -> Any:
    """Return the outputs of a network from the activations of its last block."""
    x, others = activations
    return (x, *others) if others else x


def _cut_index(cut: str, names: Sequence[str]) -> int:
    if cut in names[1:]:
        return names.index(cut)
    near = did_you_mean(cut, names[1:])
    first = "; no stage begins before the first block" if cut == names[0] else ""
    raise BadInput(
        f"the network has no block {cut} to cut before",
        rule=f"plan.pipe.cuts names the first block of each later stage{first}",
        values=f"plan.pipe.cuts has {cut}; blocks: {', '.join(names)}",
        remedy=f"plan.pipe.cuts={near}" if near else "plan.pipe.cuts= balances FLOPs",
    )


def _check_stage_count(plan: Plan, names: BlockNames) -> None:
    """Refuse more stages than blocks, and cuts into other numbers of stages."""
    if plan.stages > len(names):
        # The remedy has to divide the stages that were asked for, so that chunks still
        # fit.
        fits = max(n for n in range(1, len(names) + 1) if not plan.stages % n)
        raise BadInput(
            "there are more stages than blocks",
            rule="a stage has at least one block",
            values=f"{plan.stages} stages, {len(names)} blocks: {', '.join(names)}",
            remedy=f"plan.mesh.pipe={fits} plan.pipe.chunks=1",
        )
    asked = len(plan.pipe.cuts)
    if asked and asked + 1 != plan.stages:
        raise BadInput(
            "the cuts make another number of stages than there are",
            rule="plan.pipe.cuts has a block for each of plan.mesh.pipe x "
            "plan.pipe.chunks stages but the first",
            values=f"plan.pipe.cuts = {','.join(plan.pipe.cuts)}: {asked + 1} stages; "
            f"{plan.title} has {plan.stages}",
            remedy=(
                "plan.pipe.cuts= balances FLOPs",
                f"plan.mesh.pipe={asked + 1} plan.pipe.chunks=1",
            ),
        )


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
    is_exchange_last: bool = False
    """Whether nothing is sent in a superstep before all its works are done."""
    max_vector_elements: int = MAX_VECTOR_ELEMENTS
    """Elements of a vector of messages or residuals, at most."""

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
            place: x.astype(self.compute_dtype)
            if x.ndim > 1 and jnp.issubdtype(x.dtype, jnp.floating)
            else x
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
    backward_split: BackwardSplit | None = None
    """The same in two parts; None where the schedule has them in one."""

    @property
    def cotangent_spec(self) -> FlatTreeSpec:
        """The gradient that it sends back to the stage before."""
        return cotangent_spec(self.input_spec)

    def require_split(self) -> BackwardSplit:
        """Return the backward pass in two parts, in a schedule that has them."""
        if self.backward_split is None:
            raise TypeError("the schedule has backward passes in one part")
        return self.backward_split

    def backward(
        self, residuals: Any, leaves: LeavesByIndex, slopes: Any, cotangent: Any
    ) -> tuple[Any, Any]:
        """Run the whole backward pass.

        Args:
            residuals: of the forward pass.
            leaves: parameters of the stage.
            slopes: its float inputs.
            cotangent: gradient of its float outputs.

        Returns:
            Gradients of the parameters, and of the float inputs.
        """
        back = bind_vjp_residuals(self.vjp_fn, residuals, leaves, slopes)
        found: tuple[Any, Any] = back(cotangent)
        return found


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
    # Microbatches have one shape: the first stands for all.
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
                return run(leaves, slopes)[1][0], (), ()
            smooth, back, (out, _) = jax.vjp(run, leaves, slopes, has_aux=True)
            found.append(back)
            return out, vjp_residuals(back), (leaves, slopes, smooth)

        out, kept, shapes = jax.eval_shape(probe, (takes.abstract_tree, part))
        gives = flat_messages.flat_tree_spec(out)
        trace = StageTrace(
            stage=stage,
            input_spec=takes,
            output_spec=gives,
            residual_spec=flat_messages.flat_tree_spec(kept),
            vjp_fn=found[0] if found else None,
        )
        if "weights" in pipe.schedule_arrays.kinds:
            split = split_backward(trace.backward, kept, *shapes)
            trace = replace(trace, backward_split=split)
        yield trace
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
    # The trace's own stays as it is, to be bound again.
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
