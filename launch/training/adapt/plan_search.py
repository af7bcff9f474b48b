"""Another plan for a running job: the search, and whether it is worth a restart."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput, FatalError
from jaxdist.core.plan import Plan
from jaxdist.core.text.formatting import format_duration
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.config.tree import flatten_config, format_value, replace_values
from jaxdist.launch.launchers.processes.group import ProcessSpec, start_process
from jaxdist.launch.run_folder.lockfile import check_resume

if TYPE_CHECKING:
    from jaxdist.launch.config import Experiment

MIN_SPEEDUP: Final = 1.15
"""Times as fast as the present plan another one must be predicted to be."""
_RUN_VARIABLE_PREFIXES: Final = ("JAXDIST_", "JAX_", "XLA_")
"""Beginnings of variables by which a process of a run is what it is."""
# So many that one is among them under which the run can continue.
_MAX_PLANS: Final = "1000"
_LAYOUT_KEYS: Final = (
    *("plan.mesh.", "plan.pipe.", "plan.placement", "plan.host_order"),
    *("plan.remat", "plan.microbatches"),
)
"""Beginnings of settings that a search may choose, whoever set them."""


@dataclass(frozen=True, kw_only=True)
class PlanProposal:
    """A plan that was found."""

    plan: Plan
    """The best one under which the run can continue."""
    step_s: float
    """Seconds of a step that are predicted of it."""
    search_s: float
    """Seconds that the search took."""


class PlanSearchProcess:
    """A search for a plan in a process of its own, as a context.

    Args:
        resolved: what runs.
        cluster: the numbers of now.
        devices: of the run.
        is_acceptable: whether the run can go on under a plan.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        cluster: Cluster,
        devices: int,
        is_acceptable: Callable[[Plan], bool],
    ) -> None:
        self._cluster, self._takes = cluster, is_acceptable
        self._words = (
            resolved.experiment,
            *search_overrides(resolved),
            "--devices",
            str(devices),
        )
        self._stack = ExitStack()

    def __enter__(self) -> "PlanSearchProcess":
        self._begun = time.perf_counter()
        enter = self._stack.enter_context
        # Files, not pipes: nobody reads while the search runs, and it would stop at a
        # full pipe.
        self._out: IO[bytes] = enter(tempfile.TemporaryFile())
        self._err: IO[bytes] = enter(tempfile.TemporaryFile())
        # The command reads a cluster from a file: this one has the numbers of now.
        folder = enter(tempfile.TemporaryDirectory())
        file = Path(folder) / f"{self._cluster.name}.json"
        file.write_text(self._cluster.to_json(), encoding="utf-8")
        what = ("--cluster", str(file), "--top", _MAX_PLANS, "--json")
        command = (sys.executable, "-m", "jaxdist.launch", "plan", *self._words, *what)
        # The search is no process of the run: it must neither join it nor take devices.
        env = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(_RUN_VARIABLE_PREFIXES)
        }
        # A process of its own: tracing holds the interpreter's lock for seconds, and no
        # step would begin meanwhile.
        task = ProcessSpec(command=command, env=env)
        self._child: subprocess.Popen[bytes] = start_process(task, self._out, self._err)
        return self

    def __exit__(self, *raised: object) -> None:
        # Killing is safe: a search writes nothing but its answer.
        self._child.kill()
        self._child.wait()
        self._stack.close()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    def found(self) -> PlanProposal:
        """Return the best plan.

        Raises:
            FatalError: there is none, with what the search has said.
        """
        took = time.perf_counter() - self._begun
        if self._child.wait():
            self._err.seek(0)
            said = self._err.read().decode(errors="replace").split("\n")
            raise FatalError(
                "no plan was found: " + " ".join(" ".join(said[:6]).split())
            )
        self._out.seek(0)
        # Plans come best first; the first one that keeps the run what it is, is taken.
        for row in json.loads(self._out.read())["plans"]:
            plan = Plan.from_tree(row["plan"])
            if self._takes(plan):
                return PlanProposal(plan=plan, step_s=row["step_s"], search_s=took)
        raise FatalError("no plan was found under which this run could continue")


