"""Behind: which processes of a run are slower than the others, and in what.

In a synchronous step all wait for the slowest, so every process takes as long. What
differs is what a process takes for itself, before the others can go on:

rank 0   input 2    computes 30   waits for rank 1 ...............
rank 1   input 45                                  computes 30
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

COMPUTE_PHASE: Final = "compute"
"""What a process does apart from the other phases, as far as it is its own."""
MIN_SLOWDOWN: Final = 0.15
"""Part of a step by which a process is slower than the others before that is said."""
_MIN_COMPUTE_SLOWDOWN: Final = 0.25
"""The same in computing, where processes that share a machine differ by chance."""
_LOAD_RATIO: Final = 1.5
"""Times as long as the others computes who has more to compute."""
_MIN_DELAY_S: Final = 0.002
_CAUSE_TEXTS: Final = {
    "computed": "its threads compute longer",
    "waited": "it waits for a processor",
    "stood": "it stands still",
}


@dataclass(frozen=True, kw_only=True)
class ProcessStepTime:
    """What a process took for itself in a step, on average over some."""

    host: str
    """Name of its machine."""
    first: int
    """First step, counted from 1."""
    last: int
    """Last step."""
    step_s: float
    """Seconds of a step."""
    own_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase in which no other process can hold it up."""
    ran_s: Mapping[str, float] = field(default_factory=dict)
    """What `compute` among them consists of: see `Ran`."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A process that is slower than the others."""

    rank: int
    """Which one."""
    phase: str
    """In what."""
    seconds: float
    """How much longer than the others it takes there, in every step."""
    share: ProcessStepTime
    """What it took."""
    why: str = ""
    """What makes it slow, in words, where that is known."""

    @property
    def text(self) -> str:
        """The same for a person."""
        share, why = self.share, f", {self.why}" if self.why else ""
        return (
            f"slow: rank {self.rank} ({share.host}) is {1e3 * self.seconds:,.0f} ms a "
            f"step behind in {self.phase}{why}, steps {share.first}-{share.last}; "
            f"a step takes {1e3 * share.step_s:,.0f} ms"
        )


def find_stragglers(step_times: Sequence[ProcessStepTime]) -> list[Straggler]:
    """Return the processes that are slower than the others, each with one phase.

    Args:
        step_times: of each process, by rank, over the same steps.

    >>> usual = dict(first=1, last=9, step_s=0.1)
    >>> own = [{"input": 0.002}, {"input": 0.045}, {"input": 0.004}]
    >>> seconds = enumerate(own)
    >>> shares = [ProcessStepTime(host=f"h{n}", own_s=s, **usual) for n, s in seconds]
    >>> find_stragglers(shares)[0].text
    'slow: rank 1 (h1) is 42 ms a step behind in input, steps 1-9; a step takes 100 ms'
    """
    if not step_times:
        return []
    step_s = median(share.step_s for share in step_times)
    found = [_largest_delay(rank, step_times) for rank in range(len(step_times))]
    return [
        late
        for late in found
        if late is not None
        and late.seconds > max(_min_slowdown(late) * step_s, _MIN_DELAY_S)
    ]


def _min_slowdown(late: Straggler) -> float:
    return _MIN_COMPUTE_SLOWDOWN if late.phase == COMPUTE_PHASE else MIN_SLOWDOWN


def _largest_delay(
    rank: int, step_times: Sequence[ProcessStepTime]
) -> Straggler | None:
    """Return the phase in which a process is furthest behind the others."""
    mine = step_times[rank]
    others = [share for at, share in enumerate(step_times) if at != rank]
    if not others:
        return None
    more = _excess_over_median(mine.own_s, [share.own_s for share in others])
    # Threads that compute for the input are counted there.
    phases = sum(s for phase, s in more.items() if phase != COMPUTE_PHASE and s > 0)
    if COMPUTE_PHASE in more:
        more[COMPUTE_PHASE] = min(more[COMPUTE_PHASE] - phases, mine.step_s)
    if not more:
        return None
    phase = max(more, key=more.__getitem__)
    why = _slowdown_cause(mine, others) if phase == COMPUTE_PHASE else ""
    return Straggler(rank=rank, phase=phase, seconds=more[phase], share=mine, why=why)


def _slowdown_cause(mine: ProcessStepTime, others: Sequence[ProcessStepTime]) -> str:
    """Say what makes a process compute slowly, where that is known."""
    ran = _excess_over_median(mine.ran_s, [share.ran_s for share in others])
    if not ran:
        return ""
    computed = mine.ran_s.get("computed", 0.0)
    # Who has more to compute waits more as well, where processors are few.
    if computed > _LOAD_RATIO * (computed - ran.get("computed", computed)):
        return _CAUSE_TEXTS["computed"]
    return _CAUSE_TEXTS[max(ran, key=ran.__getitem__)]


def _excess_over_median(
    mine: Mapping[str, float], others: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return by how much one is above the middle of the others."""
    return {
        name: seconds - median(other.get(name, 0.0) for other in others)
        for name, seconds in mine.items()
    }
