"""Behind: exchanges that follow the batches, in a thread of their own.

What comes for samples that leave is needed in the next epoch at the earliest: a peer
that is slow or gone delays no batch, unless exchanges are half an epoch late.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Final

from jaxdist.input.batch_assembly import Batch, BatchAssembler, Rows
from jaxdist.input.local_shuffle.source import LocalShuffleSource
from jaxdist.input.sources import Source

_MAX_LAG_STEPS: Final = 64
"""Most steps by which exchanges are behind batches, however long an epoch is."""


class AsyncExchanger:
    """Exchanges of samples that are kept; close it in the end.

    Args:
        source: the samples.
        decoded_source: what is made of them; none: they are read as they are.
    """

    def __init__(
        self, source: LocalShuffleSource, decoded_source: Source | None = None
    ) -> None:
        self.source, self._decoded_source = source, decoded_source or source
        self._max_pending = max(1, min(_MAX_LAG_STEPS, source.order.steps(1) // 2))
        self._pool = ThreadPoolExecutor(1, "exchange")
        self._pending: deque[Future[None]] = deque()
        self._lock = Lock()

    def assembler(self, read: Callable[[Source], BatchAssembler]) -> BatchAssembler:
        """Return batches of what is kept; behind each, what leaves is exchanged.

        Args:
            read: makes the recipe of a source.
        """
        recipe = read(self._decoded_source)

        def kept(step: int, rows: Rows) -> Batch:
            batch = recipe(step, rows)
            self.exchange(step)
            return batch

        return kept

    def exchange(self, step: int) -> None:
        """Exchange what leaves with a step, soon; wait only if that is far behind."""
        with self._lock:
            self._pending.append(self._pool.submit(self.source.exchange, step))
            while self._pending and (
                self._pending[0].done() or len(self._pending) > self._max_pending
            ):
                self._pending.popleft().result()

    def wait(self) -> None:
        """Wait until everything has come that was to come until now."""
        with self._lock:
            while self._pending:
                self._pending.popleft().result()

    def close(self) -> None:
        """End the exchange; closing twice does no harm."""
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()
