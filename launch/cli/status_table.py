"""Tables of runs that go or have ended: one of several, or one with its processes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from jaxdist.core.text.formatting import count, duration, percent
from jaxdist.launch.run_folder.status import RunStatus
from jaxdist.launch.terminal.console import console, print_next, print_table, table
from jaxdist.launch.terminal.run_header import many

_UNDER_WAY: Final = ("going", "silent", "dead")
_WORDS: Final = {
    "dead": "its process 0 is gone without a word; the same command goes on with it",
    "silent": "no news of it, and process 0 is there or on another machine",
    "unknown": "it says nothing of itself",
}
"""What is to be added to a state."""


def tree(state: RunStatus) -> dict[str, Any]:
    """Return a state as JSON has it."""
    return asdict(state) | {"hosts": list(state.hosts)}


def ordered(states: Sequence[RunStatus]) -> list[RunStatus]:
    """Sort runs: those under way first, then by their last line."""
    late = float("inf")
    return sorted(
        states,
        key=lambda s: (
            s.state not in _UNDER_WAY,
            late if s.line_s is None else s.line_s,
        ),
    )


def print_runs(states: Sequence[RunStatus]) -> None:
    """Print a table of runs."""
    out, right = console(), ("step", "restarts", "last line")
    rows = table("run", "state", *right, "processes", right=right)
    for state in ordered(states):
        hosts = f"{state.count} on {many(len(state.hosts), 'host')}"
        rows.add_row(
            *(state.name, state.state, _steps(state), count(state.restarts)),
            *(_ago(state), hosts if state.count else ""),
        )
    print_table(out, rows)
    first = ordered(states)[0].folder
    print_next(out, f"jaxdist launch status {first}")


def print_run(state: RunStatus) -> None:
    """Print one run, with where each process is, or was."""
    out = console()
    loss = "" if state.loss is None else f", loss {state.loss:.3f}"
    out.print(f"{state.name}    {state.state}    step {_steps(state)}{loss}")
    if state.state in _WORDS:
        out.print(f"  {_WORDS[state.state]}")
    again = many(state.restarts, "restart")
    out.print(f"  {again}; last line {_ago(state)}\n")
    if not state.processes:
        return
    rows = table("rank", "host", "step", "phase", right=("rank", "step"))
    for rank, at in sorted(state.processes.items()):
        rows.add_row(str(rank), at.host, count(at.step), at.phase or "between phases")
    print_table(out, rows)


def _steps(state: RunStatus) -> str:
    if not state.steps:
        return count(state.step)
    share = percent(state.step / state.steps, 0)
    return f"{count(state.step)} of {count(state.steps)} ({share})"


def _ago(state: RunStatus) -> str:
    return "none" if state.line_s is None else f"{duration(state.line_s)} ago"
