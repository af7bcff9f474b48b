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
    size: int = 1
    """How many there are."""
    kv_store: Any = None
    """Keys and values that all of them see; None for a process on its own."""

    @property
    def is_primary(self) -> bool:
        """Whether this process writes the files of the run and speaks for it."""
        return self.rank == 0

    @contextmanager
    def primary_first(self, name: str) -> Iterator[None]:
        """Do something in process 0 first, then in the others; all wait for all.

        What process 0 refuses, no other process begins: there is one message. Devices
        must not be counted inside: jax does so in all processes at once.

        Args:
            name: a name that each process uses once.
        """
        if self.kv_store is None:
            yield
            return
        done = f"jaxdist/{name}"
        if not self.is_primary:
            self.kv_store.blocking_key_value_get(done, _BARRIER_TIMEOUT_MS)
        yield
        if self.is_primary:
            self.kv_store.key_value_set(done, "done")
        self.kv_store.wait_at_barrier(done, _BARRIER_TIMEOUT_MS)

    def broadcast_bool(self, name: str, value: bool) -> bool:
        """Return what process 0 says, in all processes.

        Args:
            name: a name that each process uses once.
            value: what this process would say.
        """
        if self.kv_store is None:
            return value
        key = f"jaxdist/told/{name}"
        if self.is_primary:
            self.kv_store.key_value_set(key, str(int(value)))
        return self.kv_store.blocking_key_value_get(key, _BARRIER_TIMEOUT_MS) == "1"

    @contextmanager
    def elect_printer(self) -> Iterator[bool]:
        """Let one process say what all of them may have met.

        Yields whether it is this one. The others leave after it has spoken.
        """
        first = self._is_elected()
        yield first
        if self.kv_store is None:
            return
        # Without an answer process 0 is gone, and nothing is left to wait for.
        with suppress(RuntimeError):
            if first:
                self.kv_store.key_value_set(_SPOKEN, "spoken")
            else:
                self.kv_store.blocking_key_value_get(_SPOKEN, _PRINT_TIMEOUT_MS)

    def exit_process(self, code: int) -> int:
        """Return the exit code of this process, or, having failed among others, end it.

        jax lets a process that ends wait for all others, which wait for this one.
        """
        if self.kv_store is not None and code:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _is_elected(self) -> bool:
        if self.kv_store is None:
            return True
        try:
            self.kv_store.key_value_set(_SPEAKER, str(self.rank))
        except RuntimeError:  # taken; or process 0 is gone, which had its say
            return False
        return True


def process_group() -> ProcessGroup:
    """Return the process group of this process: itself alone where it joined none."""
    state = _jax_distributed_state()
    if state is None or state.client is None:
        return ProcessGroup()
    return ProcessGroup(
        rank=state.process_id, size=state.num_processes, kv_store=state.client
    )


def coordinator_host() -> str:
    """Return the host at which process 0 of this process group listens."""
    address = str(_jax_distributed_state().coordinator_address)
    return address.rpartition(":")[0].strip("[]")


def _jax_distributed_state() -> Any:
    """Return what jax knows of the processes that joined; None without jax."""
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
