"""Covers: cells of a product that together have every pair of its factors."""

import itertools


def pairs(cell):
    """Return the pairs of a cell's factors, each with its place."""
    return set(itertools.combinations(enumerate(cell), 2))


def covering(cells, parts=pairs, cost=lambda cell: 1):
    """Return cells that have every part, such as a pair, that all of them have.

    Args:
        cells: to choose from.
        parts: of a cell.
        cost: of a cell: of those with much that is new, the cheap ones are taken.
    """
    left, chosen = set().union(*map(parts, cells)), []
    while left:
        chosen.append(max(cells, key=lambda cell: len(parts(cell) & left) / cost(cell)))
        left -= parts(chosen[-1])
    return chosen
