"""Replica groups: the mesh axes along which the devices of a collective lie."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from jaxdist.core.axes import sub_axis_name

_APART: Final = "apart"


def replica_groups(axes: Iterable[str], mesh: Mapping[str, int]) -> list[list[int]]:
    """List the device groups that a collective over `axes` has on this mesh."""
    names, chosen = list(mesh), set(axes)
    ids = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    # Devices are numbered in mesh order, the last axis fastest: groups are the rows
    # when the chosen axes come last.
    kept = [i for i, n in enumerate(names) if n not in chosen]
    along = [i for i, n in enumerate(names) if n in chosen]
    width = math.prod(mesh[names[i]] for i in along)
    return np.transpose(ids, kept + along).reshape(-1, width).tolist()


def axes_from_groups(
    groups: Sequence[Sequence[int]], mesh: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the axes, or parts of one, with these groups; empty where none match.

    >>> axes_from_groups([[0, 2], [1, 3], [4, 6], [5, 7]], {"data": 4, "tensor": 2})
    ('data[2]',)
    """
    # Whole axes come first. Then one axis at a time is cut in two: groups that are
    # apart, and neighbours in them, since only neighbours along an axis meet.
    meshes = [dict(mesh)]
    for cut, size in mesh.items():
        for devices in range(2, size):
            if size % devices == 0:
                halves = {_APART: size // devices, sub_axis_name(cut, devices): devices}
                named = ({n: s} if n != cut else halves for n, s in mesh.items())
                meshes.append({name: s for each in named for name, s in each.items()})
    wanted = {frozenset(group) for group in groups}
    for each in meshes:
        real = [name for name, size in each.items() if size > 1 and name != _APART]
        for count in range(1, len(real) + 1):
            for axes in itertools.combinations(real, count):
                if {frozenset(g) for g in replica_groups(axes, each)} == wanted:
                    return axes
    return ()


def axes_from_pairs(
    pairs: Sequence[tuple[int, int]], mesh: Mapping[str, int]
) -> tuple[tuple[str, ...], int]:
    """Return the axes along which a permute moves, and the devices along them."""
    shape = tuple(mesh.values())
    # A permute runs along the axes in which the coordinates of some pair differ.
    moved = {
        name
        for a, b in pairs
        for name, x, y in zip(
            mesh, np.unravel_index(a, shape), np.unravel_index(b, shape)
        )
        if x != y
    }
    axes = tuple(name for name in mesh if name in moved)
    return axes, math.prod(mesh[name] for name in axes)
