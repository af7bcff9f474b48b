"""Mesh axes: the legal names, in one order from outer to inner."""

from typing import Final

BATCH_AXES: Final = ("data", "fsdp")
"""Axes along which the samples of a replica are divided."""
SPATIAL_AXES: Final = ("spatial_d", "spatial_h", "spatial_w")
"""Axes along which one sample is divided in depth, height and width."""
# Devices are numbered host by host, so inner axes lie within a host. The order is that
# of growing traffic: replicas average now and then, tensor shards meet in every layer.
AXES: Final = ("replica", "pipe", *BATCH_AXES, *SPATIAL_AXES, "tensor")
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
    return int(size) if bracket else None


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
