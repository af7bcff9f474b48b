"""Readings: what was read of a network by tracing it, kept for the next layout.

Most of what a layout asks about a network is the same for many layouts: which layers it
calls on a microbatch of so many samples, which parameters the backward pass reads. A
trace takes 0.1 to 5 s, so whoever lays a task out a hundred times hands the same
readings to each; without, everything is read afresh.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

ReadT = TypeVar("ReadT")


class TraceCache:
    """Readings of one task's network by what they depend on.

    >>> cache, calls = TraceCache(), []
    >>> [cache.get_or_compute("rows", lambda: calls.append(1) or 28) for _ in range(3)]
    [28, 28, 28]
    >>> len(calls)
    1
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def get_or_compute(self, key: Hashable, compute: Callable[[], ReadT]) -> ReadT:
        """Return a reading; it is taken where it is not there.

        Args:
            key: all that it depends on besides the network, and what is read.
            compute: takes it; where it raises nothing is kept.
        """
        if key not in self._found:
            self._found[key] = compute()
        # A reading that raised is not kept: the next layout raises by itself.
        found: ReadT = self._found[key]
        return found
