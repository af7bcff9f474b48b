"""Groups: which mesh axes the devices of a collective lie along."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from jaxdist.core.axes import sub_axis_name

_APART: Final = "apart"


def replica_groups(axes: Iterable[str], mesh: Mapping[str, int]) -> list[list[int]]:
    """List the device groups that a collective over `axes` has on this mesh."""
    names, chosen = list(mesh), set(axes)
    ids = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    kept = [i for i, n in enumerate(names) if n not in chosen]
    along = [i for i, n in enumerate(names) if n in chosen]
    width = math.prod(mesh[names[i]] for i in along)
    return np.transpose(ids, kept + along).reshape(-1, width).tolist()


def axes_from_groups(
    groups: Sequence[Sequence[int]], mesh: Mapping[str, int]
) -> tuple[str, ...]:
    """Name the axes, or parts of one, whose groups these are; empty where none match.

    Whole axes come first: a part is named where only neighbours along an axis meet.
    """
    wanted = {frozenset(group) for group in groups}
    for each in (mesh, *_refined(mesh)):
        real = [name for name, size in each.items() if size > 1 and name != _APART]
        for count in range(1, len(real) + 1):
            for axes in itertools.combinations(real, count):
                if {frozenset(g) for g in replica_groups(axes, each)} == wanted:
                    return axes
    return ()


def _refined(mesh: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the mesh with one axis cut in two: groups apart, and neighbours in them.

    >>> list(_refined({"data": 4, "tensor": 2}))
    [{'apart': 2, 'data[2]': 2, 'tensor': 2}]
    """
    for cut, size in mesh.items():
        for devices in range(2, size):
            if size % devices == 0:
                halves = {_APART: size // devices, sub_axis_name(cut, devices): devices}
                named = ({n: s} if n != cut else halves for n, s in mesh.items())
                yield {name: s for each in named for name, s in each.items()}


def axes_from_pairs(
    pairs: Sequence[tuple[int, int]], mesh: Mapping[str, int]
) -> tuple[tuple[str, ...], int]:
    """Name the axes along which a permute moves, and the devices along them."""
    shape = tuple(mesh.values())
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
