"""Contention: which messages of a step meet on links, and how many at once.

The contention graph of a step has its messages as nodes; two of them are neighbours if
they share a link. Messages on one link are all neighbours of each other, so the largest
number on a link, φ, is the size of the largest clique that a link makes. Where all
messages have one size and all links one bandwidth 1/β, a step of b bytes takes

    α + φ b β

The graph changes from step to step with the partners: it is dynamic.

Source: Nguyen and Wahib 2021, "An allreduce algorithm and network co-design for
large-scale training of distributed deep learning", CCGrid (contention of a step);
Kahira et al. 2021, "An oracle for guiding large-scale model/hybrid parallel training of
convolutional neural networks", HPDC (the coefficient φ).
"""

import numpy as np

from jaxdist.network.routes import Routes


def phi(routes: Routes, links: int) -> int:
    """Return the most messages on one link.

    >>> from jaxdist.network.routes import routes_from_hops
    >>> phi(routes_from_hops(np.array([[0, 1], [2, 1], [3, -1]])), 4)
    2
    """
    return int(np.bincount(routes.link, minlength=links).max(initial=0))


def contention_graph(routes: Routes, links: int) -> set[tuple[int, int]]:
    """Return the edges of the contention graph, the lower message first.

    Args:
        routes: of the messages.
        links: number of links L.

    >>> from jaxdist.network.routes import routes_from_hops
    >>> routes = routes_from_hops(np.array([[0, 1], [2, 1], [2, 3]]))
    >>> sorted(contention_graph(routes, 4))
    [(0, 1), (1, 2)]
    """
    order = np.argsort(routes.link, kind="stable")
    ends = np.cumsum(np.bincount(routes.link, minlength=links))
    edges: set[tuple[int, int]] = set()
    # All messages of one link are neighbours of each other.
    for group in np.split(routes.flow[order], ends[:-1]):
        ids = sorted(set(group.tolist()))
        edges |= {(a, b) for i, a in enumerate(ids) for b in ids[i + 1 :]}
    return edges
