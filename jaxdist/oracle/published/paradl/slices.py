"""The seconds that a device computes for its part of each layer.

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

from jaxdist.oracle.published.paradl.networks import CnnLayer
from jaxdist.oracle.published.paradl.system import ParadlSystem

_MEMORY_PASSES: Final[Mapping[str, int]] = {"norm": 8, "relu": 5, "add": 3, "pool": 5}
"""Times that a layer without weights passes over its elements, there and back."""


@dataclass(frozen=True, kw_only=True)
class LayerSplit:
    """How the layers of a group are split over its devices."""

    spatial_devices: int = 1
    """Devices that split the rows of each layer."""
    feature_devices: int = 1
    """Devices that split the features of convolutions."""


_UNSPLIT: Final = LayerSplit()


def compute_by_kind(
    layers: Sequence[CnnLayer],
    seconds_per_sample: float,
    batch: float,
    split: LayerSplit,
    system: ParadlSystem,
) -> dict[str, float]:
    """Return the seconds of one device, by kind of layer.

    Args:
        layers: of the network.
        seconds_per_sample: seconds a sample on one device, measured.
        batch: samples of the group that shares them.
        split: how they are split.
        system: whose devices they are.
    """
    seconds = compute_by_layer(layers, seconds_per_sample, batch, system, split)
    found: dict[str, float] = {}
    for layer, one in zip(layers, seconds):
        found[layer.kind] = found.get(layer.kind, 0.0) + one
    return found


def compute_by_layer(
    layers: Sequence[CnnLayer],
    seconds_per_sample: float,
    batch: float,
    system: ParadlSystem,
    split: LayerSplit = _UNSPLIT,
) -> list[float]:
    """Return the seconds of one device by layer, as `compute_by_kind` is called."""
    # The roofline only divides the measured time among the layers: the sum of all is
    # what one device took.
    whole = sum(_roofline_seconds(layer, batch, _UNSPLIT, system) for layer in layers)
    scale = seconds_per_sample * batch / whole
    # Split features run as several calls from Python, each with a fixed time.
    called = {"conv": system.call_overhead.value if split.feature_devices > 1 else 0.0}
    return [
        scale * _roofline_seconds(layer, batch, split, system)
        + called.get(layer.kind, 0.0)
        for layer in layers
    ]


def update_seconds(
    layers: Sequence[CnnLayer], split: LayerSplit, system: ParadlSystem
) -> float:
    """Return the seconds of the optimizer: weight, gradient, momentum; five passes."""
    mine = sum(
        layer.weights / (split.feature_devices if layer.kind == "conv" else 1)
        for layer in layers
    )
    return 5 * system.element_bytes * mine / system.memory_bandwidth.value


def _roofline_seconds(
    layer: CnnLayer, batch: float, split: LayerSplit, system: ParadlSystem
) -> float:
    if layer.kind in _MEMORY_PASSES:
        # Layers without weights are bound by memory, and positions split them evenly.
        size = batch * max(layer.inputs, layer.outputs) / split.spatial_devices
        return (
            _MEMORY_PASSES[layer.kind]
            * system.element_bytes
            * size
            / system.memory_bandwidth.value
        )
    positions = split.spatial_devices if layer.kind == "conv" else 1
    features: float = layer.features
    if layer.kind == "conv" and split.feature_devices > 1:
        # A kernel makes features in tiles, so a narrow slice wastes a part of one.
        tile = system.min_kernel_features.value
        mine = math.ceil(layer.features / split.feature_devices)
        features = min(math.ceil(mine / tile) * tile, features)
    # Forward and two backward kernels.
    flops = 3 * layer.flops * batch / positions * features / layer.features
    rate = system.peak_flops.value * system.conv_efficiency.value
    moved = 3 * batch * (layer.inputs + layer.outputs) / positions
    size = system.element_bytes * (moved + 3 * layer.weights)
    return max(flops / rate, size / system.memory_bandwidth.value)
