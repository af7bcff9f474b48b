"""Prefetch: batches that are made before they are needed, in threads or processes.

Threads are the default: reading and decoding a batch at once leaves Python little to
do. Processes are for samples whose decoding keeps several cores busy in Python. Each
makes whole batches, which are functions of the step, so their number changes nothing.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdist.core.object_reference import file_modules
from jaxdist.input.batch_assembly import Batch, BatchAssembler, Rows


@dataclass(frozen=True)
class Workers:
    """Processes that prepare batches, in place of threads of this one.

    They are sent the recipe. A script that starts them begins with
    `if __name__ == "__main__":`, as each loads it again.
    """

    count: int
    """How many."""
    threads: int = 1
    """That prepare batches in each."""


def prefetch_batches(
    assembler: BatchAssembler,
    rows: Rows,
    finish: Callable[[Batch], Any],
    register_thread: Callable[[], Any],
    *,
    start: int,
    stop: int,
    workers: int | Workers,
) -> Any:
    """Iterate over steps, made ahead of time; close the iterator in the end.

    Args:
        assembler: what is in the batch of a step; is sent to worker processes.
        rows: of the global batch that this host reads.
        finish: what is done with them here, in a thread.
        register_thread: told so in each of these threads, for each step.
        start: first step.
        stop: step behind the last one.
        workers: that make batches, or processes that do.
    """
    import grain

    def make(step: int) -> Batch:
        return assembler(step, rows)

    def made_here(step: int) -> Any:
        register_thread()
        return finish(make(step))

    def made_there(batch: Batch) -> Any:
        register_thread()
        # A copy: the memory that is shared with a worker is used again.
        own = {key: np.array(array, subok=False) for key, array in batch.items()}
        return finish(own)

    threads = workers if isinstance(workers, int) else workers.threads
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1)
    steps = grain.MapDataset.range(start, stop)
    if isinstance(workers, int):
        return iter(steps.map(made_here).to_iter_dataset(options))

    # Whole batches are made in workers, not samples: a batch is a function of the step,
    # so no iterator has a state, and another number of workers changes nothing.
    import cloudpickle
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # grain reads flags that nobody has parsed here
    for module in file_modules():
        # Modules loaded from a file by its path: a worker cannot import them by name.
        cloudpickle.register_pickle_by_value(module)
    several = grain.MultiprocessingOptions(
        num_workers=workers.count, per_worker_buffer_size=2
    )
    apart = steps.map(make).to_iter_dataset(options)
    brought = apart.mp_prefetch(several, _follow_parent).map(made_there)
    return iter(
        grain.experimental.ThreadPrefetchIterDataset(brought, prefetch_buffer_size=2)
    )


def _follow_parent(worker: int, workers: int) -> None:
    """Let a worker end with its parent, however that went, and not by a signal.

    Ctrl-C and SIGTERM reach a whole group of processes; the parent may have to finish a
    step first, for which it needs its batches.
    """
    # See above: only the end of the parent ends a worker.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        # Waits for the end of the process itself, also by SIGKILL; no polling.
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
