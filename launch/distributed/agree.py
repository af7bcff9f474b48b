"""Agreeing on a step: all processes of a run do something before the same step.

process 0   step 41 ... 42 ... 43, then they do it      one requests it, in step 41;
process 1   step 41 ... 42 ... 43, then they do it      process 1 has begun step 42

Between steps nothing is sent: a step compares two numbers. A thread of each process
waits for a request. Once there is one, the threads hold their process between steps,
exchange how far each is, and take the step after the furthest: none has begun it yet.
"""

import sys
from contextlib import suppress
from threading import Lock, Thread
from typing import Final, Self

from jaxdist.launch.distributed.process_group import ProcessGroup

_FOREVER_MS: Final = 365 * 24 * 60 * 60 * 1000
_AGREE_TIMEOUT_S: Final = 60.0
_REQUEST, _OVER = "request", "over"


class StepAgreement:
    """Steps that all processes agree on, one request after the other, as a context.

    Args:
        group: the process among those of its run.
        name: name of this agreement in the run.
        first_step: a step that is agreed on from the start.
    """

    def __init__(
        self, group: ProcessGroup, name: str, first_step: int = sys.maxsize
    ) -> None:
        self._group, self._key = group, f"step/{name}"
        self.agreed_step = first_step
        """The step that was agreed on last."""
        self._lock, self._step, self._round, self._stopped = Lock(), 0, 0, False
        self._thread = Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        if self._group.kv_store is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = True
        if self._group.kv_store is not None:
            # The thread is woken, so that it does not wait in jax's client while that
            # shuts down; unless process 0 is gone, and its store.
            with suppress(RuntimeError):
                self._send(self._group.rank, _OVER)
            self._thread.join(1)

    def reached(self, step: int) -> int:
        """Note that this process begins a step, and return the agreed step.

        Every process calls it before each of its steps, which are counted from 1.
        """
        with self._lock:
            self._step = step
            return self.agreed_step

    def request(self) -> None:
        """Ask all processes to agree on a step.

        Any process may ask for the first step; for more than one, always the same.
        """
        if self._group.kv_store is None:
            # The lock: signals arrive in another thread than steps.
            with self._lock:
                self.agreed_step = self._step + 1
            return
        with suppress(RuntimeError):  # process 0 is gone: there is no run any more
            for rank in range(self._group.size):
                self._send(rank, _REQUEST)

    def _listen(self) -> None:
        """Wait for requests, and agree on a step for each."""
        store, rank = self._group.kv_store, self._group.rank
        # What fails here fails for the run as a whole, which its launcher ends.
        with suppress(RuntimeError):
            while not self._stopped:
                key = f"jaxdist/{self._key}/{self._round}/{rank}"
                if store.blocking_key_value_get(key, _FOREVER_MS) != _REQUEST:
                    return
                # The lock keeps this process from its next step until all agree.
                with self._lock:
                    furthest = self._group.agree(
                        f"{self._key}/{self._round}", self._step, _AGREE_TIMEOUT_S
                    )
                    self.agreed_step = furthest + 1
                    self._round += 1

    def _send(self, rank: int, word: str) -> None:
        key = f"jaxdist/{self._key}/{self._round}/{rank}"
        self._group.kv_store.key_value_set(key, word, allow_overwrite=True)
