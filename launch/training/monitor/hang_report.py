"""The verdict: which process of a run is stuck, by what each has said of itself.

All processes of a run go through the same places in the same order, so whoever is
behind is stuck; and whoever says nothing any more is stopped, or its host is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxdist.launch.distributed.process_group import ProcessGroup


@dataclass(frozen=True, kw_only=True)
class ProcessHeartbeat:
    """What a process has said of itself."""

    number: int
    """Of its place."""
    step: int
    """Step of the run."""
    phase: str
    """Phase of the step."""
    beat: int
    """How often it has spoken."""
    line: str
    """Line of the source at which its main thread is."""
    host: str = ""
    """Name of its machine."""

    @property
    def where(self) -> str:
        """The place in words."""
        return f"step {self.step}, {self.phase or 'between phases'}"


@dataclass(frozen=True, kw_only=True)
class HangReport:
    """Which process is stuck."""

    text: str
    """For a person."""
    ranks: tuple[int, ...]
    """The ranks that are stuck or gone, for the launcher; none where all wait."""
    speaker: int
    """The process that says it."""


def diagnose_hang(
    before: Mapping[int, ProcessHeartbeat],
    after: Mapping[int, ProcessHeartbeat],
    group: ProcessGroup,
    local: ProcessHeartbeat,
    waited_s: float,
) -> HangReport:
    """Say which process is stuck.

    Args:
        before: what each process had said when one of them was too late.
        after: the same a few beats later; nothing where process 0 did not answer.
        group: the process that asks, among those of its run.
        local: where it is.
        waited_s: seconds that it has been there.
    """
    rank = group.rank
    waits_ = waiting_text(rank, local, waited_s)
    if not after:
        text = _isolated_text(local, waited_s, rank)
        return HangReport(text=text, ranks=(0,), speaker=1 if rank else 0)
    silent = [r for r in range(group.size) if before.get(r) == after.get(r)]
    speaker = min(set(after) - set(silent), default=rank)
    if silent:
        said = unresponsive_text({r: after.get(r) for r in silent})
        return HangReport(
            text=f"{said}; {waits_}", ranks=tuple(silent), speaker=speaker
        )
    least = min(said.number for said in after.values())
    behind = [r for r, said in after.items() if said.number == least]
    if len(behind) < len(after):
        where = "; ".join(
            f"rank {r} in {after[r].where}, at {after[r].line}" for r in behind
        )
        return HangReport(
            text=f"stuck: {where}; {waits_}", ranks=tuple(behind), speaker=speaker
        )
    text = f"stuck: no rank is behind, all are in {local.where}, for {waited_s:.0f} s"
    return HangReport(text=f"{text}, at {local.line}", ranks=(), speaker=speaker)


def waiting_text(rank: int, local: ProcessHeartbeat, waited_s: float) -> str:
    """Say where a process waits."""
    return f"rank {rank} waits in {local.where}, for {waited_s:.0f} s"


def unresponsive_text(ranks: Mapping[int, ProcessHeartbeat | None]) -> str:
    """Say who says nothing any more."""
    last = "; ".join(
        f"rank {r}, last in {_location(said)}" for r, said in ranks.items()
    )
    return f"stuck: {last}: it says nothing any more, is stopped or gone"


def _location(said: ProcessHeartbeat | None) -> str:
    return "no step" if said is None else said.where


def _isolated_text(own: ProcessHeartbeat, waited_s: float, rank: int) -> str:
    """Say what a process knows that hears nobody."""
    where = f"rank {rank} in {own.where}, for {waited_s:.0f} s, at {own.line}"
    if rank == 0:
        return f"stuck: {where}"
    return f"stuck: rank 0 says nothing any more, is stopped or gone; {where}"
