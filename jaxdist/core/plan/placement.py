"""Placement: in which order the axes of a mesh lie on devices.

Devices are counted host by host, so an innermost axis has its devices side by side, in
one host where they fit, and an outermost one is divided among hosts, or racks.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxdist.core.axes import AXES, sub_axis_size
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan.mesh import MeshShape


@dataclass(frozen=True, kw_only=True)
class MeshPlacement:
    """A mesh on devices."""

    mesh: MeshShape
    """Devices along each axis."""
    order: tuple[str, ...] = AXES
    """Every axis, as they lie on devices, outermost first."""

    def place(self, name: str) -> tuple[int, int]:
        """Return the stride and the size of an axis, or of the inner part of one.

        Args:
            name: of an axis or a part: `data`, `data[2]`.

        Returns:
            Devices from one along the axis to the next, and how many it has.

        >>> mesh = MeshShape(data=2, tensor=4)
        >>> MeshPlacement(mesh=mesh).place("data")
        (4, 2)
        >>> MeshPlacement(mesh=mesh, order=axis_order(["data"])).place("data")
        (1, 2)
        """
        axis = name.partition("[")[0]
        inner = self.order[self.order.index(axis) + 1 :]
        return self.mesh.size(*inner), sub_axis_size(name) or self.mesh.size(axis)


def axis_order(innermost: Iterable[str]) -> tuple[str, ...]:
    """Return every axis, outermost first, with some moved behind all others.

    Args:
        innermost: names of those, outermost first.

    >>> axis_order(["pipe", "data"])[-3:]
    ('tensor', 'pipe', 'data')
    """
    last = tuple(innermost)
    return (*(axis for axis in AXES if axis not in last), *last)


def check_placement(placement: tuple[str, ...]) -> None:
    """Refuse names that are no axes, and one that is there twice.

    Raises:
        BadInput: with the placement that was meant.
    """
    rule = f"plan.placement has some of {', '.join(AXES)}, each once"
    values = f"plan.placement = {','.join(placement)}"
    for name in placement:
        if name not in AXES:
            near = did_you_mean(name, AXES)
            raise BadInput(
                f"no mesh axis {name} to be placed",
                rule=rule,
                values=values,
                remedy=f"did you mean {near}?" if near else "plan.placement=pipe",
            )
    once = tuple(dict.fromkeys(placement))
    if once != placement:
        raise BadInput(
            "an axis lies on devices in one place",
            rule=rule,
            values=values,
            remedy=f"plan.placement={','.join(once)}",
        )
