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
from jaxdist.core.errors import Failed
from jaxdist.launch.config.provenance import Resolved
from jaxdist.launch.training.adapt.cluster_state import Machine
from jaxdist.launch.training.adapt.diagnosis import Reason, reason_for
from jaxdist.launch.training.adapt.drift_detector import IN_A_ROW, Drift, Pace
from jaxdist.launch.training.adapt.link_probe import Sounding
from jaxdist.launch.training.adapt.plan_search import Search, asked
from jaxdist.launch.training.adapt.restart_decision import goes_on, weighed
from jaxdist.launch.training.adapt.saved_plan import Adapted, digest
from jaxdist.launch.training.job.abstract_step import case_of
from jaxdist.oracle.predict import predict

if TYPE_CHECKING:
    from jaxdist.launch.training.session import Start

_LEAST: Final = 10
"""Steps before the end of a run in which nothing is asked any more."""


@dataclass(frozen=True, kw_only=True)
class _Sought:
    """A search that is under way."""

    search: Search
    """The process."""
    reason: Reason
    """What has changed."""
    cluster: Cluster
    """The numbers since then."""
    present_s: float
    """What is predicted with them of the present plan."""


class Lookout:
    """Looks at the steps of a run; of several processes in the first.

    Args:
        start: how the sitting begins.
        machine: where it runs.
        asks: asks all processes to sound.
        note: shows a line.
        path: file that gets an object a line.
        goes: goes on under another plan; None where that was not asked for.
    """

    def __init__(
        self,
        start: "Start",
        machine: Machine,
        *,
        asks: Callable[[], None],
        note: Callable[[str], None],
        path: Path,
        goes: Callable[[Adapted], None] | None,
    ) -> None:
        self._start, self._machine, self._cluster = start, machine, machine.now
        self._asks, self._note, self._path, self._goes = asks, note, path, goes
        self._case = case_of(start.job)
        self.predicted_s = predict(self._case, self._cluster).step_s
        self._pace, self._recent = Pace(), deque[float](maxlen=IN_A_ROW)
        self._drift: Drift | None = None
        self._first: Sounding | None = None
        self._sought: _Sought | None = None
        self._stack = ExitStack()

    def close(self) -> None:
        """End a search that is under way."""
        self._stack.close()

    def update(self, step: int, step_s: float, costs_s: float) -> None:
        """Look at a step.

        Args:
            step: counted from 1.
            step_s: seconds that it took.
            costs_s: seconds from the start of the command to the first step.
        """
        self._recent.append(step_s)
        if self._sought is not None:
            if self._sought.search.over:
                self._weighs(self._sought, step, costs_s)
            return
        if self._machine.fewer and self._first is not None and self._goes is not None:
            self._fewer(self._machine.fewer, step)
            return
        left = self._start.job.course.steps - step
        drift = self._pace.seen(step, step_s)
        if drift is not None and left > _LEAST and self._drift is None:
            self._drift = drift
            self._writes("drift", **asdict(drift), predicted=self.predicted_s)
            self._asks()

    def sounded(self, found: Sounding) -> None:
        """Look at what the links carry now."""
        drift, self._drift = self._drift, None
        if self._first is None:
            self._first = found
        if drift is None:
            return
        each = self._start.job.layout.plan.mesh.devices // len(found.hosts)
        reason = reason_for(self._first, found, self._cluster, each)
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

    def _names(self, reason: Reason, drift: Drift) -> None:
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
            self._note(f"  try    jaxdist plan {_asked(self._start.resolved)} {of}")
            return
        self._seeks(reason, now, present_s)

    def _fewer(self, why: str, step: int) -> None:
        """Search for the plan of as many processes as are here."""
        self._machine = replace(self._machine, fewer="")
        self._note(f"adapt: {why}; predicted {1e3 * self.predicted_s:,.0f} ms a step")
        reason = Reason(texts=(why,), changes={})
        self._writes("reason", step=step, why=why, predicted=self.predicted_s)
        self._seeks(reason, self._cluster, self.predicted_s)

    def _seeks(self, reason: Reason, now: Cluster, present_s: float) -> None:
        """Search, beside the training."""
        start = self._start
        config, plan = start.resolved.config, start.job.layout.plan
        search = Search(
            start.resolved, now, plan.mesh.devices, lambda plan: goes_on(config, plan)
        )
        self._sought = _Sought(
            search=self._stack.enter_context(search),
            reason=reason,
            cluster=now,
            present_s=present_s,
        )

    def _weighs(self, sought: "_Sought", step: int, costs_s: float) -> None:
        """Hold the plan that was found against the present one."""
        self._sought = None
        self._pace.again()
        try:
            found = sought.search.found()
        except Failed as error:
            self._note(f"adapt: {error}")
            return
        finally:
            self._stack.close()
        present = self._start.job.layout.plan
        choice = weighed(
            (present.label, sought.present_s),
            (found.plan.label, found.step_s),
            step_s=median(self._recent),
            left=self._start.job.course.steps - step,
            costs_s=costs_s,
        )
        self._note(f"adapt: {choice.text} (found in {found.search_s:.1f} s)")
        self._writes("plan", step=step, search=found.search_s, **asdict(choice))
        if choice.changes and self._goes is not None:
            self._goes(
                Adapted(
                    asked=digest(self._machine.given),
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


def _asked(resolved: Resolved) -> str:
    """Write an experiment with its overrides, but for those that a plan decides."""
    words = [w for w in asked(resolved) if not w.startswith("run.")]
    return shlex.join((resolved.source, *words))
