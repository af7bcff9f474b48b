"""Lookout: says why the steps of a run drift, and finds the plan for what is now.

step 48   a drift: 8 steps in a row took 3.9 times as long
step 51   all processes sound their links: that of rank 2 carries a tenth
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
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import FatalError
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.training.adapt.cluster_state import ClusterState
from jaxdist.launch.training.adapt.diagnosis import Diagnosis, diagnose
from jaxdist.launch.training.adapt.drift_detector import (
    DRIFT_WINDOW,
    DriftDetector,
    StepTimeDrift,
)
from jaxdist.launch.training.adapt.link_probe import LinkMeasurement
from jaxdist.launch.training.adapt.plan_search import (
    PlanSearchProcess,
    search_overrides,
)
from jaxdist.launch.training.adapt.restart_decision import can_resume, decide_restart
from jaxdist.launch.training.adapt.saved_plan import SavedPlan, digest_cluster
from jaxdist.launch.training.job.abstract_step import describe_job
from jaxdist.oracle.predict import predict

if TYPE_CHECKING:
    from jaxdist.launch.training.session import TrainingSession

_MIN_STEPS_LEFT: Final = 10
"""Steps before the end of a run in which nothing is asked any more."""


@dataclass(frozen=True, kw_only=True)
class _PendingSearch:
    """A search that is under way."""

    search: PlanSearchProcess
    """The process."""
    reason: Diagnosis
    """What has changed."""
    cluster: Cluster
    """The numbers since then."""
    present_s: float
    """What is predicted with them of the present plan."""


class Replanner:
    """Looks at the steps of a run; of several processes in the first.

    Args:
        session: how the sitting begins.
        cluster_state: where it runs.
        request_probe: asks all processes to sound.
        print_line: shows a line.
        path: file that gets an object a line.
        switch_plan: goes on under another plan; None where that was not asked for.
    """

    def __init__(
        self,
        session: "TrainingSession",
        cluster_state: ClusterState,
        *,
        request_probe: Callable[[], None],
        print_line: Callable[[str], None],
        path: Path,
        switch_plan: Callable[[SavedPlan], None] | None,
    ) -> None:
        self._start, self._machine, self._cluster = (
            session,
            cluster_state,
            cluster_state.now,
        )
        self._asks, self._note, self._path, self._goes = (
            request_probe,
            print_line,
            path,
            switch_plan,
        )
        self._case = describe_job(session.job)
        self.predicted_s = predict(self._case, self._cluster).step_s
        self._pace, self._recent = DriftDetector(), deque[float](maxlen=DRIFT_WINDOW)
        self._drift: StepTimeDrift | None = None
        self._first: LinkMeasurement | None = None
        self._sought: _PendingSearch | None = None
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
        self._recent.append(step_s)
        if self._sought is not None:
            if self._sought.search.over:
                self._weighs(self._sought, step, startup_s)
            return
        if self._machine.fewer and self._first is not None and self._goes is not None:
            self._fewer(self._machine.fewer, step)
            return
        left = self._start.job.run_schedule.steps - step
        drift = self._pace.seen(step, step_s)
        if drift is not None and left > _MIN_STEPS_LEFT and self._drift is None:
            self._drift = drift
            self._writes("drift", **asdict(drift), predicted=self.predicted_s)
            self._asks()

    def sounded(self, measurement: LinkMeasurement) -> None:
        """Look at what the links carry now."""
        drift, self._drift = self._drift, None
        if self._first is None:
            self._first = measurement
        if drift is None:
            return
        each = self._start.job.layout.plan.mesh.devices // len(measurement.hosts)
        reason = diagnose(self._first, measurement, self._cluster, each)
        if reason is None:
            self._pace.doubts()
            if drift.times < 1:
                return  # nobody asks why a run is quicker
        predicted = f"predicted {1e3 * self.predicted_s:,.0f} ms"
        self._note(f"drift: {drift.text} ({predicted})")
        if reason is None:
            self._note("  links and devices are as they were at the start")
        else:
            self._names(reason, drift)

    def _names(self, reason: Diagnosis, drift: StepTimeDrift) -> None:
        """Say what has changed, and search for a plan where that is asked for."""
        now = reason.applied(self._cluster)
        present_s = predict(self._case, now).step_s
        with_it = f"predicted with it {1e3 * present_s:,.0f} ms"
        self._note(f"  likely cause: {reason.text}; {with_it}")
        self._writes("reason", step=drift.step, why=reason.text, predicted=present_s)
        mesh = self._start.job.layout.plan.mesh
        if self._goes is None:
            now_words = (f"--what-if {w}" for w in reason.words(self._cluster))
            on = f"--cluster {self._machine.name} --devices {mesh.devices}"
            of = " ".join((on, *now_words))
            self._note(
                f"  try    jaxdist plan {_experiment_arguments(self._start.resolved)} "
                f"{of}"
            )
            return
        self._seeks(reason, now, present_s)

    def _fewer(self, why: str, step: int) -> None:
        """Search for the plan of as many processes as are here."""
        self._machine = replace(self._machine, fewer="")
        self._note(f"adapt: {why}; predicted {1e3 * self.predicted_s:,.0f} ms a step")
        reason = Diagnosis(texts=(why,), changes={})
        self._writes("reason", step=step, why=why, predicted=self.predicted_s)
        self._seeks(reason, self._cluster, self.predicted_s)

    def _seeks(self, reason: Diagnosis, now: Cluster, present_s: float) -> None:
        """Search, beside the training."""
        start = self._start
        config, plan = start.resolved.config, start.job.layout.plan
        search = PlanSearchProcess(
            start.resolved,
            now,
            plan.mesh.devices,
            lambda plan: can_resume(config, plan),
        )
        self._sought = _PendingSearch(
            search=self._stack.enter_context(search),
            reason=reason,
            cluster=now,
            present_s=present_s,
        )

    def _weighs(self, sought: "_PendingSearch", step: int, costs_s: float) -> None:
        """Hold the plan that was found against the present one."""
        self._sought = None
        self._pace.again()
        try:
            found = sought.search.found()
        except FatalError as error:
            self._note(f"adapt: {error}")
            return
        finally:
            self._stack.close()
        present = self._start.job.layout.plan
        choice = decide_restart(
            (present.label, sought.present_s),
            (found.plan.label, found.step_s),
            step_s=median(self._recent),
            steps_left=self._start.job.run_schedule.steps - step,
            restart_s=costs_s,
        )
        self._note(f"adapt: {choice.text} (found in {found.search_s:.1f} s)")
        self._writes("plan", step=step, search=found.search_s, **asdict(choice))
        if choice.changes and self._goes is not None:
            self._goes(
                SavedPlan(
                    asked=digest_cluster(self._machine.given),
                    processes=len(self._first.hosts) if self._first else 1,
                    step=step,
                    why=sought.reason.text,
                    plan=json.loads(found.plan.to_json()),
                    cluster=json.loads(sought.cluster.to_json()),
                )
            )

    def _writes(self, kind: str, **values: Any) -> None:
        row = {"kind": kind, **values, "time": time.time()}
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _experiment_arguments(resolved: ResolvedConfig) -> str:
    """Write an experiment with its overrides, but for those that a plan decides."""
    words = [w for w in search_overrides(resolved) if not w.startswith("run.")]
    return shlex.join((resolved.experiment, *words))
