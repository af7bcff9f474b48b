"""Adapting: a run that is looked at while it goes, and may change its plan."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from jaxdist.launch.distributed.agree import StepAgreement
from jaxdist.launch.distributed.launcher_messages import MessageKind, send_to_launcher
from jaxdist.launch.distributed.process_group import ProcessGroup
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
    cluster_state: ClusterState | None,
    observer: "RunObserver",
    group: ProcessGroup,
    *,
    start_time: float,
    request_stop: Callable[[], None],
) -> "Iterator[RunObserver]":
    """Yield who looks on.

    Args:
        cluster_state: where it runs; None: nobody has said it, and nothing is looked
        at. observer: is shown what happens.
        group: the process among those of its run.
        start_time: when the command started, Unix seconds.
        request_stop: asks all processes to save and end.
    """
    if cluster_state is None:
        yield observer
        return
    with AdaptationController(
        observer, group, cluster_state, start_time=start_time, request_stop=request_stop
    ) as looks:
        yield looks


class AdaptationController:
    """Looks on, in every process, and sounds where process 0 asks for it, as a context.

    Args:
        observer: is shown all that happens, too.
        group: the process among those of its run.
        cluster_state: where it runs.
        start_time: when the command started, Unix seconds.
        request_stop: asks all processes to save and end.
    """

    def __init__(
        self,
        observer: "RunObserver",
        group: ProcessGroup,
        cluster_state: ClusterState,
        *,
        start_time: float,
        request_stop: Callable[[], None],
    ) -> None:
        self._onlooker, self._mine, self._machine = observer, group, cluster_state
        self._started, self._ends, self._costs = start_time, request_stop, 0.0
        self._stack, self._sounder = (
            ExitStack(),
            LinkProbe(group, probe_message_bytes(cluster_state.now)),
        )
        self._lookout: Replanner | None = None
        self._agreed: StepAgreement | None = None
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

    def on_start(self, session: "TrainingSession") -> None:
        """Show the beginning, and be ready to sound before the first step."""
        self._onlooker.on_start(session)
        self._folder = session.folder
        agreed = StepAgreement(self._mine, "pause", session.start_step + 1)
        self._agreed = self._stack.enter_context(agreed)
        if self._mine.is_primary:
            self._lookout = Replanner(
                session,
                self._machine,
                request_probe=agreed.request,
                print_line=self._onlooker.print_line,
                path=session.folder.drift_log,
                switch_plan=self._goes if self._machine.adapts else None,
            )
            self._stack.callback(self._lookout.close)

    def update(self, *, step: int, loss: float, step_s: float) -> None:
        """Show a step, and look at how long it took."""
        self._onlooker.update(step=step, loss=loss, step_s=step_s)
        self._costs = self._costs or time.time() - self._started
        if self._lookout is not None:
            self._lookout.update(step, step_s, self._costs)

    def tested(self, *, step: int, metrics: "EvalMetrics") -> None:
        """Show an evaluation."""
        self._onlooker.tested(step=step, metrics=metrics)

    def print_line(self, text: str) -> None:
        """Show a line."""
        self._onlooker.print_line(text)

    def due(self, step: int) -> bool:
        """Whether to sound before this step."""
        return self._agreed is not None and self._agreed.reached(step) == step

    def pause(self) -> None:
        """Sound."""
        found = self._sounder()
        if found is not None and self._lookout is not None:
            self._lookout.sounded(found)

    def _goes(self, change: SavedPlan) -> None:
        """Leave the plan where the next sitting finds it, and end this one."""
        assert self._folder is not None
        write_saved_plan(self._folder.saved_plan, change)
        send_to_launcher(MessageKind.ADAPTING)
        self._ends()
