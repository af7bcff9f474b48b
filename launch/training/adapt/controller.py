"""Adapting: a run that says why its steps drift, and continues under a better plan.

step 48   a drift: 8 steps in a row took 3.9 times as long
step 51   all processes measure their links: that of rank 2 carries a tenth
          a search begins, in a process of its own; training goes on meanwhile
step 60   another plan is 1.9 times as fast: all save and end, to go on under it
"""

import json
import shlex
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Self

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import FatalError
from jaxdist.core.validation import json_text
from jaxdist.launch.distributed.launcher_messages import MessageKind, send_to_launcher
from jaxdist.launch.distributed.process_group import ProcessGroup, StepAgreement
from jaxdist.launch.training.adapt.diagnosis import (
    DRIFT_WINDOW,
    Diagnosis,
    DriftDetector,
    StepTimeDrift,
    diagnose,
)
from jaxdist.launch.training.adapt.link_probe import (
    LinkMeasurement,
    LinkProbe,
    probe_message_bytes,
)
from jaxdist.launch.training.adapt.plan_search import (
    PlanSearchProcess,
    can_resume,
    decide_restart,
    search_overrides,
)
from jaxdist.launch.training.job.abstract_step import describe_job
from jaxdist.launch.training.job.setup import (
    ClusterState,
    SavedPlan,
    digest_cluster,
    write_saved_plan,
)
from jaxdist.oracle.predict import predict

if TYPE_CHECKING:
    from jaxdist.launch.training.session import RunObserver, TrainingSession
    from jaxdist.train.callbacks import EvalMetrics

_MIN_STEPS_LEFT: Final = 10
"""Steps before the end of a run in which nothing is asked any more."""


