"""A network in one of ParaDL's strategies on a number of devices."""

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.oracle.published.paradl.networks import CnnLayer, ParadlWorkload
from jaxdist.oracle.published.paradl.slices import LayerSplit

SplitDimension = Literal["", "spatial", "filter", "channel", "layer"]
"""The dimension that a group splits; empty where each device has its own samples."""
ActivationTransport = Literal["devices", "hosts"]
"""Whether activations move between devices, or are copied through hosts."""

STRATEGIES: Final = (
    "serial",
    "data",
    "spatial",
    "filter",
    "channel",
    "layer",
    "data+spatial",
    "data+filter",
    "data+channel",
)
"""As rows name them, `data` first in hybrids."""


@dataclass(frozen=True, kw_only=True)
class ParadlCase:
    """One training step, to be predicted."""

    workload: ParadlWorkload
    """The network."""
    split: SplitDimension
    """The dimension that the devices of a group split."""
    devices: int
    """All of them."""
    group: int
    """Devices that share the samples of a batch."""
    group_batch: float
    """Samples of a group."""
    transport: ActivationTransport = "devices"
    """How activations move in a group."""
    segments: int = 1
    """Parts of a batch that follow one another through layers."""

    def __post_init__(self) -> None:
        # Hybrids are data parallelism over groups, which all have the same size.
        if self.devices % self.group:
            near = self.devices // self.group * self.group or self.group
            raise BadInput(
                f"{self.devices} devices are not groups of {self.group}",
                rule="all groups have as many devices",
                values=f"gpus = {self.devices}, group_size = {self.group}",
                remedy=f"gpus = {near}",
            )

    @property
    def layers(self) -> tuple[CnnLayer, ...]:
        """Layers of the network."""
        return self.workload.layers()

    @property
    def groups(self) -> int:
        """Groups, each with samples of its own."""
        return self.devices // self.group

    @property
    def total(self) -> float:
        """Samples of a step."""
        return self.group_batch * self.groups

    @property
    def weight_count(self) -> int:
        """Elements that are trained."""
        return sum(layer.weights for layer in self.layers)

    @property
    def map_dense_weights(self) -> int:
        """Elements of the dense layers that read a map, not one value a feature."""
        return sum(
            layer.weights
            for layer in self.layers
            if layer.kind == "dense" and math.prod(layer.input_grid) > 1
        )

    @property
    def layer_split(self) -> LayerSplit:
        """How the layers of a group are split."""
        match self.split:
            case "spatial":
                return LayerSplit(spatial_devices=self.group)
            case "filter" | "channel":
                return LayerSplit(feature_devices=self.group)
        return LayerSplit()

    @property
    def split_layers(self) -> tuple[CnnLayer, ...]:
        """Layers whose features are split; by channel the first is not."""
        # By channel the first layer stays whole: images have three channels.
        # ParaDL splits the features of convolutions; dense layers are whole on each
        # device.
        convs = [layer for layer in self.layers if layer.kind == "conv"]
        return tuple(convs[1:] if self.split == "channel" else convs)


def parse_strategy(strategy: str) -> tuple[bool, SplitDimension]:
    """Return whether a strategy has groups, and the dimension that one splits.

    Raises:
        BadInput: it is none of ParaDL's.

    >>> parse_strategy("spatial+data"), parse_strategy("channel")
    ((True, 'spatial'), (False, 'channel'))
    >>> parse_strategy("serial")
    (False, '')
    """
    parts = strategy.lower().replace(" ", "").replace("pipeline", "layer").split("+")
    # Tables write hybrids in both orders, and the layer strategy as pipeline.
    name = "+".join(sorted(parts, key=lambda part: part != "data"))
    if name not in STRATEGIES:
        near = did_you_mean(name, STRATEGIES)
        raise BadInput(
            f"no strategy {strategy}",
            rule=f"strategies are {', '.join(STRATEGIES)}",
            remedy=f"did you mean {near}?" if near else "one of these",
        )
    # A serial run splits nothing, and neither does pure data parallelism.
    rest = name.removeprefix("serial").removeprefix("data").strip("+")
    splits: tuple[SplitDimension, ...] = get_args(SplitDimension)
    return name.startswith("data"), next(one for one in splits if one == rest)
