"""Weights: the layers whose weights a tensor axis can split, by their sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxdist.core.errors import BadInput
from jaxdist.layers import LSTM, Conv, Embed, Linear
from jaxdist.profile.layer_calls import LayerCall


@dataclass(frozen=True, kw_only=True)
class ShardableLayer:
    """One layer with weights that can be split."""

    path: str
    """Where the layer is in the network."""
    layer: Any
    """The layer itself."""
    in_features: int
    """Channels of its input."""
    out_features: int
    """Filters; units of a recurrent layer; rows of a table."""
    groups: int = 1
    """Parts of the channels that filters do not see across."""
    tokens: int = 0
    """Tokens of a sample that a table is asked for; of positions, how many."""
    has_attend: bool = False
    """Whether vectors are held against the rows of a table as well."""
    is_first: bool = False
    """Whether it reads the network's input."""


def shardable_layers(calls: Sequence[LayerCall]) -> tuple[ShardableLayer, ...]:
    """List the layers of a network that can be split, each once, in order."""
    found = {call.path: _make_shardable(call) for call in calls if _is_shardable(call)}
    for call in calls:
        if call.method == "attend" and call.path in found:
            found[call.path] = replace(found[call.path], has_attend=True)
    return tuple(found.values())


def _is_shardable(call: LayerCall) -> bool:
    """Tell whether a layer can be split; a table of positions alone cannot."""
    if isinstance(call.layer, Embed):
        return call.method == "__call__" and len(call.shape) > 1
    return isinstance(call.layer, Conv | Linear | LSTM)


def _make_shardable(call: LayerCall) -> ShardableLayer:
    layer = call.layer
    table = isinstance(layer, Embed)
    return ShardableLayer(
        path=call.path,
        layer=layer,
        in_features=layer.features if table else layer.in_features,
        out_features=_out_features(layer),
        tokens=call.shape[-1] if table else 0,
        groups=getattr(layer, "feature_group_count", 1),
        is_first=call.is_first,
    )


def _out_features(layer: Any) -> int:
    if isinstance(layer, Embed):
        return layer.num_embeddings
    return int(layer.hidden if isinstance(layer, LSTM) else layer.out_features)


def uneven_split_error(
    layer: ShardableLayer, dim_name: str, count: int, devices: int, max_devices: int
) -> BadInput:
    """Return the refusal of a layer whose filters or channels do not divide.

    Args:
        layer: the layer.
        dim_name: `filters` or `channels`.
        count: how many it has.
        devices: devices along the tensor axis.
        max_devices: the most devices that would do for every layer.
    """
    groups = f" in {layer.groups} groups" if layer.groups > 1 else ""
    return BadInput(
        f"{layer.path} has no {devices} equal slices of {dim_name}",
        rule=f"the {dim_name} of every split layer divide over the tensor axis",
        values=f"{layer.path} has {count} {dim_name}{groups}, plan.mesh.tensor = "
        f"{devices}",
        remedy=(
            f"plan.mesh.tensor={max_devices}",
            "plan.weights=pairs leaves such layers whole",
        ),
    )
