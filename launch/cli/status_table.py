"""Tables of runs that go or have ended: one of several, or one with its processes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from jaxdist.core.text.formatting import format_count, format_duration, format_percent
from jaxdist.launch.run_folder.status import RunStatus
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_next_commands,
    print_table,
)
from jaxdist.launch.terminal.run_header import pluralize

_ACTIVE_STATES: Final = ("going", "silent", "dead")
_STATE_HINTS: Final = {
    "dead": "its process 0 is gone without a word; the same command goes on with it",
    "silent": "no news of it, and process 0 is there or on another machine",
    "unknown": "it says nothing of itself",
}
"""What is to be added to a state."""


def status_tree(status: RunStatus) -> dict[str, Any]:
    """Return a state as JSON has it."""
    return asdict(status) | {"hosts": list(status.hosts)}


def sort_by_activity(statuses: Sequence[RunStatus]) -> list[RunStatus]:
    """Sort runs: those under way first, then by their last line."""
    late = float("inf")
    return sorted(
        statuses,
        key=lambda s: (
            s.state not in _ACTIVE_STATES,
            late if s.line_s is None else s.line_s,
        ),
    )


def print_run_table(statuses: Sequence[RunStatus]) -> None:
    """Print a table of runs."""
    out, right = console(), ("step", "restarts", "last line")
    rows = make_table("run", "state", *right, "processes", right=right)
    for state in sort_by_activity(statuses):
        hosts = f"{state.count} on {pluralize(len(state.hosts), 'host')}"
        rows.add_row(
            *(state.name, state.state, _step_text(state), format_count(state.restarts)),
            *(_last_line_age(state), hosts if state.count else ""),
        )
    print_table(out, rows)
    first = sort_by_activity(statuses)[0].folder
    print_next_commands(out, f"jaxdist launch status {first}")


def print_run_status(status: RunStatus) -> None:
    """Print one run, with where each process is, or was."""
    out = console()
    loss = "" if status.loss is None else f", loss {status.loss:.3f}"
    out.print(f"{status.name}    {status.state}    step {_step_text(status)}{loss}")
    if status.state in _STATE_HINTS:
        out.print(f"  {_STATE_HINTS[status.state]}")
    again = pluralize(status.restarts, "restart")
    out.print(f"  {again}; last line {_last_line_age(status)}\n")
    if not status.processes:
        return
    rows = make_table("rank", "host", "step", "phase", right=("rank", "step"))
    for rank, at in sorted(status.processes.items()):
        rows.add_row(
            str(rank), at.host, format_count(at.step), at.phase or "between phases"
        )
    print_table(out, rows)


def _step_text(state: RunStatus) -> str:
    if not state.steps:
        return format_count(state.step)
    share = format_percent(state.step / state.steps, 0)
    return f"{format_count(state.step)} of {format_count(state.steps)} ({share})"


def _last_line_age(state: RunStatus) -> str:
    return "none" if state.line_s is None else f"{format_duration(state.line_s)} ago"
