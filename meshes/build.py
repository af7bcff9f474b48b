"""The mesh: a plan's axes on real devices, built in this one place.

Every axis of `jaxdist.core.axes.AXES` is there, size 1 included, and every axis type
is Auto: `jax.make_mesh` alone would make them Explicit, which convolutions refuse.
Devices are laid in the order of the plan's placement and then turned to that of AXES,
so shardings and device groups by their place in the mesh are those without one.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxdist.core.axes import AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan


def build_mesh(plan: Plan, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Lay the plan's axes over devices.

    Args:
        plan: sizes of the axes, whose product is the number of devices used, and
            which of them lie innermost.
        devices: at least that many; all visible ones where not given.

    Raises:
        BadInput: fewer devices than the plan needs.
    """
    found = jax.devices() if devices is None else list(devices)
    wanted = plan.mesh.devices
    if wanted > len(found):
        raise BadInput(
            "the mesh is larger than the devices",
            rule="the product of plan.mesh is at most the number of devices",
            values=f"{plan.title} = {wanted} devices, found {len(found)}",
            remedy=f"plan.mesh.data={max(len(found), 1)} with the other axes at 1",
        )
    order = plan.placed.order
    shape = tuple(plan.mesh.size(axis) for axis in order)
    # Auto for all: shard_map makes axes Manual where the step needs them.
    auto = (AxisType.Auto,) * len(AXES)
    # The first devices in their own order, innermost axis fastest.
    grid = np.asarray(found[:wanted]).reshape(shape)
    if devices is None and wanted == len(found):
        # jax knows which devices of a machine are near to each other.
        grid = jax.make_mesh(shape, order, axis_types=auto).devices
    turned = grid.transpose([order.index(axis) for axis in AXES])
    return Mesh(turned, AXES, axis_types=auto)