class AdaptationController:
    """Observes a run, in every process, and measures where process 0 asks; a context.

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
        self._observer, self._group, self._cluster = observer, group, cluster_state
        self._start_time, self._request_stop = start_time, request_stop
        self._startup_s, self._stack = 0.0, ExitStack()
        self._probe = LinkProbe(group, probe_message_bytes(cluster_state.now))
        self._replanner: Replanner | None = None
        self._pause: StepAgreement | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def on_start(self, session: "TrainingSession") -> None:
        """Show the beginning, and ask for a measurement before the first step."""
        self._observer.on_start(session)
        # The first measurement, before the first step, is what later ones are compared
        # with.
        pause = StepAgreement(self._group, "pause", session.start_step + 1)
        self._pause = self._stack.enter_context(pause)
        if self._group.is_primary:
            self._replanner = Replanner(
                session,
                self._cluster,
                request_probe=pause.request,
                print_line=self._observer.print_line,
                path=session.folder.drift_log,
                request_stop=self._request_stop,
            )
            self._stack.callback(self._replanner.close)

    def on_step(self, *, step: int, loss: float, step_s: float) -> None:
        """Show a step, and look at how long it took."""
        self._observer.on_step(step=step, loss=loss, step_s=step_s)
        # The first step ends what a restart would cost: imports, compiling, restoring.
        self._startup_s = self._startup_s or time.time() - self._start_time
        if self._replanner is not None:
            self._replanner.update(step, step_s, self._startup_s)

    def on_evaluation(self, *, step: int, metrics: "EvalMetrics") -> None:
        """Show an evaluation."""
        self._observer.on_evaluation(step=step, metrics=metrics)

    def print_line(self, text: str) -> None:
        """Show a line."""
        self._observer.print_line(text)

    def is_due(self, step: int) -> bool:
        """Whether to measure before this step."""
        return self._pause is not None and self._pause.reached(step) == step

    def on_pause(self) -> None:
        """Measure the links and devices, in all processes at once."""
        found = self._probe()
        if found is not None and self._replanner is not None:
            self._replanner.on_measurement(found)


@dataclass(frozen=True, kw_only=True)
class _PendingSearch:
    """A search for a plan that is under way."""

    process: PlanSearchProcess
    """The process that searches."""
    reason: Diagnosis
    """What has changed."""
    cluster: Cluster
    """The cluster since then."""
    present_s: float
    """Seconds of a step that are predicted there of the present plan."""


class Replanner:
    """Finds drifts, their reasons and better plans, in process 0 of a run.

    Args:
        session: how the attempt begins.
        cluster_state: where it runs.
        request_probe: asks all processes to measure.
        print_line: shows a line.
        path: file that gets a JSON object a line.
        request_stop: asks all processes to save and end.
    """

    def __init__(
        self,
        session: "TrainingSession",
        cluster_state: ClusterState,
        *,
        request_probe: Callable[[], None],
        print_line: Callable[[str], None],
        path: Path,
        request_stop: Callable[[], None],
    ) -> None:
        self._job, self._folder = session.job, session.folder
        self._state, self._cluster = cluster_state, cluster_state.now
        self._request_probe, self._print_line = request_probe, print_line
        self._path, self._request_stop = path, request_stop
        self._step_description = describe_job(session.job)
        self.predicted_s = predict(self._step_description, self._cluster).step_s
        self._detector = DriftDetector()
        self._recent_s = deque[float](maxlen=DRIFT_WINDOW)
        self._drift: StepTimeDrift | None = None
        self._baseline: LinkMeasurement | None = None
        self._pending: _PendingSearch | None = None
        self._stack = ExitStack()

    def close(self) -> None:
        """End a search that is under way."""
        self._stack.close()

    def update(self, step: int, step_s: float, startup_s: float) -> None:
        """Look at a step.

        Args:
            step: counted from 1.
            step_s: seconds that it took.
            startup_s: seconds from the start of the command to the first step.
        """
        self._recent_s.append(step_s)
        if self._pending is not None:
            # Steps during a search are not looked at: it takes processor time, and
            # would be taken for a drift of its own.
            if self._pending.process.over:
                self._decide(self._pending, step, startup_s)
            return

        # Processes are missing: the plan was only made smaller, and another one may be
        # better for those that are here. Links are measured before that is asked.
        why, can_adapt = self._state.fewer, self._state.adapts
        if why and self._baseline is not None and can_adapt:
            self._state = replace(self._state, fewer="")
            predicted = f"predicted {1e3 * self.predicted_s:,.0f} ms a step"
            self._print_line(f"adapt: {why}; {predicted}")
            self._log("reason", step=step, why=why, predicted=self.predicted_s)
            reason = Diagnosis(texts=(why,), changes={})
            self._search(reason, self._cluster, self.predicted_s)
            return

        # Near the end no restart pays, and no measurement.
        left = self._job.run_schedule.steps - step
        drift = self._detector.seen(step, step_s)
        if drift is not None and left > _MIN_STEPS_LEFT and self._drift is None:
            self._drift = drift
            self._log("drift", **asdict(drift), predicted=self.predicted_s)
            self._request_probe()

    def on_measurement(self, measurement: LinkMeasurement) -> None:
        """Say why steps drift, by what links and devices do now; search where asked."""
        drift, self._drift = self._drift, None
        # The first measurement is asked for by the controller, not by a drift.
        if self._baseline is None:
            self._baseline = measurement
        if drift is None:
            return
        devices = self._job.plan.mesh.devices
        # All processes have as many devices: preflight has compared them.
        each = devices // len(measurement.hosts)
        reason = diagnose(self._baseline, measurement, self._cluster, each)
        if reason is None:
            # A drift without a cause in the cluster: the next one must last longer.
            self._detector.doubts()
            if drift.times < 1:
                return  # nobody asks why a run is quicker
        predicted = f"predicted {1e3 * self.predicted_s:,.0f} ms"
        self._print_line(f"drift: {drift.text} ({predicted})")
        if reason is None:
            self._print_line("  links and devices are as they were at the start")
            return

        now = reason.applied(self._cluster)
        present_s = predict(self._step_description, now).step_s
        with_it = f"predicted with it {1e3 * present_s:,.0f} ms"
        self._print_line(f"  likely cause: {reason.text}; {with_it}")
        self._log("reason", step=drift.step, why=reason.text, predicted=present_s)
        if self._state.adapts:
            self._search(reason, now, present_s)
            return
        # Without --adapt, the command that searches for a plan is named instead.
        resolved = self._job.resolved
        words = [w for w in search_overrides(resolved) if not w.startswith("run.")]
        asked = shlex.join((resolved.experiment, *words))
        # The command has the numbers of now, so its answer is that of `--adapt`.
        what_if = (f"--what-if {word}" for word in reason.words(self._cluster))
        on = " ".join((f"--cluster {self._state.name} --devices {devices}", *what_if))
        self._print_line(f"  try    jaxdist plan {asked} {on}")

    def _search(self, reason: Diagnosis, now: Cluster, present_s: float) -> None:
        """Begin to search for a plan, beside the training."""
        config, devices = self._job.config, self._job.plan.mesh.devices
        process = PlanSearchProcess(
            self._job.resolved, now, devices, lambda plan: can_resume(config, plan)
        )
        self._pending = _PendingSearch(
            process=self._stack.enter_context(process),
            reason=reason,
            cluster=now,
            present_s=present_s,
        )

    def _decide(self, pending: _PendingSearch, step: int, startup_s: float) -> None:
        """Compare the plan that was found with the present one; restart if it pays."""
        self._pending = None
        # The search took processor time from the steps, so a new baseline is taken.
        self._detector.again()
        # Read before the stack is closed: the answer lies in files that go with the
        # process.
        try:
            found = pending.process.found()
        except FatalError as error:
            self._print_line(f"adapt: {error}")
            return
        finally:
            self._stack.close()
        choice = decide_restart(
            (self._job.plan.label, pending.present_s),
            (found.plan.label, found.step_s),
            step_s=median(self._recent_s),
            steps_left=self._job.run_schedule.steps - step,
            restart_s=startup_s,
        )
        self._print_line(f"adapt: {choice.text} (found in {found.search_s:.1f} s)")
        self._log("plan", step=step, search=found.search_s, **asdict(choice))
        if not choice.changes:
            return
        # The plan is left where the next attempt finds it. The launcher must hear of it
        # before this process ends, or it would count the restart as a failure.
        change = SavedPlan(
            asked=digest_cluster(self._state.given),
            processes=len(self._baseline.hosts) if self._baseline else 1,
            step=step,
            why=pending.reason.text,
            plan=json.loads(found.plan.to_json()),
            cluster=json.loads(pending.cluster.to_json()),
        )
        write_saved_plan(self._folder.saved_plan, change)
        send_to_launcher(MessageKind.ADAPTING)
        self._request_stop()

    def _log(self, kind: str, **values: Any) -> None:
        row = {"kind": kind, **values, "time": time.time()}
        # A full disk must not end a run for the sake of its log.
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json_text(row) + "\n")
