"""The fastest options of some nodes that fit a memory: a multiple-choice knapsack.

With lambda seconds a byte of memory, each node alone takes the option with the least
seconds + lambda bytes. The sum less lambda times the limit is a lower bound for any
lambda, and the choice itself is an upper one where it fits (Lagrange). The bound says
which options cannot be in a better choice; the few that are left are gone through, node
by node, without those that another choice beats in both seconds and bytes.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_SLACK = 1 + 1e-12
"""Factor by which rounding may move a bound."""


def fastest_options(
    seconds: Sequence[Sequence[float]],
    memory: Sequence[Sequence[float]],
    limit: float,
) -> tuple[int, ...] | None:
    """Return one option for each node: the least seconds within a memory.

    Args:
        seconds: of each node, by option.
        memory: bytes of each node, by option.
        limit: bytes of all nodes together.

    Returns:
        The number of each node's option; None where nothing fits.

    >>> fastest_options([[1, 2], [1, 4]], [[6, 3], [6, 1]], 9)
    (1, 0)
    """
    rows = [_undominated(s, m) for s, m in zip(seconds, memory, strict=True)]
    fastest = [row[0] for row in rows]
    # Where the fastest options fit, no memory has to be priced.
    if math.fsum(memory[v][o] for v, o in enumerate(fastest)) <= limit:
        return tuple(fastest)
    if math.fsum(memory[v][row[-1]] for v, row in enumerate(rows)) > limit:
        return None

    # Padded with the last option, which is the smallest, so that all have as many.
    width = max(map(len, rows))
    padded = [row + row[-1:] * (width - len(row)) for row in rows]
    cost = np.array([[seconds[v][o] for o in row] for v, row in enumerate(padded)])
    held = np.array([[memory[v][o] for o in row] for v, row in enumerate(padded)])
    price, taken = _best_price(cost, held, limit)
    known = _fill(cost, held, taken, limit)
    nodes = np.arange(len(rows))
    best = float(cost[nodes, known].sum())

    # What an option costs more than the node's best at this price is lost on the bound.
    priced = cost + price * held
    least = priced.min(axis=1)
    bound = float(least.sum() - price * limit)
    open_ = priced - least[:, None] + bound <= best * _SLACK
    better = _walk(cost, held, open_, price, limit, best)
    return tuple(
        padded[v][o] for v, o in enumerate(known if better is None else better)
    )


def _undominated(seconds: Sequence[float], memory: Sequence[float]) -> list[int]:
    """Return the options that no other beats, the fastest first, the smallest last."""
    found: list[int] = []
    for option in sorted(range(len(seconds)), key=lambda o: (seconds[o], memory[o])):
        if not found or memory[option] < memory[found[-1]]:
            found.append(option)
    return found


def _best_price(
    cost: NDArray[np.float64], held: NDArray[np.float64], limit: float
) -> tuple[float, NDArray[np.intp]]:
    """Return the lowest lambda whose choice fits, and that choice."""
    i, j = np.triu_indices(cost.shape[1], 1)
    saved = held[:, i] - held[:, j]
    more = cost[:, j] - cost[:, i]
    prices = np.unique(more[saved > 0] / saved[saved > 0])
    # Just above a breakpoint the smaller option wins: found by bisection, as memory
    # falls with the price.
    low, high, nodes = 0, len(prices) - 1, np.arange(len(cost))
    while low < high:
        middle = (low + high) // 2
        taken = _smallest_choice(cost, held, float(prices[middle]))
        if held[nodes, taken].sum() <= limit:
            high = middle
        else:
            low = middle + 1
    price = float(prices[low])
    return price, _smallest_choice(cost, held, price)


def _smallest_choice(
    cost: NDArray[np.float64], held: NDArray[np.float64], price: float
) -> NDArray[np.intp]:
    """Return the best option of each node at a price, of equals the smallest."""
    priced = cost + price * held
    near = priced <= priced.min(axis=1, keepdims=True) * _SLACK
    # Options become smaller to the right.
    return cost.shape[1] - 1 - near[:, ::-1].argmax(axis=1)


def _fill(
    cost: NDArray[np.float64],
    held: NDArray[np.float64],
    taken: NDArray[np.intp],
    limit: float,
) -> NDArray[np.intp]:
    """Return a choice that fits with faster options where there is room."""
    nodes, known = np.arange(len(cost)), taken.copy()
    room = limit - held[nodes, known].sum()
    # Greedy, the nodes that lose most seconds first: a better upper bound leaves fewer
    # options open below.
    for v in np.argsort(-(cost[nodes, known] - cost[:, 0])):
        for option in range(known[v]):
            if held[v, option] - held[v, known[v]] <= room:
                room -= held[v, option] - held[v, known[v]]
                known[v] = option
                break
    return known


def _walk(
    cost: NDArray[np.float64],
    held: NDArray[np.float64],
    open_: NDArray[np.bool_],
    price: float,
    limit: float,
    best: float,
) -> list[int] | None:
    """Return a choice that is faster than `best`; None where there is none.

    Args:
        cost: seconds, of each node by option.
        held: bytes, alike.
        open_: which options may be in a better choice.
        price: lambda of the bound.
        limit: bytes.
        best: seconds of a choice that is known.
    """
    # Nodes with a choice last: all others add one number.
    order = np.argsort(open_.sum(axis=1), kind="stable")
    least = (cost + price * held).min(axis=1)
    # Of the nodes behind each: their part of the bound, and the least they hold.
    ahead = np.append(np.cumsum(least[order][::-1])[::-1], 0.0)
    small = np.append(np.cumsum(held.min(axis=1)[order][::-1])[::-1], 0.0)
    spent, used = np.zeros(1), np.zeros(1)
    trail: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    for place, v in enumerate(order):
        options = np.flatnonzero(open_[v])
        spent = (spent[:, None] + cost[v, options]).ravel()
        used = (used[:, None] + held[v, options]).ravel()
        keep = used + small[place + 1] <= limit
        # What is spent so far and the bound of the rest must still be able to beat the
        # best.
        keep &= spent + price * used + ahead[place + 1] - price * limit <= best * _SLACK
        # By seconds, each has to hold less than all that are as fast.
        ranks = np.lexsort((used, spent))
        ranks = ranks[keep[ranks]]
        if not ranks.size:
            return None
        lowest = np.minimum.accumulate(used[ranks])
        ranks = ranks[np.append(True, used[ranks][1:] < lowest[:-1])]
        # (parent state, option) of each state that is kept, for the walk back.
        trail.append((ranks // options.size, options[ranks % options.size]))
        spent, used = spent[ranks], used[ranks]
    # Fastest first. No better than what is known is no answer.
    if not spent[0] < best:
        return None
    found, state = [0] * len(cost), 0
    for v, (parents, options) in zip(order[::-1], trail[::-1], strict=True):
        found[v] = int(options[state])
        state = int(parents[state])
    return found
