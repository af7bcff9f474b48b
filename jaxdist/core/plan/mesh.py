"""The mesh: how many devices lie along each axis."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxdist.core.axes import AXES, BATCH_AXES, SPATIAL_AXES, sub_axis_size
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """How many devices each axis of the mesh has, outermost first."""

    replica: int = 1
    """Independent copies that average their weights now and then."""
    pipe: int = 1
    """Stages of a pipeline."""
    data: int = 1
    """Shards of the global batch."""
    fsdp: int = 1
    """Shards of the batch that also shard parameters and optimizer state."""
    spatial_d: int = 1
    """Slices of every sample in depth."""
    spatial_h: int = 1
    """Slices of every sample in height (rows)."""
    spatial_w: int = 1
    """Slices of every sample in width (columns)."""
    tensor: int = 1
    """Shards of each weight: filters, channels, heads."""

    def __post_init__(self) -> None:
        for name, size in self.items():
            if size < 1:
                raise BadInput(
                    f"mesh axis {name} has no devices",
                    rule="every mesh axis has at least one device",
                    values=f"plan.mesh.{name} = {size}",
                    remedy=f"plan.mesh.{name}=1",
                )

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield (axis, devices along it), outermost first."""
        return ((name, getattr(self, name)) for name in AXES)

    @property
    def devices(self) -> int:
        """Devices in the whole mesh."""
        return math.prod(size for _, size in self.items())

    def size(self, *axes: str) -> int:
        """Devices along these axes, or parts of axes, together.

        >>> MeshShape(data=4, spatial_h=2).size("data", "fsdp")
        4
        >>> MeshShape(data=4, spatial_h=2).size("data[2]", "spatial_h")
        4
        """
        # A part of an axis has its size in its name.
        return math.prod(sub_axis_size(name) or getattr(self, name) for name in axes)

    @property
    def batch_shards(self) -> int:
        """Parts into which the samples of a replica are divided."""
        return self.size(*BATCH_AXES)

    @property
    def spatial_shards(self) -> int:
        """Parts into which one sample is divided."""
        return self.size(*SPATIAL_AXES)
