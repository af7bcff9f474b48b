"""Rematerialization: the inside of a block is computed again in the backward pass.

Of the forward pass only the outputs of blocks are kept, and those of collectives, which
never run twice: a plan's communication is the same with and without.

Blocks in a loop that are not rematerialized keep what costs more to compute than to
keep: the results of products, of attention and of collectives. What follows from those
element by element, such as norms and activation functions, is computed again.

A plan may end rematerialization before a block. The insides of that one and of those
after it, which the backward pass reads first, are kept then. It may keep the outputs of
some layers of blocks that are computed again, and have activations of blocks in loops
wait in the host's memory: they are copied there behind the computing of the forward
loop, and back behind that of the backward loop.

Sources: Chen et al. 2016, arXiv:1604.06174, "Training Deep Nets with Sublinear Memory
Cost", section 4: here a segment is a block. Wahib et al. 2020, arXiv:2008.11421, KARMA:
the last blocks stay, and what is not computed again is swapped out and in.
"""

import fnmatch
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any, Final

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxdist.core.array_tags import DROPOUT_MASK, INNER_ACTIVATION, MOVED_ROWS
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.instance_methods import wrap_method
from jaxdist.core.plan import Plan
from jaxdist.pipeline.stages import BlockNames, network_outputs
from jaxdist.pipeline.stages import run as run_blocks
from jaxdist.profile.flops import walk_jaxpr
from jaxdist.train.block_scan import BlockFn
from jaxdist.train.materialize_params import network_state

ModelFactory = Callable[[Any, Any], Any]
"""Maps parameters and statistics to a new network that is ready to be called."""

