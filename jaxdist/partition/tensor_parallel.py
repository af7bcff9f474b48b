"""Tensor parallelism: the roles that a plan gives to layers, and their traffic.

A strategy gives every layer a role; what moves
follows from the role alone. For an output y of one device, forward and backward:

    filter       all-gather of y         reduce-scatter of its gradient
    channel      all-reduce of y         all-reduce of its gradient
    row          all-reduce of y         all-reduce of its gradient
    experts      all-reduce of y         all-reduce of its gradient
    vocabulary   all-reduce of y         all-reduce of its gradient
    logits       all-reduce of a row's largest and of two sums, of these two's gradients
    scatter      reduce-scatter of y     all-gather of its gradient
    combine      reduce-scatter of y     all-gather of its gradient
    lookup       reduce-scatter of y     all-gather of its gradient
    gather       all-gather of y         reduce-scatter of its gradient
    column, inner, own, whole layers     nothing

Tensor-parallel strategies (`plan.tensor_strategy`): the role of each layer.

pairs     the filters (columns) of one layer, then the channels (rows) of the layer that
          reads them: one sum forward, one backward. The features between the two divide
          over the tensor axis, heads undivided. Layers in no pair are split by filters
          where these divide, tables by rows; others stay whole. Where a network says
          which layer makes its logits (`LogitsLayer`), the loss takes them in slices.
          Shoeybi et al. 2019, arXiv:1909.08053, section 3; for convolutions the same.
sequence  as pairs, and between them each device has its own tokens, so norms, sums and
          dropout there are not repeated: a pair ends in a reduce-scatter, the next norm
          in an all-gather. Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.
filter    each device has a slice of every layer's filters: an all-gather of the output,
          a reduce-scatter of its gradient (an all-reduce in ParaDL, twice as much).
channel   each device has a slice of the channels that every layer but the first reads:
          an all-reduce of the output and of its gradient. Tables and LSTMs stay whole.
          Both: Kahira et al. 2021, arXiv:2104.09075, section 3.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from flax import nnx

from jaxdist.core.axes import position_axes
from jaxdist.core.block_protocol import (
    ColumnRowPair,
    LogitsLayer,
    ResidualStream,
    SingleLayerBlock,
)
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import LSTM, Conv, ConvTranspose, Embed, Experts, Gather, Linear
from jaxdist.layers.logits_product import chunk_count
from jaxdist.layers.pool import Pool
from jaxdist.layers.tensor_role import TENSOR_AXIS, Role, Roles, role_key
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.profile.layer_calls import LayerCall


@dataclass(frozen=True, kw_only=True)
class ShardableLayer:
    """One layer with weights that a tensor axis can split."""

    path: str
    """Where the layer is in the network."""
    layer: Any
    """The layer itself."""
    in_features: int
    """Channels of its input."""
    out_features: int
    """Filters; units of a recurrent layer; rows of a table."""
    groups: int = 1
    """Groups of channels; a filter reads one group."""
    tokens: int = 0
    """Tokens of a sample that a table is asked for; of positions, how many."""
    has_attend: bool = False
    """Whether its `attend` is called: likenesses of vectors to the rows of a table."""
    is_first: bool = False
    """Whether it reads the network's input."""


def shardable_layers(calls: Sequence[LayerCall]) -> tuple[ShardableLayer, ...]:
    """List the layers of a network that can be split, each once, in order."""
    found: dict[str, ShardableLayer] = {}
    for call in calls:
        layer: Any = call.layer
        if isinstance(layer, Embed):
            # So does a table of positions that is called on the places alone, [L].
            is_whole = layer.stays_whole or len(call.shape) < 2
            if call.method == "__call__" and not is_whole:
                found[call.path] = ShardableLayer(
                    path=call.path,
                    layer=layer,
                    in_features=layer.features,
                    out_features=layer.num_embeddings,
                    tokens=call.shape[-1],
                    is_first=call.is_first,
                )
        elif isinstance(layer, Conv | ConvTranspose | Linear | LSTM):
            units = layer.hidden if isinstance(layer, LSTM) else layer.out_features
            found[call.path] = ShardableLayer(
                path=call.path,
                layer=layer,
                in_features=layer.in_features,
                out_features=int(units),
                groups=getattr(layer, "feature_group_count", 1),
                is_first=call.is_first,
            )
    for call in calls:
        if call.method == "attend" and call.path in found:
            found[call.path] = replace(found[call.path], has_attend=True)
    return tuple(found.values())


