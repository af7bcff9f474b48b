"""Slices: seconds that a device computes for its part of each layer.

    weights     max(3 f b / (reached peak), d b (3 (x + y) + 3 w / b) / memory)
    elsewhere   passes d b max(x, y) / memory

for the whole layer; 3 is the forward pass and two backward ones. What the network was
measured to take on one device scales all of its layers. A part of the positions takes
its share of that. A part of the features is as wide as a kernel is at least, pays
`call` for each layer, and reads all inputs (correction 5 to ParaDL: a 1/p slice does
not take 1/p of the time).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.oracle.published.paradl.layers import CnnLayer
from jaxdist.oracle.published.paradl.system import ParadlSystem

_PASSES: Final[Mapping[str, int]] = {"norm": 8, "relu": 5, "add": 3, "pool": 5}
"""Times that a layer without weights passes over its elements, there and back."""

_COPIED: Final = 3 * 2 * 2
"""Passes over gathered outputs: packed, unpacked, put together; read and written; in
the forward pass and in the backward one."""


@dataclass(frozen=True, kw_only=True)
class LayerSplit:
    """How the layers of a group are split over its devices."""

    positions: int = 1
    """Devices that share out the rows of each layer."""
    features: int = 1
    """Devices that share out the features of convolutions."""


_WHOLE: Final = LayerSplit()


def compute(
    layers: Sequence[CnnLayer],
    serial: float,
    batch: float,
    part: LayerSplit,
    system: ParadlSystem,
) -> dict[str, float]:
    """Return the seconds of one device, by kind of layer.

    Args:
        layers: of the network.
        serial: seconds a sample on one device, measured.
        batch: samples of the group that shares them.
        part: how they are split.
        system: whose devices they are.
    """
    seconds = seconds_of_layers(layers, serial, batch, system, part)
    found: dict[str, float] = {}
    for layer, one in zip(layers, seconds):
        found[layer.kind] = found.get(layer.kind, 0.0) + one
    return found


def seconds_of_layers(
    layers: Sequence[CnnLayer],
    serial: float,
    batch: float,
    system: ParadlSystem,
    part: LayerSplit = _WHOLE,
) -> list[float]:
    """Return the seconds of one device, by layer; arguments are those of `compute`."""
    whole = sum(_roof(layer, batch, _WHOLE, system) for layer in layers)
    scale = serial * batch / whole
    called = {"conv": system.call.value if part.features > 1 else 0.0}
    return [
        scale * _roof(layer, batch, part, system) + called.get(layer.kind, 0.0)
        for layer in layers
    ]


def copies(layers: Sequence[CnnLayer], batch: float, system: ParadlSystem) -> float:
    """Return the seconds in which a device copies what it gathers of these layers."""
    size = system.element * batch * sum(layer.outputs for layer in layers)
    return _COPIED * size / system.memory.value


def update(layers: Sequence[CnnLayer], part: LayerSplit, system: ParadlSystem) -> float:
    """Return the seconds of the optimizer: weight, gradient, momentum; five passes."""
    mine = sum(
        layer.weights / (part.features if layer.kind == "conv" else 1)
        for layer in layers
    )
    return 5 * system.element * mine / system.memory.value


def _roof(
    layer: CnnLayer, batch: float, part: LayerSplit, system: ParadlSystem
) -> float:
    if layer.kind in _PASSES:
        size = batch * max(layer.inputs, layer.outputs) / part.positions
        return _PASSES[layer.kind] * system.element * size / system.memory.value
    positions = part.positions if layer.kind == "conv" else 1
    features = _features(layer, part, system)
    flops = 3 * layer.flops * batch / positions * features / layer.features
    rate = system.peak.value * system.reached.value
    moved = 3 * batch * (layer.inputs + layer.outputs) / positions
    size = system.element * (moved + 3 * layer.weights)
    return max(flops / rate, size / system.memory.value)


def _features(layer: CnnLayer, part: LayerSplit, system: ParadlSystem) -> float:
    """Return the features that a kernel makes, those that it wastes among them."""
    if layer.kind != "conv" or part.features == 1:
        return layer.features
    tile = system.width.value
    mine = math.ceil(layer.features / part.features)
    return min(math.ceil(mine / tile) * tile, layer.features)
