"""Packing: documents put into windows of as many tokens each, with little padding.

A document longer than a window fills windows of its own; what is left of it, and whole
documents that are shorter, share windows. The longest is placed first, each in the
window with the least room that it fits into: best-fit decreasing (Johnson 1973, "Near-
optimal bin packing algorithms"), for all pieces of a length at once, as in Krell
et al. 2021, arXiv:2107.02027, section 3.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Windows of pieces of documents: a row a piece, in the order of the windows."""

    size: int
    """Tokens of a window, T."""
    documents: Places
    """Document of each piece."""
    starts: Places
    """Where in its document a piece begins."""
    lengths: Places
    """Tokens of each piece, 1 to T."""
    bounds: Places
    """Window w has the pieces `bounds[w]` to `bounds[w + 1]`, [windows + 1]."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def padding(self) -> float:
        """Share of all places in windows that have no token."""
        places = len(self) * self.size
        return float(places - self.lengths.sum()) / max(places, 1)


def pack_documents(lengths: Places, size: int) -> Packing:
    """Put documents into windows; the same windows for the same lengths.

    Args:
        lengths: tokens of each document, at least 1, int [N].
        size: tokens of a window.

    >>> packed = pack_documents(np.array([3, 9, 4, 1]), 4)
    >>> packed.bounds.tolist(), packed.padding
    ([0, 1, 2, 3, 5, 6], 0.15)
    >>> packed.documents.tolist(), packed.lengths.tolist()
    ([1, 1, 2, 0, 1, 3], [4, 4, 4, 3, 1, 1])
    """
    whole, rest = np.divmod(lengths, size)
    full = np.repeat(np.arange(len(lengths)), whole)
    # Number of each piece among those of its document.
    order = np.arange(len(full)) - np.repeat(np.cumsum(whole) - whole, whole)
    part = np.nonzero(rest)[0]
    windows, count = _best_fit(rest[part], size)
    # Stable: pieces lie in a window in the order in which they were placed, the longest
    # first, and of equal ones that of the document that came first.
    by_length = np.argsort(-rest[part], kind="stable")
    placed = by_length[np.argsort(windows[by_length], kind="stable")]
    shared = np.bincount(windows, minlength=count)
    sizes = np.concatenate([np.ones(len(full), np.int64), shared])
    return Packing(
        size=size,
        documents=np.concatenate([full, part[placed]]),
        starts=np.concatenate([order * size, (whole * size)[part[placed]]]),
        lengths=np.concatenate([np.full(len(full), size), rest[part[placed]]]),
        bounds=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


def _best_fit(lengths: Places, size: int) -> tuple[Places, int]:
    """Return the window of each piece shorter than a window, and how many there are."""
    windows, count = np.zeros(len(lengths), np.int64), 0
    order = np.argsort(-lengths, kind="stable")
    # By room that is left: the windows that have it, and a bit for each room that some
    # window has, so that the least room that is enough is found at once.
    by_room: list[list[Places]] = [[] for _ in range(size + 1)]
    rooms = 0
    values, firsts = np.unique(-lengths[order], return_index=True)
    groups = np.split(order, firsts)[1:]
    for length, pieces in zip((-values).tolist(), groups, strict=True):
        left = pieces
        while len(left):
            # Bits of rooms below the length are cleared; the lowest that is left is the
            # best fit.
            enough = rooms >> length << length
            room = (enough & -enough).bit_length() - 1 if enough else size
            # Each window takes as many as fit before the next one is begun.
            each = room // length
            needed = -(-len(left) // each)
            if enough:
                found = by_room[room].pop()
                if not by_room[room]:
                    rooms ^= 1 << room
            else:
                found, count = np.arange(count, count + needed), count + needed
            used, unused = np.split(found, [needed])
            now, left = np.split(left, [len(used) * each])
            windows[now] = np.repeat(used, each)[: len(now)]
            last = len(now) - (len(used) - 1) * each
            # Windows that were not needed, those that are as full as they can be, and
            # the last one.
            for some, space in (
                (unused, room),
                (used[:-1], room - each * length),
                (used[-1:], room - last * length),
            ):
                if len(some):
                    by_room[space].append(some)
                    rooms |= 1 << space
    return windows, count
