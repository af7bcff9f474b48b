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
    status_writer: StatusWriter
    """Is told that the run was accepted, and how it ended."""


@contextmanager
def run_observers(
    job: Job,
    group: ProcessGroup,
    folder: RunFolder,
    local_folder: RunFolder,
    *,
    print_line: Callable[[str], None],
    on_cpu: bool,
    start_time: float,
) -> Iterator[RunObservers]:
    """Yield those whom a sitting speaks to; they leave in reverse.

    Args:
        job: what runs.
        group: the process among those of its run.
        folder: the run's, where stuck processes leave their stacks.
        local_folder: where this process writes what it has seen.
        print_line: shows a line.
        on_cpu: whether devices are threads of this process.
        start_time: when the command started, Unix seconds.
    """
    config = job.config.run
    watch = HangWatchdog(group, config.hang_s, folder.stacks)
    every = config.straggler_every
    slow = StragglerMonitor(
        group, every, print_line, local_folder.stragglers, on_cpu=on_cpu
    )

    def enters(phase: str, step: int) -> None:
        watch.on_phase(phase, step)
        slow.on_phase(phase, step)

    recorder = Recorder(
        local_folder.metrics,
        local_folder.spans,
        start_time,
        enters,
        slow.on_input_starvation,
    )
    with ExitStack() as stack:
        stack.callback(recorder.close)
        stack.enter_context(watch)
        stack.enter_context(slow)
        news = StatusWriter(
            local_folder.status, job.run_schedule.steps, group, watch.heartbeats
        )
        stack.enter_context(news)
        yield RunObservers(recorder=recorder, status_writer=news)
