"""Placement: in which order the axes of a mesh lie on devices.

Devices are counted host by host, so an innermost axis has its devices side by side, in
one host where they fit, and an outermost one is divided among hosts, or racks.
"""

from dataclasses import dataclass

from jaxdist.core.axes import AXES, MeshShape, axis_stride


@dataclass(frozen=True, kw_only=True)
class MeshPlacement:
    """A mesh on devices."""

    mesh: MeshShape
    """Devices along each axis."""
    order: tuple[str, ...] = AXES
    """Every axis, as they lie on devices, outermost first."""
    host_order: tuple[str, ...] = ()
    """Host groups of the cluster that come first, in this order; the others follow
    in the order of its file."""

    def place(self, name: str) -> tuple[int, int]:
        """Return the stride and the size of an axis, or of the inner part of one.

        Args:
            name: of an axis or a part: `data`, `data[2]`, `data[::2]`.

        Returns:
            Devices from one along the axis to the next, and how many it has.

        >>> mesh = MeshShape(data=2, tensor=4)
        >>> MeshPlacement(mesh=mesh).place("data")
        (4, 2)
        >>> inside = (*(axis for axis in AXES if axis != "data"), "data")
        >>> MeshPlacement(mesh=mesh, order=inside).place("data")
        (1, 2)
        """
        # Neighbours along an axis are as far apart as all axes inside it have devices.
        axis = name.partition("[")[0]
        inner = self.order[self.order.index(axis) + 1 :]
        return self.mesh.size(*inner) * axis_stride(name), self.mesh.size(name)
