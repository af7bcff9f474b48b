"""The process group of a run: ranks, collectives without devices, agreement on steps.

Processes communicate through the key-value store that `jax.distributed` keeps in
process 0. It works before any device does, and from a thread while the main thread is
blocked in a collective or a compiler.

Agreeing on a step: all processes of a run do something before the same step.

process 0   step 41 ... 42 ... 43, then they do it      one requests it, in step 41;
process 1   step 41 ... 42 ... 43, then they do it      process 1 has begun step 42

Between steps nothing is sent: a step compares two numbers. A thread of each process
waits for a request. Once there is one, the threads hold their process between steps,
exchange how far each is, and take the step after the furthest: none has begun it yet.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any, Final, Self, TypeVar

from jaxdist.core.errors import JaxdistWarning
from jaxdist.core.validation import parse_json

# A data set may be prepared meanwhile; a dead process is the watchdog's concern.
_TIMEOUT_S: Final = 24 * 60 * 60.0
_PRINT_TIMEOUT_S: Final = 10.0
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """One process among those of its run.

    Names of operations are used once: the store has no way to reuse a key safely.
    Values are what JSON can hold. A process on its own never waits.
    """

    rank: int = 0
    """Which process this is."""
    size: int = 1
    """How many there are."""
    kv_store: Any = None
    """Client of the key-value store; None for a process on its own."""
    # Kept here, since Python forgets which warnings it has shown when filters change.
    _ignored_keys: set[str] = field(
        default_factory=set, init=False, repr=False, compare=False
    )

    @property
    def is_primary(self) -> bool:
        """Whether this is process 0, which writes the files and output of the run."""
        return self.rank == 0

    def broadcast(self, name: str, value: T, timeout_s: float = _TIMEOUT_S) -> T:
        """Return the value of process 0, in all processes.

        Args:
            name: name of this broadcast.
            value: what process 0 sends; ignored in the others.
            timeout_s: seconds that the others wait for process 0.
        """
        if self.kv_store is None or self.is_primary:
            self._set(f"broadcast/{name}", value)
            return value
        received: T = self._get(f"broadcast/{name}", timeout_s)
        return received

    def gather(self, name: str, value: T, timeout_s: float = _TIMEOUT_S) -> list[T]:
        """Return the values of all processes by rank in process 0, elsewhere none.

        Args:
            name: name of this gather.
            value: the value of this process.
            timeout_s: seconds that process 0 waits for each of the others.
        """
        if self.is_primary:
            keys = [f"gather/{name}/{rank}" for rank in range(1, self.size)]
            return [value, *(self._get(key, timeout_s) for key in keys)]
        self._set(f"gather/{name}/{self.rank}", value)
        return []

    def barrier(self, name: str, timeout_s: float = _TIMEOUT_S) -> None:
        """Wait until all processes are here."""
        if self.kv_store is not None:
            self.kv_store.wait_at_barrier(f"jaxdist/{name}", int(timeout_s * 1000))

    @contextmanager
    def primary_first(self, name: str) -> Iterator[None]:
        """Run a block in process 0 first, then in the others; all wait for all.

        Where process 0 raises, no other process begins: there is one message. Devices
        must not be counted inside: jax does so in all processes at once.

        Args:
            name: name of this block.
        """
        if not self.is_primary:
            self.broadcast(name, True)
        yield
        if self.is_primary:
            self.broadcast(name, True)
        self.barrier(name)

    def agree(self, name: str, value: int, timeout_s: float = _TIMEOUT_S) -> int:
        """Return the largest value of all processes, in all of them.

        Args:
            name: name of this agreement.
            value: the value of this process.
            timeout_s: seconds to wait for the others.
        """
        if self.kv_store is None:
            return value
        # Behind the barrier every value is there, so one read of the folder has all.
        self._set(f"agree/{name}/{self.rank}", value)
        self.barrier(f"agree/{name}", timeout_s)
        values = self.kv_store.key_value_dir_get(f"jaxdist/agree/{name}")
        return max(int(text) for _, text in values)

    def publish(self, name: str, value: object) -> None:
        """Replace what this process has published under a name, for all to read."""
        self._set(f"published/{name}/{self.rank}", value, overwrite=True)

    def published(self, name: str, parse: Callable[[Any], T]) -> dict[int, T]:
        """Return by rank what each process has published last; waits for nobody.

        What is damaged, or of something else, is left out with a warning.

        Args:
            name: name under which it was published.
            parse: makes it of what JSON holds; raises ValueError where it cannot.
        """
        if self.kv_store is None:
            return {}
        by_rank: dict[int, T] = {}
        for key, text in self.kv_store.key_value_dir_get(f"jaxdist/published/{name}"):
            rank = key.rpartition("/")[2]
            try:
                if rank not in map(str, range(self.size)):
                    raise ValueError(f"no rank of {self.size}")
                by_rank[int(rank)] = parse(parse_json(text))
            except ValueError as error:
                if key not in self._ignored_keys:
                    self._ignored_keys.add(key)
                    said = f"what rank {rank} says as {name} is ignored: {error}"
                    warnings.warn(JaxdistWarning(said), stacklevel=2)
        return dict(sorted(by_rank.items()))

    @contextmanager
    def elect_printer(self) -> Iterator[bool]:
        """Let one process print what all of them may have met.

        Yields whether it is this one. The others leave after it has printed, or it
        would be ended with them before it could.
        """
        elected = True
        if self.kv_store is not None:
            try:
                # Setting a key that is there fails, so the first to set it is elected.
                self._set("printer", self.rank)
            except RuntimeError:  # taken; or process 0 is gone, which has printed
                elected = False
        yield elected
        # Without an answer process 0 is gone, and nothing is left to wait for.
        with suppress(RuntimeError):
            if elected:
                self._set("printed", True)
            else:
                self._get("printed", _PRINT_TIMEOUT_S)

    def exit_process(self, code: int) -> int:
        """Return the exit code of this process, or, having failed among others, end it.

        A regular exit would wait in jax's shutdown barrier for the others, which wait
        for this process in a collective.
        """
        if self.kv_store is not None and code:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _set(self, key: str, value: object, *, overwrite: bool = False) -> None:
        if self.kv_store is not None:
            self.kv_store.key_value_set(
                f"jaxdist/{key}", json.dumps(value), allow_overwrite=overwrite
            )

    def _get(self, key: str, timeout_s: float) -> Any:
        ms = int(timeout_s * 1000)
        return json.loads(self.kv_store.blocking_key_value_get(f"jaxdist/{key}", ms))


def process_group() -> ProcessGroup:
    """Return the process group of this process: itself alone where it joined none."""
    # A process that never imported jax has not joined any, and need not import it now.
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
    # jax has no public name for its client of the key-value store.
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)


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
