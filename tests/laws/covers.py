"""Covers: cells of a product that together have every pair of its factors."""

import itertools


def pairs(cell):
    """Return the pairs of a cell's factors, each with its place."""
    return set(itertools.combinations(enumerate(cell), 2))


def covering(cells, parts=pairs):
    """Return cells that have every part, such as a pair, that all of them have."""
    left, chosen = set().union(*map(parts, cells)), []
    while left:
        chosen.append(max(cells, key=lambda cell: len(parts(cell) & left)))
        left -= parts(chosen[-1])
    return chosen
