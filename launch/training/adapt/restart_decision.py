"""Weighing: whether another plan is worth a restart, in seconds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.text.formatting import format_duration
from jaxdist.launch.config.tree import flatten_config, replace_values
from jaxdist.launch.run_folder.config_diff import check_resume

if TYPE_CHECKING:
    from jaxdist.launch.config import Experiment

MIN_SPEEDUP: Final = 1.15
"""Times as fast as the present plan another one must be predicted to be."""


@dataclass(frozen=True, kw_only=True)
class RestartDecision:
    """Two plans beside each other."""

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
        """Whether to go on under the other one."""
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
    """Hold two plans against each other.

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
    gain = current[1] / proposed[1]
    return RestartDecision(
        stays=current[0],
        other=proposed[0],
        gain=gain,
        saved_s=steps_left * step_s * (1 - 1 / gain),
        costs_s=restart_s,
    )


def can_resume(config: "Experiment", plan: Plan) -> bool:
    """Whether a run can go on under another plan and stay the run that it is.

    Args:
        config: what it runs.
        plan: the other one.
    """
    new = replace_values(
        config, {f"plan.{key}": x for key, x in flatten_config(plan).items()}
    )
    try:
        check_resume(config, new)
    except BadInput:
        return False
    was, now = config.plan, plan
    if config.model.norm == "replica" and was.batch_shards != now.batch_shards:
        return False  # statistics would be of other samples
    leaves = was.reduce.via != "exact" and was.reduce.via not in SCHEDULES
    # What a compressor has not sent yet is kept along data.
    return not leaves or was.mesh.data == now.mesh.data
