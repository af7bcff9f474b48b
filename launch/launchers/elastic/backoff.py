"""Aside: places that were lost, and when they are asked again."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

REJOIN_AFTER_S: Final = 30.0
"""Seconds before a place that was lost is asked again."""
_MAX_FACTOR: Final = 64


class SlotBackoff:
    """Who was lost rests, twice as long each time.

    Args:
        initial_s: seconds of the first time.

    >>> aside = SlotBackoff(30)
    >>> aside.exclude([1], now=100)
    >>> aside.excluded(129), aside.excluded(131)
    ({1}, set())
    """

    def __init__(self, initial_s: float = REJOIN_AFTER_S) -> None:
        self._initial_s = initial_s
        self._failures: Counter[int] = Counter()
        self._excluded_until: dict[int, float] = {}

    def exclude(self, slots: Iterable[int], now: float) -> None:
        """Let places rest from now on."""
        for place in slots:
            times = min(2 ** self._failures[place], _MAX_FACTOR)
            self._excluded_until[place] = now + self._initial_s * times
            self._failures[place] += 1

    def excluded(self, now: float) -> set[int]:
        """Return the places that are not asked yet."""
        return {place for place, until in self._excluded_until.items() if until > now}