# Checkpoint names of activations, and the primitives that move bytes.
_SAVED: Final = "saved"
_OFFLOADED: Final = "offloaded"
_offload: Final = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=(),
    names_which_can_be_offloaded=(_OFFLOADED,),
    offload_src="device",
    offload_dst="pinned_host",
)
"""A policy that has jax copy activations to the host, and back."""
_ELEMENTWISE: Final = frozenset(
    (
        *("add", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "clamp"),
        *("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "cbrt", "pow"),
        *("integer_pow", "square", "tanh", "logistic", "erf", "erfc", "erf_inv"),
        *("sin", "cos", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor"),
        *("select_n", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze"),
        *("transpose", "split", "slice", "concatenate", "pad", "rev", "iota", "copy"),
        *("reduce_sum", "reduce_max", "reduce_min", "stop_gradient", "random_bits"),
        *("random_fold_in", "random_wrap", "random_unwrap", "threefry2x32"),
        *("shift_right_logical", "shift_left", "shift_right_arithmetic"),
    )
)
"""Primitives of which a result costs about as much to read as to compute, and those of
random numbers, of which the mask is kept."""
_TOKEN_DIMS: Final = 3
"""Samples, tokens, features."""
_COLLECTIVES: Final = frozenset(
    ("psum", "pmax", "ppermute", "all_gather", "reduce_scatter", "all_to_all")
)


def check_remat(plan: Plan, model: Any) -> None:
    """Check that a network has the named blocks that a plan needs.

    Args:
        plan: a plan with rematerialization.
        model: the network.

    Raises:
        BadInput: it has no `chain()`, no such block, or nothing is before it.
    """
    if not hasattr(model, "chain"):
        raise BadInput(
            f"{type(model).__name__} has no blocks to compute again",
            rule="plan.remat needs a network with chain(), its named blocks in order",
            values=f"plan.remat = True, {type(model).__name__} has no chain()",
            remedy="plan.remat=false",
        )
    blocks, until = [name for name, _ in model.chain()], plan.remat_end
    if not until or until in blocks[1:]:
        return
    near = did_you_mean(until, blocks[1:])
    meant = [f"did you mean plan.remat_end={near}?"] if near else []
    if until == blocks[0]:
        meant = ["plan.remat=false keeps the insides of all blocks"]
    raise BadInput(
        f"blocks cannot be computed again until {until}",
        rule="plan.remat_end names a block of the network, and not the first",
        values=f"the blocks are {', '.join(blocks)}",
        remedy=(*meant, "plan.remat_end= computes all again"),
    )


def check_activation_patterns(
    plan: Plan, paths: Sequence[str], looped: Container[str]
) -> None:
    """Check that the activations that a plan names are there.

    Args:
        plan: the layout.
        paths: of the network's layers and blocks.
        looped: names of the blocks that run as loops.

    Raises:
        BadInput: a pattern matches no layer, or none of a block in a loop.
    """
    if not plan.remat_saves and not plan.offload:
        return
    for key, patterns in (("remat_saves", plan.remat_saves), ("offload", plan.offload)):
        for pattern in patterns:
            found = fnmatch.filter(paths, pattern)
            if not found:
                ends = dict.fromkeys(path.rpartition(".")[2] for path in paths)
                near = did_you_mean(pattern.rpartition(".")[2], [*ends, *paths])
                raise BadInput(
                    f"no layer is at {pattern}",
                    rule=f"plan.{key} are patterns of paths of layers, separated by "
                    "commas",
                    values=f"plan.{key} has {pattern!r}; the network has {paths[0]}, "
                    f"..., {paths[-1]}",
                    remedy=f"plan.{key}=*{near}" if near else f"plan.{key}=",
                )
            if key == "offload" and not any(p.split(".")[0] in looped for p in found):
                raise BadInput(
                    f"no activation of {pattern} can be moved to the host",
                    rule="plan.offload is for consecutive equal blocks, which run as a "
                    "loop, of a network without stages",
                    values=f"plan.offload has {pattern!r}, which is {found[0]}; "
                    f"plan.mesh.pipe = {plan.mesh.pipe}",
                    remedy=("plan.offload=", "plan.remat=true"),
                )


def call_model(
    plan: Plan, factory: ModelFactory, params: Any, stats: Any, inputs: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Call a network inside a function that `maybe_checkpoint` returns.

    Args:
        plan: says which blocks are rematerialized.
        factory: constructor of the network, with its activations tagged.
        params: its parameters.
        stats: its running statistics.
        inputs: its arguments.

    Returns:
        The outputs, and the new statistics.
    """
    model = factory(params, stats)
    if not plan.remat_end:
        return model(*inputs), network_state(model, stats)
    # Blocks are run one by one, so that some can be inside of a checkpoint.
    blocks = tuple(name for name, _ in model.chain())
    carried = (inputs if len(inputs) > 1 else inputs[0]), ()
    again = partial_remat_blocks(plan, blocks)
    carried, new = run_with_partial_remat(
        factory, blocks, again, (params, stats), carried
    )
    return network_outputs(carried), new


def maybe_checkpoint(plan: Plan, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss function with the rematerialization of a plan.

    Args:
        plan: says which blocks are rematerialized.
        loss_fn: calls the network by `call_model` or `run_with_partial_remat`.
    """
    whole = plan.remat and not plan.remat_end
    return checkpoint_blocks(loss_fn) if whole else loss_fn


def partial_remat_blocks(plan: Plan, blocks: BlockNames) -> BlockNames:
    """Return the blocks that are rematerialized, where others are not."""
    return plan.remade(blocks) if plan.remat_end else ()


def run_with_partial_remat(
    factory: ModelFactory,
    blocks: BlockNames,
    remat_blocks: Container[str],
    variables: Any,
    activations: Any,
) -> tuple[Any, Any]:
    """Run consecutive blocks, and keep the insides of the last ones alone.

    Args:
        factory: constructor of their network, with its activations tagged
            rematerialized.
        blocks: names of the blocks, in order.
        remat_blocks: blocks to rematerialize; others come after them.
        variables: parameters of the network, and running statistics.
        activations: outputs of the block before the first.

    Returns:
        The outputs of the last block, and the new statistics.
    """

    def run(
        names: BlockNames, params: Any, stats: Any, carried: Any
    ) -> tuple[Any, Any]:
        model = factory(params, stats)
        # The output of the last one is kept by the block that reads it.
        tag_block_outputs(model, names[:-1] if names == first else ())
        return run_blocks(model, names, carried), network_state(model, stats)

    params, stats = variables
    # Two parts, since a policy is asked about a primitive, and not told whose it is.
    first = tuple(name for name in blocks if name in remat_blocks)
    if first:
        activations, stats = checkpoint_blocks(partial(run, first))(
            params, stats, activations
        )
    if rest := blocks[len(first) :]:
        activations, stats = run(rest, params, stats, activations)
    return activations, stats


def tag_activations(plan: Plan, model: Any, looped: Container[str] = ()) -> None:
    """Tag the activations that a plan keeps or offloads; in place.

    Args:
        plan: says which.
        model: the network inside a step, its layers bound.
        looped: names of the blocks that run as loops, of which alone activations are
            offloaded.
    """
    if plan.remat and not plan.remat_end:
        # With an end of rematerialization `run_with_partial_remat` tags them.
        tag_block_outputs(model, [name for name, _ in model.chain()])
    if not plan.remat_saves and not plan.offload:
        return
    for path, layer in [*nnx.iter_modules(model)]:
        action = plan.memory_action(".".join(map(str, path)))
        if not action or not path or not callable(layer):
            continue
        if action == "save":
            wrap_method(layer, _call_tags(outputs=_SAVED))
        # Of unrolled blocks a compiler would fetch everything at once.
        elif path[0] in looped:
            # What a block returns is what the loop gives to the next.
            which = "inputs" if len(path) == 1 else "outputs"
            wrap_method(layer, _call_tags(**{which: _OFFLOADED}))


def tag_block_outputs(model: Any, blocks: Container[str]) -> None:
    """Tag what blocks make, so that checkpoints keep it; in place."""

    def named(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        # What a block hands on as it got it, such as a skip, has its name already: by
        # another one it would be kept twice.
        passed = jax.tree.leaves((args, kwargs))

        def tagged(x: Any) -> Any:
            return x if any(x is y for y in passed) else checkpoint_name(x, _SAVED)

        return jax.tree.map(tagged, call(self, *args, **kwargs))

    for block in [block for name, block in model.chain() if name in blocks]:
        wrap_method(block, named)


def _call_tags(*, inputs: str = "", outputs: str = "") -> Callable[..., Any]:
    """Return a wrapper of calls that names what a layer is called on, or returns."""

    def tagged(tree: Any, tag: str) -> Any:
        return jax.tree.map(lambda x: checkpoint_name(x, tag), tree) if tag else tree

    def named(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return tagged(call(self, *tagged(args, inputs), **kwargs), outputs)

    return named


def memory_actions(plan: Plan, name: str, block: nnx.Module) -> tuple[Any, ...]:
    """Return what a plan says of the activations of a block, in the order of layers.

    Args:
        plan: the layout.
        name: the block's name in its network.
        block: the block.
    """
    return tuple(
        plan.memory_action(".".join((name, *map(str, path))))
        for path, _ in nnx.iter_modules(block)
    )


def checkpoint_elementwise(block_fn: BlockFn) -> BlockFn:
    """Return a block in a loop, as a function that keeps no elementwise results."""

    def run(*args: Any) -> tuple[Any, Any]:
        traced = jax.make_jaxpr(block_fn)(*args).jaxpr
        named = [u.eqn for u in walk_jaxpr(traced) if u.eqn.primitive.name == "name"]
        tags = {eqn.params["name"] for eqn in named}
        # Attention that is written out has a softmax inside, of tokens x tokens, which
        # is elementwise as well and costs too much to compute again.
        written_out = INNER_ACTIVATION in tags
        if written_out and _OFFLOADED not in tags:
            return block_fn(*args)

        def is_saveable(primitive: Any, *avals: Any, **params: Any) -> Any:
            if primitive.name == "name" and params["name"] == _OFFLOADED:
                return _offload(primitive, *avals, **params)
            if primitive.name == "name":
                return params["name"] in (DROPOUT_MASK, INNER_ACTIVATION)
            # Scores have a dim more than tokens with their features.
            is_score = written_out and any(x.ndim > _TOKEN_DIMS for x in avals)
            return is_score or primitive.name not in _ELEMENTWISE

        # Forward and backward pass are two loops, so that the compiler cannot take one
        # result for both, and needs no barriers against it.
        kept = jax.checkpoint(block_fn, policy=is_saveable, prevent_cse=False)
        out: tuple[Any, Any] = kept(*args)
        return out

    return run


def checkpoint_blocks(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that keeps only tagged outputs and those of collectives."""
    kept: Callable[..., Any] = jax.checkpoint(loss_fn, policy=_is_saveable)
    return kept


def _moves_rows(*, call_jaxpr: Any, **others: Any) -> bool:
    """Tell whether a function with a gradient of its own is no collective."""
    del others
    names = (u.eqn.params for u in walk_jaxpr(call_jaxpr.jaxpr))
    return any(params.get("name") == MOVED_ROWS for params in names)


def _is_saveable(primitive: Any, *avals: Any, **params: Any) -> Any:
    if primitive.name == "name" and params["name"] == _OFFLOADED:
        return _offload(primitive, *avals, **params)
    if primitive.name == "name":
        return params["name"] == _SAVED
    # A collective with a gradient of its own is in the trace under this name.
    own = primitive.name.startswith("custom_vjp_call") and not _moves_rows(**params)
    # Results of collectives are kept: running them twice would move the bytes twice.
    return own or primitive.name in _COLLECTIVES