def search_overrides(resolved: ResolvedConfig) -> list[str]:
    """Return the words that ask for plans of the same experiment.

    What was typed of the layout is what may change. Microbatches stay as they are: with
    others, batch norms would see other samples together.
    """
    now, typed = flatten_config(resolved.config), resolved.keys_from("command line")
    kept = [key for key in typed if not key.startswith(_LAYOUT_KEYS)]
    kept = [*dict.fromkeys((*kept, "optim.accumulate"))]
    return [f"{key}={format_value(now[key])}" for key in kept]


@dataclass(frozen=True, kw_only=True)
class RestartDecision:
    """The plan of a run and another one, compared."""

    stays: str
    """Label of the present plan."""
    other: str
    """Label of the other one."""
    gain: float
    """Times as fast as the present one the other is predicted to be."""
    saved_s: float
    """Seconds that it saves in the steps that are left."""
    costs_s: float
    """Seconds that a restart takes."""

    @property
    def changes(self) -> bool:
        """Whether to continue under the other one."""
        return self.gain >= MIN_SPEEDUP and self.saved_s > self.costs_s

    @property
    def text(self) -> str:
        """The same for a person."""
        if self.other == self.stays:
            return f"plan {self.stays} stays: it is the best one now, too"
        than = f"{self.gain:.2f} times as fast as {self.stays}"
        if self.changes:
            return f"plan {self.other} is predicted to be {than}"
        if self.gain < MIN_SPEEDUP:
            return f"plan {self.stays} stays: {self.other} would be {than}"
        return (
            f"plan {self.stays} stays: {self.other} saves "
            f"{format_duration(self.saved_s)} in "
            "the steps that are left, and a restart takes "
            f"{format_duration(self.costs_s)}"
        )


def decide_restart(
    current: tuple[str, float],
    proposed: tuple[str, float],
    *,
    step_s: float,
    steps_left: int,
    restart_s: float,
) -> RestartDecision:
    """Compare the plan of a run with another one, by the seconds that are left.

    The search predicts both plans; what a step takes now is measured. So a prediction
    that is wrong by the same factor for both changes nothing.

    Args:
        current: label, and predicted seconds of a step as things are now.
        proposed: the same of another plan.
        step_s: seconds that a step takes now, measured.
        steps_left: steps that are to be done.
        restart_s: seconds that a restart takes.

    >>> times = {"step_s": 3, "steps_left": 100, "restart_s": 30}
    >>> found = decide_restart(("a", 2.0), ("b", 1.0), **times)
    >>> found.saved_s, found.changes
    (150.0, True)
    """
    # Half the predicted time saves half the measured time of each step that is left.
    gain = current[1] / proposed[1]
    return RestartDecision(
        stays=current[0],
        other=proposed[0],
        gain=gain,
        saved_s=steps_left * step_s * (1 - 1 / gain),
        costs_s=restart_s,
    )


def can_resume(config: "Experiment", plan: Plan) -> bool:
    """Whether a run can continue under another plan and stay the run that it is.

    Args:
        config: what it runs.
        plan: the other one.
    """
    # All rules of a resume hold: network, samples, number format and sums.
    new = replace_values(
        config, {f"plan.{key}": x for key, x in flatten_config(plan).items()}
    )
    try:
        check_resume(config, new)
    except BadInput:
        return False
    was, now = config.plan, plan
    # A batch norm over a replica sees as many samples as a replica has.
    if config.model.norm == "replica" and was.batch_shards != now.batch_shards:
        return False  # batch statistics would be of other samples
    # The residual of a compressor, what it has not sent yet, has a part for each device
    # along data, and no part fits another number of them.
    compresses = (
        was.reduce.algorithm != "exact" and was.reduce.algorithm not in SCHEDULES
    )
    return not compresses or was.mesh.data == now.mesh.data