def column_parallel_roles(
    shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
) -> Roles:
    """Split every layer by filters; an LSTM's units take all their gates with them.

    Raises:
        BadInput: a layer whose filters do not divide.
    """
    layers = [w for w in shardable if not isinstance(w.layer, Embed)]
    for w in layers:
        if not filters_divide(w, devices):
            works = max(
                n
                for n in range(1, devices)
                if all(filters_divide(each, n) for each in layers)
            )
            raise _uneven_split_error(w, "filters", w.out_features, devices, works)
    return {w.path: "filter" for w in layers}


def filters_divide(layer: ShardableLayer, devices: int) -> bool:
    """Tell whether each device gets as many filters, of whole groups or of one."""
    # A device may hold part of one group or several whole ones, never parts of two: its
    # filters then read one contiguous slice of channels.
    whole = layer.groups % devices == 0 or devices % layer.groups == 0
    return layer.out_features % devices == 0 and whole


def row_parallel_roles(
    shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
) -> Roles:
    """Split every layer behind the first by channels, within each of its groups.

    Raises:
        BadInput: a layer whose channels do not divide.
    """
    # A table has no channels to sum over, an LSTM sums over its own outputs; the first
    # layer has few channels (3 of an image).
    whole = Embed | LSTM
    layers = [w for w in shardable if not (w.is_first or isinstance(w.layer, whole))]
    channels = {w.path: w.in_features // w.groups for w in layers}
    for w in layers:
        if channels[w.path] % devices:
            works = max(
                n
                for n in range(1, devices)
                if all(count % n == 0 for count in channels.values())
            )
            raise _uneven_split_error(w, "channels", w.in_features, devices, works)
    return {w.path: "channel" for w in layers}


def megatron_roles(
    shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
) -> Roles:
    """Split pairs of layers by columns and rows, other layers by filters if they can.

    Raises:
        BadInput: a pair whose features do not divide.
    """
    by_path = {w.path: w for w in shardable}
    given: dict[str, Role] = {}
    for pair in iter_column_row_pairs(network):
        # A layer that is never called, or a second one in groups, ends no pair.
        called = all(path in by_path for path in (*pair.first, pair.last))
        if not called or by_path[pair.last].groups > 1:
            continue
        for path in pair.first:
            units = by_path[path].out_features // pair.unit
            _check_units(path, units, "heads" if pair.unit > 1 else "filters", devices)
            given[path] = "column"
        # The last layer sums over the split features, so its output is whole again.
        given[pair.last] = "row"
        given |= dict.fromkeys(pair.inner, "inner")

    given |= _expert_roles(network, devices)

    # Only the loss can use logits in slices; any other output must be gathered.
    declared = getattr(network, "answers", None)
    logits = (
        role_key(declared.layer, declared.method)
        if isinstance(declared, LogitsLayer)
        else ""
    )
    for w in shardable:
        if w.path in given:
            continue
        if isinstance(w.layer, Embed):
            if w.out_features % devices == 0:
                given[w.path] = "vocabulary"
                attend = role_key(w.path, "attend")
                if w.has_attend:
                    given[attend] = "logits" if attend == logits else "filter"
        elif filters_divide(w, devices):
            given[w.path] = "logits" if w.path == logits else "filter"
    return given


def _expert_roles(network: nnx.Module, devices: int) -> Roles:
    """Split each expert as a pair of its own, by hidden features.

    Raises:
        BadInput: hidden features that do not divide.
    """
    given: dict[str, Role] = {}
    for name, module in nnx.iter_modules(network):
        if isinstance(module, Experts):
            path = ".".join(map(str, name))
            _check_units(path, module.gate.shape[-1], "hidden features", devices)
            given[path] = "experts"
    return given


def _check_units(path: str, units: int, unit_name: str, devices: int) -> None:
    """Refuse a pair whose units between both layers do not divide over the devices."""
    if units % devices:
        works = max(n for n in range(1, devices) if units % n == 0)
        raise BadInput(
            f"{path} cannot be dealt out over {devices} devices",
            rule=f"the {unit_name} of a pair of layers divide over the tensor axis",
            values=f"{path} has {units} {unit_name}, plan.mesh.tensor = {devices}",
            remedy=f"plan.mesh.tensor={works}",
        )


def iter_column_row_pairs(network: nnx.Module) -> Iterator[ColumnRowPair]:
    """Yield the pairs that modules declare, and those of units in chains."""
    # Declared, not looked for in a trace: a mistake there is silently wrong numbers.
    for path, module in nnx.iter_modules(network):
        name = ".".join(map(str, path))
        # Pairs are declared relative to their module.
        for pair in getattr(module, "pairs", ()):
            yield pair.under(name)
        if not hasattr(module, "chain"):
            continue
        # Units of one layer that follow each other make a pair, each used once. Only
        # pools may lie between: they treat each channel by itself, so slices will do.
        first: tuple[str, SingleLayerBlock] | None = None
        pools: list[str] = []
        for key, block in module.chain():
            unit = getattr(block, "unit", None)
            if first is not None and isinstance(unit, SingleLayerBlock):
                before, column = first
                pair = ColumnRowPair(
                    first=(f"{before}.{column.weights}",),
                    last=f"{key}.{unit.weights}",
                    inner=(
                        *(f"{before}.{part}" for part in column.behind),
                        *pools,
                        *(f"{key}.{part}" for part in unit.before),
                    ),
                )
                yield pair.under(name)
                first = None
            elif isinstance(unit, SingleLayerBlock):
                first, pools = (key, unit), []
            elif first is not None and isinstance(block, Pool):
                pools.append(key)
            else:
                first = None


def sequence_parallel_roles(
    shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
) -> Roles:
    """Split pairs, and the tokens of a sample between them.

    Raises:
        BadInput: no stream of tokens, tokens or a pair that do not divide.
    """
    stream = getattr(network, "stream", None)
    if not isinstance(stream, ResidualStream):
        raise BadInput(
            "the network has no tokens to split between its layers",
            rule="plan.tensor_strategy=sequence is for networks of tokens",
            values=f"{type(network).__name__} says of no layers that tokens are apart",
            remedy="plan.tensor_strategy=pairs",
        )
    tokens = next((w.tokens for w in shardable if w.path in stream.start), 0)
    if tokens % devices:
        near = sorted({tokens // devices * devices, -(-tokens // devices) * devices})
        raise BadInput(
            f"{tokens} tokens do not divide over {devices} devices",
            rule="the tokens of a sample divide over the tensor axis",
            values=f"data.context = {tokens}, plan.mesh.tensor = {devices}, "
            "plan.tensor_strategy = sequence",
            remedy=(
                *(f"data.context={count}" for count in near if count),
                "plan.tensor_strategy=pairs",
            ),
        )
    # The same pairs, but sums end in slices of tokens: a row layer and a mixture of
    # experts scatter what they sum, a table of the vocabulary its rows, and the layer
    # behind gathers.
    ends: Mapping[Role, Role] = {"row": "scatter", "experts": "combine"}
    given: dict[str, Role] = {
        path: ends.get(role, role)
        for path, role in megatron_roles(shardable, network, devices).items()
    }
    # Tables of tokens end in a reduce-scatter; tables of positions are whole, and each
    # device looks up its own tokens.
    for path in stream.start:
        given[path] = "lookup" if given.get(path) == "vocabulary" else "own"
    given |= dict.fromkeys(stream.along, "own")
    given |= dict.fromkeys(stream.ends, "gather")
    return given


def _uneven_split_error(
    layer: ShardableLayer, dim_name: str, count: int, devices: int, max_devices: int
) -> BadInput:
    """Refuse a layer whose `count` filters or channels do not divide over the devices.

    `max_devices` is the most that would do for every layer.
    """
    groups = f" in {layer.groups} groups" if layer.groups > 1 else ""
    return BadInput(
        f"{layer.path} has no {devices} equal slices of {dim_name}",
        rule=f"the {dim_name} of every split layer divide over the tensor axis",
        values=f"{layer.path} has {count} {dim_name}{groups}, plan.mesh.tensor = "
        f"{devices}",
        remedy=(
            f"plan.mesh.tensor={max_devices}",
            "plan.tensor_strategy=pairs leaves such layers whole",
        ),
    )


_TERM_NAMES: Final = MappingProxyType(
    {
        "filter": "filters",
        "channel": "channels",
        "row": "pairs",
        "experts": "pairs",
        "vocabulary": "vocabulary",
        "logits": "vocabulary",
        "scatter": "pairs",
        "combine": "pairs",
        "lookup": "vocabulary",
        "gather": "tokens",
    }
)
"""The name of a role's traffic in reports."""

TensorStrategy = Callable[[Sequence[ShardableLayer], nnx.Module, int], Roles]
"""`(layers, network, devices) -> roles`; raises `BadInput`."""

TENSOR_STRATEGIES: Final[Mapping[str, TensorStrategy]] = MappingProxyType(
    {
        "pairs": megatron_roles,
        "filter": column_parallel_roles,
        "channel": row_parallel_roles,
        "sequence": sequence_parallel_roles,
    }
)


def assign_roles(plan: Plan, calls: Sequence[LayerCall], network: nnx.Module) -> Roles:
    """Return what each layer does with the tensor axis of a plan.

    Raises:
        BadInput: a layer that the plan's strategy cannot split, or nothing to split.
    """
    # An idle axis repeats the whole work: no layer has a role then.
    devices = plan.mesh.tensor
    if devices == 1 or TENSOR_AXIS in plan.replicated_axes:
        return {}
    layers = shardable_layers(calls)
    given = TENSOR_STRATEGIES[plan.tensor_strategy](layers, network, devices)
    if not given:
        raise BadInput(
            "nothing is split along tensor",
            rule="a mesh axis larger than one splits samples, images or weights",
            values=f"plan.mesh.tensor = {devices}, "
            f"plan.tensor_strategy = {plan.tensor_strategy}; "
            f"none of {len(layers)} layers of jaxdist.layers divides",
            remedy=f"plan.mesh.data={plan.mesh.data * devices} plan.mesh.tensor=1",
        )
    # A gather of images between the layers of a pair gathers a device's own features.
    inner: list[str] = []
    last: Role | None = None
    for call in calls:
        if isinstance(call.layer, Gather) and last in ("column", "inner"):
            inner.append(call.path)
        last = given.get(call.path, last)
    # Gathers are not layers with weights, so no strategy gives them roles.
    return {**given, **dict.fromkeys(inner, "inner")}


def tensor_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield what layers gather and sum of their outputs, forward and backward."""
    for call in calls:
        role = roles.get(role_key(call.path, call.method))
        # The layer's whole output on one device, all channels.
        elements = (
            math.prod(call.padded_out_shape)
            // plan.mesh.batch_shards
            // plan.mesh.size(*position_axes(len(call.out_shape)))
        )
        # Values that are only copied travel in their dtype, sums in the wider one.
        width = np.dtype(call.dtype).itemsize
        wide = accumulation_dtype(call.dtype).itemsize
        part = elements // plan.mesh.tensor * wide
        rows = elements // call.out_shape[-1]
        moved: tuple[tuple[str, int, int], ...] = ()
        gather, scatter = (
            ("all-gather", elements * width, 1),
            ("reduce-scatter", part, 1),
        )
        if role in ("filter", "gather"):
            moved = gather, scatter
        elif role in ("scatter", "combine", "lookup"):
            moved = scatter, gather
        elif role in ("channel", "row", "vocabulary", "experts"):
            moved = (("all-reduce", 2 * elements * wide, 2),)
        elif role == "logits":
            # Five numbers a row of logits: see the table above.
            moved = (("all-reduce", 5 * rows * wide, 5),)
        if role == "logits" and plan.logits == "chunks":
            # Nothing is summed in the backward pass.
            moved = (("all-reduce", 3 * rows * wide, 3 * chunk_count(rows)),)
        elif not call.output_gradient:  # frozen, and nothing behind it is trained
            moved = _forward_only(moved)
        for kind, payload, arrays in moved:
            yield PlannedCollective(
                what=_TERM_NAMES.get(role or "", ""),
                kind=kind,
                axes=(TENSOR_AXIS,),
                payload=payload,
                layer=call.path,
                arrays=arrays,
            )


def _forward_only(
    moved: Sequence[tuple[str, int, int]],
) -> tuple[tuple[str, int, int], ...]:
    """Leave out what the backward pass moves: the second of two, or the last half."""
    kind, payload, arrays = moved[0] if moved else ("", 0, 0)
    if not moved or len(moved) > 1:
        return tuple(moved[:1])
    # Logits: a maximum, a sum and the target's logit forward.
    first = 3 if arrays == 5 else arrays // 2
    return ((kind, payload // arrays * first, first),)


def localize_channels(plan: Plan, roles: Roles, call: LayerCall) -> LayerCall:
    """Return a call with the channels that one device reads and makes."""
    role = roles.get(role_key(call.path, call.method))
    if role is None:
        return call
    groups, devices = getattr(call.layer, "feature_group_count", 1), plan.mesh.tensor
    # Channels of one device; rows and samples are the block's matter.
    reads, makes = call.shape[-1], call.out_shape[-1]
    # Grouped filters: a device with several whole groups reads their channels alone,
    # one with a part of a group reads that group.
    if role in ("filter", "column", "logits"):
        reads, makes = reads * max(groups // devices, 1) // groups, makes // devices
    elif role in ("channel", "row", "scatter"):
        reads //= devices
    elif role == "inner":
        reads, makes = reads // devices, makes // devices
    return replace(
        call,
        shape=(*call.shape[:-1], reads),
        out_shape=(*call.out_shape[:-1], makes),
        padded=(*call.padded_shape[:-1], reads),
        out_padded=(*call.padded_out_shape[:-1], makes),
    )
