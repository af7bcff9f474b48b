"""Searching: the best plan for a cluster as it is now, beside a run that goes on."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import FatalError
from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.config.value_text import format_value
from jaxdist.launch.launchers.processes.group import ProcessSpec, start_process

if TYPE_CHECKING:
    from types import TracebackType

_RUN_VARIABLE_PREFIXES: Final = ("JAXDIST_", "JAX_", "XLA_")
"""Beginnings of variables by which a process of a run is what it is."""
_MAX_PLANS: Final = "1000"
_LAYOUT_KEYS: Final = (
    *("plan.mesh.", "plan.pipe.", "plan.placement"),
    *("plan.remat", "plan.microbatches"),
)
"""Beginnings of settings that a search may choose, whoever set them."""


@dataclass(frozen=True, kw_only=True)
class PlanProposal:
    """A plan that was found."""

    plan: Plan
    """The best one under which the run can go on."""
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
        self._out: IO[bytes] = enter(tempfile.TemporaryFile())
        self._err: IO[bytes] = enter(tempfile.TemporaryFile())
        folder = enter(tempfile.TemporaryDirectory())
        file = Path(folder) / f"{self._cluster.name}.json"
        file.write_text(self._cluster.to_json(), encoding="utf-8")
        what = ("--cluster", str(file), "--top", _MAX_PLANS, "--json")
        command = (sys.executable, "-m", "jaxdist.launch", "plan", *self._words, *what)
        task = ProcessSpec(command=command, env=_user_environment(os.environ))
        self._child: subprocess.Popen[bytes] = start_process(task, self._out, self._err)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: "TracebackType | None",
    ) -> None:
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
            Failed: there is none, with what the search has said.
        """
        took = time.perf_counter() - self._begun
        if self._child.wait():
            self._err.seek(0)
            said = self._err.read().decode(errors="replace").split("\n")
            raise FatalError(
                "no plan was found: " + " ".join(" ".join(said[:6]).split())
            )
        self._out.seek(0)
        for row in json.loads(self._out.read())["plans"]:
            plan = Plan.from_json(json.dumps(row["plan"]))
            if self._takes(plan):
                return PlanProposal(plan=plan, step_s=row["step_s"], search_s=took)
        raise FatalError("no plan was found under which this run could go on")


def search_overrides(resolved: ResolvedConfig) -> list[str]:
    """Return the words that ask for plans of the same experiment.

    What was typed of the layout is what may change. Microbatches stay as they are: with
    others, batch norms would see other samples together.
    """
    from jaxdist.launch.config.tree import flatten_config

    now = flatten_config(resolved.config)
    kept = [key for key in resolved.keys_from("command line") if not _is_layout(key)]
    kept = [*dict.fromkeys((*kept, "optim.accumulate"))]
    return [f"{key}={format_value(now[key])}" for key in kept]


def _is_layout(key: str) -> bool:
    return key.startswith(_LAYOUT_KEYS)


def _user_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in environ.items()
        if not name.startswith(_RUN_VARIABLE_PREFIXES)
    }
