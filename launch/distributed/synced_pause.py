"""Agreed: what all processes of a run do together, before the same step.

process 0   step 41 ... 42 ... 43, then they do it      process 0 asks, in step 41;
process 1   step 41 ... 42 ... 43, then they do it      process 1 has begun step 43

Nobody is asked between steps: one that is due is a comparison of two numbers. Who asks
is heard by a thread of each process; they tell each other how far they are.
"""

from contextlib import suppress
from threading import Lock, Thread
from types import TracebackType
from typing import Final, Self

from jaxdist.launch.distributed.process_group import ProcessGroup

_PAUSE_KEY: Final = "jaxdist/agreed"
_FOREVER_MS: Final = 365 * 24 * 60 * 60 * 1000
_BARRIER_TIMEOUT_MS: Final = 60_000


class SyncedPause:
    """Pauses of a run that process 0 asks for, as a context.

    Args:
        group: the process among those of its run.
        first_step: step before which one is due without being asked for.
    """

    def __init__(self, group: ProcessGroup, first_step: int) -> None:
        self._group, self._pause_step = group, first_step
        self._lock, self._step, self._request_count, self._stopped = Lock(), 0, 0, False
        self._thread = Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        if self._group.kv_store is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped = True
        if self._group.kv_store is not None:
            with suppress(RuntimeError):  # process 0 is gone, and its store
                self._set_key(self._group.rank, "over")
            self._thread.join(1)

    def due(self, step: int) -> bool:
        """Whether a pause is due before this step.

        Every process asks before each step.
        """
        with self._lock:
            self._step = step
            return step == self._pause_step

    def request(self) -> None:
        """Ask for a pause, before a step that all processes come to; in process 0."""
        if self._group.kv_store is None:
            with self._lock:
                self._pause_step = self._step + 1
            return
        with suppress(RuntimeError):  # the run ends: there is nothing to pause
            for rank in range(self._group.size):
                self._set_key(rank, "pause")

    def _listen(self) -> None:
        """Wait until a pause is asked for, and agree where."""
        store, rank = self._group.kv_store, self._group.rank
        with suppress(RuntimeError):
            while not self._stopped:
                key = f"{_PAUSE_KEY}/{self._request_count}"
                said = store.blocking_key_value_get(f"{key}/{rank}", _FOREVER_MS)
                if said != "pause":
                    return
                with self._lock:
                    store.key_value_set(f"{key}/reached/{rank}", str(self._step))
                    store.wait_at_barrier(f"{key}/reached", _BARRIER_TIMEOUT_MS)
                    reached = store.key_value_dir_get(f"{key}/reached")
                    self._pause_step = 1 + max(int(step) for _, step in reached)
                    self._request_count += 1

    def _set_key(self, rank: int, text: str) -> None:
        key = f"{_PAUSE_KEY}/{self._request_count}/{rank}"
        self._group.kv_store.key_value_set(key, text, allow_overwrite=True)
