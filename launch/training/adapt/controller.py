"""Adapting: a run that is looked at while it goes, and may change its plan."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from jaxdist.launch.distributed.launcher_messages import announce_replan
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.distributed.synced_pause import SyncedPause
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.adapt.cluster_state import ClusterState
from jaxdist.launch.training.adapt.link_probe import LinkProbe, probe_message_bytes
from jaxdist.launch.training.adapt.replanner import Replanner
from jaxdist.launch.training.adapt.saved_plan import SavedPlan, write_saved_plan

if TYPE_CHECKING:
    from jaxdist.launch.training.session import RunObserver, TrainingSession
    from jaxdist.train.callbacks import EvalMetrics


@contextmanager
def adaptive_observer(
    machine: ClusterState | None,
    onlooker: "RunObserver",
    mine: ProcessGroup,
    *,
    started: float,
    ends: Callable[[], None],
) -> "Iterator[RunObserver]":
    """Yield who looks on.

    Args:
        machine: where it runs; None: nobody has said it, and nothing is looked at.
        onlooker: is shown what happens.
        mine: the process among those of its run.
        started: when the command started, Unix seconds.
        ends: asks all processes to save and end.
    """
    if machine is None:
        yield onlooker
        return
    with AdaptationController(
        onlooker, mine, machine, started=started, ends=ends
    ) as looks:
        yield looks


class AdaptationController:
    """Looks on, in every process, and sounds where process 0 asks for it, as a context.

    Args:
        onlooker: is shown all that happens, too.
        mine: the process among those of its run.
        machine: where it runs.
        started: when the command started, Unix seconds.
        ends: asks all processes to save and end.
    """

    def __init__(
        self,
        onlooker: "RunObserver",
        mine: ProcessGroup,
        machine: ClusterState,
        *,
        started: float,
        ends: Callable[[], None],
    ) -> None:
        self._onlooker, self._mine, self._machine = onlooker, mine, machine
        self._started, self._ends, self._costs = started, ends, 0.0
        self._stack, self._sounder = (
            ExitStack(),
            LinkProbe(mine, probe_message_bytes(machine.now)),
        )
        self._lookout: Replanner | None = None
        self._agreed: SyncedPause | None = None
        self._folder: RunFolder | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def begins(self, start: "TrainingSession") -> None:
        """Show the beginning, and be ready to sound before the first step."""
        self._onlooker.begins(start)
        self._folder = start.folder
        agreed = SyncedPause(self._mine, start.step + 1)
        self._agreed = self._stack.enter_context(agreed)
        if self._mine.leads:
            self._lookout = Replanner(
                start,
                self._machine,
                asks=agreed.ask,
                note=self._onlooker.note,
                path=start.folder.drift,
                goes=self._goes if self._machine.adapts else None,
            )
            self._stack.callback(self._lookout.close)

    def update(self, *, step: int, loss: float, step_s: float) -> None:
        """Show a step, and look at how long it took."""
        self._onlooker.update(step=step, loss=loss, step_s=step_s)
        self._costs = self._costs or time.time() - self._started
        if self._lookout is not None:
            self._lookout.update(step, step_s, self._costs)

    def tested(self, *, step: int, score: "EvalMetrics") -> None:
        """Show an evaluation."""
        self._onlooker.tested(step=step, score=score)

    def note(self, text: str) -> None:
        """Show a line."""
        self._onlooker.note(text)

    def due(self, step: int) -> bool:
        """Whether to sound before this step."""
        return self._agreed is not None and self._agreed.due(step)

    def pause(self) -> None:
        """Sound."""
        found = self._sounder()
        if found is not None and self._lookout is not None:
            self._lookout.sounded(found)

    def _goes(self, change: SavedPlan) -> None:
        """Leave the plan where the next sitting finds it, and end this one."""
        assert self._folder is not None
        write_saved_plan(self._folder.adapted, change)
        announce_replan()
        self._ends()
