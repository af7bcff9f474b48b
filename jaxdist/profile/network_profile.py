"""Reading a profile: what each layer of a network holds and does, nothing computed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
from flax import nnx

from jaxdist.core.profile import BlockProfile, LayerProfile, Profile
from jaxdist.profile.jaxpr_walk import LayerTotals, sum_by_layer
from jaxdist.profile.repeated_blocks import RepeatedBlocks, find_repeated_blocks
from jaxdist.profile.scopes import modules_by_path
from jaxdist.profile.trace import NetworkHook, trace_network

NO_CHAIN_NOTE: Final = "none: the network has no chain() of named blocks"
"""What is said of a network that cannot be cut."""

NO_MODULES_NOTE: Final = "none: a block of chain() is no module of the network"
"""The same of a chain of plain functions."""


@dataclass(frozen=True, kw_only=True)
class NetworkStructure:
    """What a network is made of."""

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

    def block_name(self, path: str) -> str:
        """Return the block that a module lies in, or nothing."""
        held = (
            n for n, at in self.block_paths.items() if f"{path}.".startswith(f"{at}.")
        )
        return next(held, "")


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
    same = (
        find_repeated_blocks(network, inputs, prepare)
        if repeated_blocks is None
        else repeated_blocks
    )
    anatomy = inspect_network(network)
    traced = trace_network(
        same.shorten(network) if same.representatives else network, inputs, prepare
    )
    for path, size in traced.output_bytes.items():
        if not size:
            raise ValueError(f"{path} returns nothing: its input is too small")
    layers = _layers(
        anatomy,
        sum_by_layer(traced.forward, anatomy.module_classes, anatomy.block_paths, same),
        sum_by_layer(
            traced.forward_backward, anatomy.module_classes, anatomy.block_paths, same
        ),
    )
    return Profile(
        model=name or anatomy.name,
        inputs=tuple(f"{x.dtype}{list(x.shape)}".replace(" ", "") for x in inputs),
        batch=inputs[0].shape[0],
        layers=layers,
        blocks=_blocks(anatomy, layers, _expand_returned(same, traced.output_bytes)),
        note=anatomy.note,
    )


def inspect_network(network: nnx.Module) -> NetworkStructure:
    """List a network's modules, blocks and arrays."""
    found = modules_by_path(network)
    chain, note = _chain(network, found)
    params = list(_arrays(network, nnx.Param, found))
    return NetworkStructure(
        name=type(network).__name__,
        module_classes={path: type(module).__name__ for path, module in found.items()},
        block_paths=chain,
        note=note,
        weight_shapes={
            p: x.shape for p, x in sorted(params, key=lambda each: each[1].size)
        },
        param_counts=_sum_by_path((path, x.size) for path, x in params),
        param_bytes=_sum_by_path((path, _bytes(x)) for path, x in params),
        state_bytes=_sum_by_path(
            (path, _bytes(x)) for path, x in _arrays(network, nnx.BatchStat, found)
        ),
    )


def _chain(network: Any, found: Mapping[str, nnx.Module]) -> tuple[dict[str, str], str]:
    """Find the blocks between which the network may be cut."""
    if not hasattr(network, "chain"):
        return {}, NO_CHAIN_NOTE
    paths = {id(module): path for path, module in found.items()}
    blocks = {name: paths.get(id(block), "") for name, block in network.chain()}
    return (blocks, "") if all(blocks.values()) else ({}, NO_MODULES_NOTE)


def _arrays(
    network: nnx.Module, kind: type, found: Mapping[str, Any]
) -> Iterable[tuple[str, Any]]:
    """Yield the arrays of a kind, each with the path of the module that holds it."""
    for path, variable in nnx.to_flat_state(nnx.state(network, kind)):
        words = [".".join(map(str, path[:n])) for n in range(len(path), -1, -1)]
        holder = next((word for word in words if word in found), "")
        yield from ((holder, leaf) for leaf in jax.tree.leaves(variable))


def _layers(
    anatomy: NetworkStructure, forward: LayerTotals, both: LayerTotals
) -> tuple[LayerProfile, ...]:
    """Write a row for every path that holds or does something, in order of use."""
    order = dict.fromkeys((*forward.flops, *both.flops, *anatomy.module_classes, ""))
    rows = (
        LayerProfile(
            name=path or anatomy.name,
            kind=anatomy.module_classes.get(
                path, anatomy.name if not path else "function"
            ),
            block=anatomy.block_name(path) or both.blocks.get(path, ""),
            parameters=anatomy.param_counts[path],
            parameter_bytes=anatomy.param_bytes[path],
            state_bytes=anatomy.state_bytes[path],
            flops_forward=forward.flops[path],
            flops_backward=both.flops[path] - forward.flops[path],
            output_bytes=forward.output_bytes[path],
            inner_bytes=forward.inner_bytes[path],
            weights=anatomy.weight_shapes.get(path, ()),
        )
        for path in order
    )
    return tuple(row for row in rows if _is_nonempty(row))


def _is_nonempty(row: LayerProfile) -> bool:
    held = row.parameters or row.state_bytes
    return bool(held or row.flops or row.output_bytes)


def _expand_returned(
    alike: RepeatedBlocks, returned: Mapping[str, int]
) -> dict[str, int]:
    """Return the bytes that blocks return, those of blocks that were not read too."""
    each = [(name, returned[name]) for name in alike.traced_names if name in returned]
    every = {name: size for name, _, size in alike.expand_results(each)}
    return {**returned, **every}


def _blocks(
    anatomy: NetworkStructure,
    layers: Sequence[LayerProfile],
    returned: Mapping[str, int],
) -> tuple[BlockProfile, ...]:
    """Sum the layers of each block; all but the last may be cut after."""
    names = tuple(anatomy.block_paths)
    return tuple(
        _sum_block(
            BlockProfile(
                name=name,
                kind=anatomy.module_classes[path],
                block=name,
                output_bytes=returned.get(path, 0),
                cut_after=name != names[-1],
            ),
            [row for row in layers if row.block == name],
        )
        for name, path in anatomy.block_paths.items()
    )


def _sum_block(block: BlockProfile, layers: Sequence[LayerProfile]) -> BlockProfile:
    """Fill a block with the sums of its layers."""
    sums = (
        "parameters",
        "parameter_bytes",
        "state_bytes",
        "flops_forward",
        "flops_backward",
        "inner_bytes",
    )
    totals = {name: sum(getattr(row, name) for row in layers) for name in sums}
    return replace(block, **totals)


def _sum_by_path(pairs: Iterable[tuple[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for path, number in pairs:
        total[path] += int(number)
    return total


def _bytes(array: Any) -> int:
    return int(array.size) * array.dtype.itemsize
