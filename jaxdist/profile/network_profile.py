"""Profile of a network: parameters, FLOPs and activations by layer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import jax
from flax import nnx

from jaxdist.core.profile import BlockProfile, LayerProfile, Profile
from jaxdist.profile.flops import sum_by_layer
from jaxdist.profile.repeated_blocks import (
    NetworkHook,
    RepeatedBlocks,
    find_repeated_blocks,
)
from jaxdist.profile.trace import modules_by_path, trace_network

NO_CHAIN_NOTE: Final = "none: the network has no chain() of named blocks"
"""Why a network cannot be cut."""

NO_MODULES_NOTE: Final = "none: a block of chain() is no module of the network"
"""The same of a chain of plain functions."""


@dataclass(frozen=True, kw_only=True)
class NetworkStructure:
    """The modules, blocks and arrays of a network."""

    name: str
    """Name of its class."""
    module_classes: Mapping[str, str]
    """Class of each module, by path."""
    block_paths: Mapping[str, str]
    """Path of each block, by its name; empty where it cannot be cut."""
    note: str
    """Why it cannot be cut."""
    weight_shapes: Mapping[str, tuple[int, ...]]
    """Shape of the largest trainable array of each module that holds one, by path."""
    param_counts: Counter[str]
    """Trainable numbers, by the path of the module that holds them."""
    param_bytes: Counter[str]
    """Their bytes."""
    state_bytes: Counter[str]
    """Bytes of running statistics."""
    filled_shares: Mapping[str, float]
    """The share of the rows of a module that stand for tokens, by path, of modules that
    pad theirs: experts with a capacity."""


def profile_network(
    network: nnx.Module,
    inputs: Sequence[jax.ShapeDtypeStruct],
    *,
    name: str = "",
    prepare: NetworkHook = lambda network: None,
    repeated_blocks: RepeatedBlocks | None = None,
) -> Profile:
    """Read what one training step of a network costs on one device.

    The step is the network alone: its forward pass in training mode, and the gradient
    of the sum of its outputs with respect to its parameters. Loss and optimizer are
    not in it.

    Args:
        network: abstract (made under `nnx.eval_shape`) or real; not changed.
        inputs: shapes and dtypes of what it is called on, the batch first.
        name: what to call it; empty takes the name of its class.
        prepare: called on the traced network before it runs, to bind noise to it.
        repeated_blocks: blocks that need not be read; none: they are looked for.

    Raises:
        ValueError: a layer returns nothing, because its input is too small.
    """
    # Blocks that repeat are traced once: minutes become seconds for deep networks.
    if repeated_blocks is None:
        repeated_blocks = find_repeated_blocks(network, inputs, prepare)
    structure = inspect_network(network)
    title = name or structure.name
    traced = trace_network(repeated_blocks.shorten(network), inputs, prepare)
    # A stride or window larger than the image leaves arrays of no rows.
    for path, size in traced.output_bytes.items():
        if not size:
            raise ValueError(f"{path} returns nothing: its input is too small")

    # A row for every path that holds or does something, in order of use.
    forward, both = (
        sum_by_layer(
            jaxpr, structure.module_classes, structure.block_paths, repeated_blocks
        )
        for jaxpr in (traced.forward, traced.forward_backward)
    )
    layers = []
    for path in dict.fromkeys(
        (*forward.flops, *both.flops, *structure.module_classes, "")
    ):
        # Work that no module does is the network's own, or that of a plain function.
        other = "function" if path else structure.name
        inside = (
            block
            for block, at in structure.block_paths.items()
            if f"{path}.".startswith(f"{at}.")
        )
        row = LayerProfile(
            name=path or structure.name,
            kind=structure.module_classes.get(path, other),
            # A layer that blocks share is the first user's.
            block=next(inside, "") or both.blocks.get(path, ""),
            parameters=structure.param_counts[path],
            parameter_bytes=structure.param_bytes[path],
            state_bytes=structure.state_bytes[path],
            flops_forward=forward.flops[path],
            # What the gradient adds: its trace contains the forward pass.
            # The scopes of one trace do not tell recomputation from the first pass.
            flops_backward=both.flops[path] - forward.flops[path],
            output_bytes=forward.output_bytes[path],
            inner_bytes=forward.inner_bytes[path],
            input_bytes=forward.input_bytes[path],
            weights=structure.weight_shapes.get(path, ()),
        )
        # Containers do nothing by themselves, and would only lengthen the list.
        if row.parameters or row.state_bytes or row.flops or row.output_bytes:
            layers.append(row)

    # A block's row sums its layers; its output is what a cut behind it would send.
    outputs, passed = (
        {
            name: size
            for name, _, size in repeated_blocks.expand_results(
                [(n, sizes[n]) for n in repeated_blocks.traced_names if n in sizes]
            )
        }
        | sizes
        for sizes in (traced.output_bytes, traced.passed_bytes)
    )
    blocks = []
    for block, path in structure.block_paths.items():
        own = [row for row in layers if row.block == block]
        blocks.append(
            BlockProfile(
                name=block,
                kind=structure.module_classes[path],
                block=block,
                parameters=sum(row.parameters for row in own),
                parameter_bytes=sum(row.parameter_bytes for row in own),
                state_bytes=sum(row.state_bytes for row in own),
                flops_forward=sum(row.flops_forward for row in own),
                flops_backward=sum(row.flops_backward for row in own),
                output_bytes=outputs.get(path, 0),
                inner_bytes=sum(row.inner_bytes for row in own),
                cut_after=block != list(structure.block_paths)[-1],
                passed_bytes=passed.get(path, 0),
            )
        )
    return Profile(
        model=title,
        inputs=tuple(f"{x.dtype}{list(x.shape)}".replace(" ", "") for x in inputs),
        batch=inputs[0].shape[0],
        layers=tuple(layers),
        blocks=tuple(blocks),
        note=structure.note,
        padding_flops=sum(
            round((1 - structure.filled_shares.get(row.name, 1.0)) * row.flops)
            for row in layers
        ),
    )


def inspect_network(network: nnx.Module) -> NetworkStructure:
    """List a network's modules, blocks and arrays."""
    modules, made = modules_by_path(network), cast("Any", network)
    blocks: dict[str, str] = {}
    note = "" if hasattr(made, "chain") else NO_CHAIN_NOTE
    if not note:
        # By identity: two blocks may be equal, but only one lies at a path.
        paths = {id(module): path for path, module in modules.items()}
        blocks = {name: paths.get(id(block), "") for name, block in made.chain()}
        if not all(blocks.values()):
            blocks, note = {}, NO_MODULES_NOTE
    params, statistics = _arrays(network, modules)
    counts, sizes, states = Counter[str](), Counter[str](), Counter[str]()
    for path, x in params:
        counts[path] += int(x.size)
        sizes[path] += int(x.size) * x.dtype.itemsize
    for path, x in statistics:
        states[path] += int(x.size) * x.dtype.itemsize
    # The largest array of a path comes last, and stays.
    shapes = {p: x.shape for p, x in sorted(params, key=lambda each: each[1].size)}
    return NetworkStructure(
        name=type(network).__name__,
        module_classes={path: type(m).__name__ for path, m in modules.items()},
        block_paths=blocks,
        note=note,
        weight_shapes=shapes,
        param_counts=counts,
        param_bytes=sizes,
        state_bytes=states,
        filled_shares={
            path: share
            for path, module in modules.items()
            if (share := getattr(module, "filled_share", 1.0)) < 1
        },
    )


def _arrays(
    network: nnx.Module, modules: Mapping[str, Any]
) -> list[list[tuple[str, Any]]]:
    """List parameters and statistics, each with the path of the module it is of."""
    *states, _ = nnx.split_state(nnx.state(network), nnx.Param, nnx.BatchStat, ...)
    lists = []
    for state in states:
        found = list[tuple[str, Any]]()
        for path, variable in nnx.to_flat_state(state):
            # The innermost module on the way to the variable holds it.
            words = [".".join(map(str, path[:n])) for n in range(len(path), -1, -1)]
            holder = next((word for word in words if word in modules), "")
            found += [(holder, leaf) for leaf in jax.tree.leaves(variable)]
        lists.append(found)
    return lists
