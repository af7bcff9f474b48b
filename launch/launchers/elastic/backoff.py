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
        after_s: seconds of the first time.

    >>> aside = SlotBackoff(30)
    >>> aside.put([1], now=100)
    >>> aside.resting(129), aside.resting(131)
    ({1}, set())
    """

    def __init__(self, after_s: float = REJOIN_AFTER_S) -> None:
        self._after = after_s
        self._times: Counter[int] = Counter()
        self._until: dict[int, float] = {}

    def put(self, places: Iterable[int], now: float) -> None:
        """Let places rest from now on."""
        for place in places:
            times = min(2 ** self._times[place], _MAX_FACTOR)
            self._until[place] = now + self._after * times
            self._times[place] += 1

    def resting(self, now: float) -> set[int]:
        """Return the places that are not asked yet."""
        return {place for place, until in self._until.items() if until > now}
