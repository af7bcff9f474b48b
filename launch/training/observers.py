"""Attended: a sitting of a run with all who look after it, from before its first phase.

recorder     each phase and each step         metrics and spans of the run folder
watch        a step that does not end         stacks of all threads, and the end
stragglers   processes slower than others     a line for a person
bulletin     where each process is            the folder's status
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.job import Job
from jaxdist.launch.training.monitor.heartbeat import StatusWriter
from jaxdist.launch.training.monitor.stragglers import StragglerMonitor
from jaxdist.launch.training.monitor.watchdog import HangWatchdog
from jaxdist.train.metrics import Recorder


@dataclass(frozen=True, kw_only=True)
class RunObservers:
    """Those whom a sitting speaks to."""

    recorder: Recorder
    """Is told of each phase, and tells the others."""
    news: StatusWriter
    """Is told that the run was accepted, and how it ended."""


@contextmanager
def run_observers(
    job: Job,
    mine: ProcessGroup,
    folder: RunFolder,
    own: RunFolder,
    *,
    note: Callable[[str], None],
    on_processor: bool,
    started: float,
) -> Iterator[RunObservers]:
    """Yield those whom a sitting speaks to; they leave in reverse.

    Args:
        job: what runs.
        mine: the process among those of its run.
        folder: the run's, where stuck processes leave their stacks.
        own: where this process writes what it has seen.
        note: shows a line.
        on_processor: whether devices are threads of this process.
        started: when the command started, Unix seconds.
    """
    config = job.config.run
    watch = HangWatchdog(mine, config.hang_s, folder.stacks)
    every = config.straggler_every
    slow = StragglerMonitor(mine, every, note, own.slow, on_processor=on_processor)

    def enters(phase: str, step: int) -> None:
        watch.enters(phase, step)
        slow.enters(phase, step)

    recorder = Recorder(own.metrics, own.spans, started, enters, slow.starved)
    with ExitStack() as stack:
        stack.callback(recorder.close)
        stack.enter_context(watch)
        stack.enter_context(slow)
        news = StatusWriter(own.status, job.course.steps, mine, watch.places)
        stack.enter_context(news)
        yield RunObservers(recorder=recorder, news=news)
