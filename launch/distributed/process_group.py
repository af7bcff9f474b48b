"""Company: the processes of one run; what one of them does, and the others wait for.

They speak through the key-value store that `jax.distributed` keeps in process 0, which
works before any device does and while the main thread of another process is busy.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

_BARRIER_TIMEOUT_MS: Final = 24 * 60 * 60 * 1000
"""A data set may be prepared meanwhile; who watches over processes ends a dead one."""
_PRINT_TIMEOUT_MS: Final = 10_000
EXIT_RESTART: Final = 75
"""Exit code of a process that has ended in good order and is to be started again."""
_SPEAKER, _SPOKEN = "jaxdist/speaker", "jaxdist/spoken"


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """A process among those of its run."""

    rank: int = 0
    """Which process this is."""
    count: int = 1
    """How many there are."""
    store: Any = None
    """Keys and values that all of them see; None for a process on its own."""

    @property
    def leads(self) -> bool:
        """Whether this process writes the files of the run and speaks for it."""
        return self.rank == 0

    @contextmanager
    def in_turn(self, what: str) -> Iterator[None]:
        """Do something in process 0 first, then in the others; all wait for all.

        What process 0 refuses, no other process begins: there is one message. Devices
        must not be counted inside: jax does so in all processes at once.

        Args:
            what: a name that each process uses once.
        """
        if self.store is None:
            yield
            return
        done = f"jaxdist/{what}"
        if not self.leads:
            self.store.blocking_key_value_get(done, _BARRIER_TIMEOUT_MS)
        yield
        if self.leads:
            self.store.key_value_set(done, "done")
        self.store.wait_at_barrier(done, _BARRIER_TIMEOUT_MS)

    def told(self, what: str, said: bool) -> bool:
        """Return what process 0 says, in all processes.

        Args:
            what: a name that each process uses once.
            said: what this process would say.
        """
        if self.store is None:
            return said
        key = f"jaxdist/told/{what}"
        if self.leads:
            self.store.key_value_set(key, str(int(said)))
        return self.store.blocking_key_value_get(key, _BARRIER_TIMEOUT_MS) == "1"

    @contextmanager
    def speaking(self) -> Iterator[bool]:
        """Let one process say what all of them may have met.

        Yields whether it is this one. The others leave after it has spoken.
        """
        first = self._is_first()
        yield first
        if self.store is None:
            return
        # Without an answer process 0 is gone, and nothing is left to wait for.
        with suppress(RuntimeError):
            if first:
                self.store.key_value_set(_SPOKEN, "spoken")
            else:
                self.store.blocking_key_value_get(_SPOKEN, _PRINT_TIMEOUT_MS)

    def leave(self, code: int) -> int:
        """Return the exit code of this process, or, having failed among others, end it.

        jax lets a process that ends wait for all others, which wait for this one.
        """
        if self.store is not None and code:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _is_first(self) -> bool:
        if self.store is None:
            return True
        try:
            self.store.key_value_set(_SPEAKER, str(self.rank))
        except RuntimeError:  # taken; or process 0 is gone, which had its say
            return False
        return True


def process_group() -> ProcessGroup:
    """Return the process group of this process: itself alone where it joined none."""
    state = _jax_distributed_state()
    if state is None or state.client is None:
        return ProcessGroup()
    return ProcessGroup(
        rank=state.process_id, count=state.num_processes, store=state.client
    )


def coordinator_host() -> str:
    """Return the host at which process 0 of this process group listens."""
    address = str(_jax_distributed_state().coordinator_address)
    return address.rpartition(":")[0].strip("[]")


def _jax_distributed_state() -> Any:
    """Return what jax knows of the processes that joined; None without jax."""
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
