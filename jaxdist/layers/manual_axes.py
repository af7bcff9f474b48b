"""Manual axes: what the trace itself says about how arrays are split.

Inside a `shard_map` over an axis, arrays are that axis's shards and the axis is
*manual*. Outside, the same layer sees no manual axis and is the plain operation.
"""

from collections.abc import Iterable

import jax
from jax.sharding import AxisType


def manual_axis_sizes() -> dict[str, int]:
    """Return {axis: devices along it} of the manual axes larger than one."""
    # The mesh of the innermost shard_map, empty outside of any.
    mesh = jax.sharding.get_abstract_mesh()
    return {
        name: size
        for name, size, kind in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
        if kind == AxisType.Manual and size > 1
    }


def manual_axes(axes: Iterable[str]) -> tuple[str, ...]:
    """Keep those of `axes` that are manual and larger than one, in mesh order."""
    wanted = set(axes)
    return tuple(name for name in manual_axis_sizes() if name in wanted)


def manual_platform() -> str:
    """Return the platform that the innermost `shard_map` is for: cpu, gpu or tpu.

    Empty outside of any, and where its mesh is of no known devices.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return "" if device is None else str(device.platform)
