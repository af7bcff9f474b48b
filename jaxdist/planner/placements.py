"""Placements: which axes of a layout lie side by side in a host, chosen by its links.

An axis that is moved to the inside has the links of a host, as far as it fits into one,
and all others come to lie farther apart. What collectives move stays the same, so a
step is described once and predicted for each placement.
"""

from collections.abc import Iterator
from dataclasses import replace

from jaxdist.core.axes import AXES
from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.oracle.groups import group_of
from jaxdist.oracle.predict import Prediction
from jaxdist.planner.coarse import Coarse
from jaxdist.planner.heap import Heap, Ranked

_BY_LINKS = ("bubble", "input")
"""Terms beside collectives that may be shorter where links are faster."""


def place(heap: Heap, coarse: Coarse) -> None:
    """Try other placements of the layouts that were described, and keep the best.

    One more axis is moved to the inside; asked again it moves another. Layouts whose
    computing alone takes as long as the fastest step are left as they are.

    Args:
        heap: of plans that were described.
        coarse: the space, which says the axes that may be moved.
    """
    if not heap.found:
        return
    inside, cluster = coarse.space.choices.inside, coarse.cluster
    best = heap.sorted()[0].prediction.step_s
    for one in list(_firsts(heap)):
        if inside and computed(one.prediction) < best:
            heap.describe_placed(one.plan, moves(one.plan, inside, cluster))
    heap.drop_misplaced()


def moves(plan: Plan, inside: tuple[str, ...], cluster: Cluster) -> Iterator[Plan]:
    """Yield a plan with one axis more on the inside, where links then differ.

    Args:
        plan: a layout.
        inside: axes that may be moved there.
        cluster: whose links they cross.
    """
    before = _links(plan, cluster)
    for axis in inside:
        others = tuple(name for name in plan.placement if name != axis)
        moved = replace(plan, placement=(*others, axis))
        if plan.mesh.size(axis) > 1 and _links(moved, cluster) != before:
            yield moved


def computed(made: Prediction) -> float:
    """Return the seconds of a step that no placement makes shorter."""
    kept = (s for term, s in made.terms_s.items() if ", " not in term)
    return sum(kept) - sum(made.terms_s.get(term, 0.0) for term in _BY_LINKS)


def _firsts(heap: Heap) -> Iterator[Ranked]:
    """Yield the fastest plan of each mesh that has one."""
    seen: set[MeshShape] = set()
    for one in heap.sorted():
        if one.plan.mesh not in seen:
            seen.add(one.plan.mesh)
            yield one


def _links(plan: Plan, cluster: Cluster) -> list[tuple[str, float]]:
    """Return the level and the rate that each axis has."""
    used = (axis for axis in AXES if plan.mesh.size(axis) > 1)
    groups = (group_of(cluster, plan.placed, (axis,)) for axis in used)
    return [(group.level, group.rate) for group in groups]
