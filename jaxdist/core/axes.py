"""Mesh axes: the legal names, from outer to inner, and the shape of a mesh of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from jaxdist.core.errors import BadInput

EXPERT_AXIS: Final = "expert"
"""The axis along which the experts of a network are divided, and samples as well."""
BATCH_AXES: Final = ("data", "fsdp", EXPERT_AXIS)
"""Axes along which the samples of a replica are divided."""
SPATIAL_AXES: Final = ("spatial_d", "spatial_h", "spatial_w")
"""Axes along which one sample is divided in depth, height and width."""
CONTEXT_AXIS: Final = "context"
"""The axis along which the tokens of one sample are divided."""
POSITION_AXES: Final = (CONTEXT_AXIS, *SPATIAL_AXES)
"""Axes along which positions of one sample are divided: tokens, or rows of images."""
TOKEN_RANK: Final = 3
"""Dims of tokens with features, `[B, T, C]`."""
# Devices are numbered host by host, so inner axes lie within a host. The order is that
# of growing traffic: replicas average now and then, tensor shards meet in every layer.
AXES: Final = ("replica", "pipe", *BATCH_AXES, *POSITION_AXES, "tensor")
"""Every legal axis, outermost first; axes of size 1 always exist in a mesh."""


def sub_axis_name(axis: str, devices: int) -> str:
    """Name groups of so many neighbours along an axis, for sums within each group.

    >>> sub_axis_name("data", 4)
    'data[4]'
    """
    return f"{axis}[{devices}]"


def sub_axis_size(name: str) -> int | None:
    """Return the devices in a group that `sub_axis_name` named; None for a whole axis.

    >>> sub_axis_size("data[4]"), sub_axis_size("data")
    (4, None)
    """
    _, bracket, size = name.rstrip("]").partition("[")
    return int(size) if bracket and ":" not in size else None


def strided_axis_name(axis: str, stride: int) -> str:
    """Name groups of devices along an axis that are so far apart from each other.

    >>> strided_axis_name("fsdp", 4)
    'fsdp[::4]'
    """
    return f"{axis}[::{stride}]"


def axis_stride(name: str) -> int:
    """Return the stride in a name of `strided_axis_name`; 1 for other names.

    >>> axis_stride("fsdp[::4]"), axis_stride("fsdp[4]"), axis_stride("fsdp")
    (4, 1, 1)
    """
    _, marked, stride = name.rstrip("]").partition("[::")
    return int(stride) if marked else 1


def spatial_axes(rank: int) -> tuple[str, ...]:
    """Name the spatial axis of each spatial dim of a channels-last array.

    Args:
        rank: number of dims of the array, batch and channels included.

    Returns:
        One axis name for each dim between batch and channels; empty where there are
        none (tokens, labels).

    >>> spatial_axes(4)
    ('spatial_h', 'spatial_w')
    >>> spatial_axes(5)
    ('spatial_d', 'spatial_h', 'spatial_w')
    """
    # Depth goes first: an image has height and width, a volume all three.
    spatial = max(rank - 2, 0)
    return SPATIAL_AXES[-spatial:] if spatial in (2, 3) else ()


def position_axes(rank: int) -> tuple[str, ...]:
    """Name the axis of each dim of positions of an array: of images, or of tokens.

    Args:
        rank: number of dims of the array, batch and features included; tokens are
            `[B, T, C]`.

    >>> position_axes(3), position_axes(4)
    (('context',), ('spatial_h', 'spatial_w'))
    """
    return (CONTEXT_AXIS,) if rank == TOKEN_RANK else spatial_axes(rank)


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
    expert: int = 1
    """Shards of the batch that also have some of the experts each."""
    context: int = 1
    """Slices of every sample's tokens."""
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

    @cached_property
    def devices(self) -> int:
        """Devices in the whole mesh."""
        return math.prod(self._sizes.values())

    def size(self, *axes: str) -> int:
        """Devices along these axes, or parts of axes, together.

        >>> MeshShape(data=4, spatial_h=2).size("data", "fsdp")
        4
        >>> MeshShape(data=4, spatial_h=2).size("data[2]", "spatial_h")
        4
        >>> MeshShape(fsdp=8).size("fsdp[::4]")
        2
        """
        sizes = self._sizes
        return math.prod([sizes.get(name) or self._part_size(name) for name in axes])

    def _part_size(self, name: str) -> int:
        # A part of an axis has its size in its name, or its stride.
        size = sub_axis_size(name)
        return size or self._sizes[name.partition("[")[0]] // axis_stride(name)

    # Sizes are asked for millions of times in a search.
    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(self.items())

    @property
    def batch_shards(self) -> int:
        """Parts into which the samples of a replica are divided."""
        return self.size(*BATCH_AXES)

    @property
    def spatial_shards(self) -> int:
        """Parts into which one image is divided."""
        return self.size(*SPATIAL_AXES)

    @property
    def position_shards(self) -> int:
        """Parts into which one sample is divided."""
        return self.size(*POSITION_AXES)
