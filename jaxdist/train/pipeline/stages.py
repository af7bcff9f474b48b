"""A task's network cut into pipeline stages, with the slots of their parameters."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import jax
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import Gather, bind
from jaxdist.layers.tensor_role import Roles, role_key
from jaxdist.partition.gradient_buckets import compression_predicate
from jaxdist.pipeline.stage_parameters import assign_slots
from jaxdist.pipeline.stages import Stages, cut_network, variable_ids
from jaxdist.profile.layer_calls import LayerCall
from jaxdist.profile.network_profile import profile_network
from jaxdist.profile.repeated_blocks import RepeatedBlocks
from jaxdist.profile.trace import TraceCache
from jaxdist.train.sharded_norms import is_masked, leaves_with_masked
from jaxdist.train.state import TrainState
from jaxdist.train.state_layout import LeafStateLayout, SlotStateLayout

InputShapes = Sequence[jax.ShapeDtypeStruct]

# Compressors whose result depends on where a leaf ends, and why.
_PER_LEAF_ALGORITHMS: Final = MappingProxyType(
    {
        "power": "PowerSGD packs the matrix of each leaf",
        "sign": "a sign has no zero",
    }
)


def cut_into_stages(
    plan: Plan,
    network: Any,
    inputs: InputShapes,
    trace_cache: TraceCache,
    repeated_blocks: RepeatedBlocks,
) -> Stages:
    """Cut a network into the stages of a plan.

    Args:
        plan: the layout.
        network: network on shapes.
        inputs: shapes of its arguments.
        trace_cache: traces of the network, for other layouts.
        repeated_blocks: equal blocks, of which one is traced.

    Raises:
        BadInput: it cannot be cut so, or not together with other settings of the plan.
    """
    algorithm = plan.reduce.algorithm
    if plan.replicas > 1:
        raise BadInput(
            "plan.mesh.replica does not go with stages",
            rule="replicas with an outer loop have the whole network each",
            values=f"plan.mesh.pipe = {plan.mesh.pipe}, "
            f"plan.mesh.replica = {plan.mesh.replica}",
            remedy=("plan.mesh.replica=1", "plan.mesh.pipe=1"),
        )
    if algorithm in _PER_LEAF_ALGORITHMS:
        raise BadInput(
            f"plan.reduce.algorithm = {algorithm} does not go with stages",
            rule=f"{_PER_LEAF_ALGORITHMS[algorithm]}; in stages gradients of several "
            "leaves lie in one array, and the shorter ones are filled up with zeros",
            values=f"plan.mesh.pipe = {plan.mesh.pipe}, "
            f"plan.reduce.algorithm = {algorithm}",
            remedy=("plan.reduce.algorithm=int8", "plan.mesh.pipe=1"),
        )
    if plan.pipe.flows and algorithm not in ("exact", "auto"):
        raise BadInput(
            f"plan.reduce.algorithm = {algorithm} does not go with "
            f"{plan.pipe.schedule}",
            rule="gradients that move the weights one by one are summed exactly",
            values=f"plan.pipe.schedule = {plan.pipe.schedule}, "
            f"plan.reduce.algorithm = {algorithm}",
            remedy=("plan.reduce.algorithm=exact", "plan.pipe.schedule=1f1b"),
        )

    # Where the plan does not say where to cut, stages have equal FLOPs, those of one
    # sample: more samples have as many times the FLOPs, but for what is done once for
    # all.
    def block_flops() -> Mapping[str, int]:
        one = [jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) for x in inputs]
        profile = profile_network(
            network,
            one,
            prepare=constant_rng_binder(one),
            repeated_blocks=repeated_blocks,
        )
        return {block.name: block.flops for block in profile.blocks}

    return cut_network(
        plan, network, lambda: trace_cache.get_or_compute("work", block_flops)
    )


def build_slot_layout(
    plan: Plan,
    stages: Stages,
    network: Any,
    state: TrainState,
    leaves: LeafStateLayout,
    trace_cache: TraceCache,
) -> SlotStateLayout:
    """Assign the leaves of a network to slots on the devices of their stages.

    Args:
        plan: the layout.
        stages: stages of the network.
        network: network on shapes.
        state: shapes of the task's state.
        leaves: how they are split over the other axes.
        trace_cache: traces of the network, for other layouts.

    Raises:
        BadInput: the optimizer tells parameters apart.
    """
    # A slot has a leaf of every stage, whatever the optimizer would do with each.
    if trace_cache.get_or_compute(
        "masked", lambda: any(map(is_masked, leaves_with_masked(state.opt)))
    ):
        raise BadInput(
            "stages cannot move parameters by several optimizers",
            rule="in a pipeline an optimizer treats all matrices alike, and all "
            "vectors; optim.name=muon, optax.masked and optax.partition do not",
            values=f"plan.mesh.pipe = {plan.mesh.pipe}",
            remedy=("optim.name=adamw", "plan.mesh.pipe=1 plan.mesh.fsdp=N"),
        )
    kinds = leaves.param_shardings, leaves.stat_shardings

    def leaf_stages() -> list[tuple[frozenset[int], ...]]:
        """Return the stages that use each parameter, and each statistic."""
        by_block = trace_cache.get_or_compute(
            "variables", lambda: dict(variable_ids_by_block(network))
        )
        stages_of: dict[int, set[int]] = {}
        for stage, blocks in enumerate(stages.blocks):
            for variable in (each for block in blocks for each in by_block[block]):
                stages_of.setdefault(variable, set()).add(stage)
        return [
            tuple(
                frozenset(stages_of.get(id(variable_by_name(network, leaf.name)), ()))
                for leaf in kind
            )
            for kind in kinds
        ]

    users = trace_cache.get_or_compute(("users", stages.blocks), leaf_stages)

    def assign() -> SlotStateLayout:
        # Statistics are never compressed.
        compressed = (compression_predicate(plan), lambda leaf: False)
        params, stats = (
            assign_slots(plan, kind, used, stages.placement, sent)
            for kind, used, sent in zip(kinds, users, compressed, strict=True)
        )
        return SlotStateLayout(
            stages=stages,
            param_slots=params,
            stat_slots=stats,
            leaf_stages=(users[0], users[1]),
            tree_structures=(
                jax.tree.structure(state.params),
                jax.tree.structure(state.stats),
            ),
        )

    # Neither schedule nor microbatches change them: only the plan's mesh is read.
    key = ("slots", plan.mesh, plan.reduce, stages, leaves)
    return trace_cache.get_or_compute(key, assign)


def device_calls(
    stages: Stages, network: Any, calls: Sequence[LayerCall], device: int
) -> Iterator[LayerCall]:
    """Yield the layer calls of a device's stages."""
    heads = network.heads() if hasattr(network, "heads") else {}
    after = {name: block for block, (name, _) in heads.items()}
    stages_of = {n: k for k, names in enumerate(stages.blocks) for n in names}
    own, stage = stages.placement.stages_of(device), 0
    for call in calls:
        layer, first = call.layer, call.path.split(".")[0]
        # Images are gathered in the stage of the block that they enter whole.
        first = layer.until if isinstance(layer, Gather) else first
        # Calls are in order, and so are stages: a table that the last block uses as
        # well as the first is called by the last block's stage there.
        stage = max(stage, stages_of[after.get(first, first)])
        if stage in own:
            yield call


