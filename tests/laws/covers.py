"""Covers: cells of a product that together have every pair of its factors."""

import itertools


def pairs(cell):
    """Return the pairs of a cell's factors, each with its place."""
    return set(itertools.combinations(enumerate(cell), 2))


def covering(cells):
    """Return cells that have every pair that all of them have."""
    left, chosen = set().union(*map(pairs, cells)), []
    while left:
        chosen.append(max(cells, key=lambda cell: len(pairs(cell) & left)))
        left -= pairs(chosen[-1])
    return chosen
