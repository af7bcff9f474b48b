"""Turns: which messages may start, and when, as others arrive.

An actor, a rank or a whole collective, goes from step to step. It comes to its next
step when all messages of its step have arrived and were worked on, and a message starts
when all of its actors have come to its step.
"""

from collections import defaultdict
from collections.abc import Iterable

from jaxdist.network.routes import IntArray


class MessageScheduler:
    """Where actors are.

    Args:
        actors: `[M, 2]`, the actors of each message, which may be one.
        step: `[M]`, the step of each.

    Actor 0 sends to 1, which then sends to 2:

    >>> import numpy as np
    >>> turns = MessageScheduler(np.array([[0, 1], [1, 2]]), np.array([0, 1]))
    >>> turns.initial_starts(), turns.starts_after([0], [3.5])
    ({0: 0.0}, {1: 3.5})
    """

    def __init__(self, actors: IntArray, step: IntArray) -> None:
        self._actors = [sorted(set(pair)) for pair in actors.tolist()]
        self._waits = [len(pair) for pair in self._actors]
        by: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for message, (pair, at) in enumerate(zip(self._actors, step.tolist())):
            for actor in pair:
                by[actor][at].append(message)
        # Steps of an actor, the last one first, so that the next one is popped.
        self._steps = {
            actor: [steps[at] for at in sorted(steps, reverse=True)]
            for actor, steps in by.items()
        }
        self._missing = dict.fromkeys(by, 0)
        self._ready = dict.fromkeys(by, 0.0)

    def initial_starts(self) -> dict[int, float]:
        """Return the messages that start at once."""
        return self._advance_actors(list(self._steps))

    def starts_after(
        self, messages: Iterable[int], ready_s: Iterable[float]
    ) -> dict[int, float]:
        """Return the messages that start now, each with its time.

        Args:
            messages: those that arrived.
            ready_s: when each has been worked on.
        """
        done = []
        for message, time in zip(messages, ready_s):
            for actor in self._actors[message]:
                self._ready[actor] = max(self._ready[actor], time)
                self._missing[actor] -= 1
                if not self._missing[actor]:
                    done.append(actor)
        return self._advance_actors(done)

    def _advance_actors(self, actors: Iterable[int]) -> dict[int, float]:
        """Let actors come to their next step."""
        start = {}
        for actor in actors:
            messages = self._steps[actor].pop() if self._steps[actor] else []
            self._missing[actor] = len(messages)
            for message in messages:
                self._waits[message] -= 1
                if not self._waits[message]:
                    ready = (self._ready[each] for each in self._actors[message])
                    start[message] = max(ready)
        return start