def equal_call_blocks(
    calls: Sequence[LayerCall], roles: Roles, repeated_blocks: RepeatedBlocks
) -> dict[str, str]:
    """Return the blocks whose layers a step calls and splits as those of another block.

    Args:
        calls: of the network's layers, on one microbatch.
        roles: what layers do with the tensor axis.
        repeated_blocks: equal blocks, of which one is traced.

    Returns:
        That other block, by the block's name.
    """
    own: dict[str, list[tuple[int, LayerCall]]] = defaultdict(list)
    for place, call in enumerate(calls):
        own[call.path.partition(".")[0]].append((place, call))

    def form(block: str) -> list[dict[str, Any]]:
        # All of a call but the names of its layer, and which call reads its input
        # first by their distance.
        start = own[block][0][0] if own[block] else 0
        return [
            {
                **vars(call),
                "path": call.path.removeprefix(block),
                "input_call": call.input_call - start,
                "role": roles.get(role_key(call.path, call.method)),
                "weights": roles.get(call.path),
            }
            for _, call in own[block]
        ]

    models = repeated_blocks.representatives
    forms = {block: form(block) for block in {*models, *models.values()}}
    return {name: one for name, one in models.items() if forms[name] == forms[one]}


def variable_ids_by_block(network: Any) -> Iterator[tuple[str, set[int]]]:
    """Yield each block with the ids of the variables that it and its head use."""
    heads = network.heads() if hasattr(network, "heads") else {}
    for name, block in network.chain():
        found = variable_ids(block)
        if name in heads:
            found |= variable_ids(heads[name][1])
        yield name, found


def variable_by_name(network: Any, name: str) -> Any:
    """Return the variable of a network whose leaf has this name."""
    # Lists of layers are indexed by number, and layers by attribute.
    node = network
    for part in name.split("/"):
        node = getattr(node, part) if hasattr(node, part) else node[int(part)]
    return node


def constant_rng_binder(inputs: InputShapes) -> Callable[[nnx.Module], None]:
    """Return a function that binds constant noise to a network, to trace it."""
    import numpy as np

    ids = np.arange(inputs[0].shape[0], dtype=np.int32)
    return lambda network: bind(network, jax.random.key(0), jax.numpy.asarray(ids))
