"""Prints the state of runs that go or have ended: `jaxdist status`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from jaxdist.core.text.formatting import format_count, format_duration, format_percent
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.next_commands import resume_command
from jaxdist.launch.run_folder.status import (
    RunStatus,
    find_started_run,
    list_started_runs,
    read_run_status,
)
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)
from jaxdist.launch.terminal.run_summary import pluralize

_ACTIVE_STATES: Final = ("going", "silent", "dead")
_STATE_HINTS: Final = {
    "dead": "its process 0 is gone without a word",
    "silent": "no news of it, and process 0 is there or on another machine",
    "unknown": "it says nothing of itself",
}
"""What is to be added to a state."""


def print_status(run: str | None, folder: str, *, as_json: bool) -> None:
    """Print one run with its processes, or all runs of a folder.

    Args:
        run: name or path; None is all.
        folder: folder of the runs.
        as_json: whether one JSON object is printed, and nothing else.

    Raises:
        BadInput: there is no such run.
    """
    found = (
        list_started_runs(folder) if run is None else [find_started_run(run, folder)]
    )
    statuses = [read_run_status(path) for path in found]
    if as_json:
        trees = [asdict(s) | {"hosts": list(s.hosts)} for s in statuses]
        print_json(trees[0] if run else {"runs": trees})
        return
    if run:
        _print_run(statuses[0])
        return
    if not statuses:
        sys.stdout.write(
            f"no runs in {folder}/; start one with: jaxdist train digits\n"
        )
        return
    # Runs under way come first, then by their last line; those without one at the end.
    late = float("inf")
    statuses.sort(
        key=lambda s: (
            s.state not in _ACTIVE_STATES,
            late if s.line_s is None else s.line_s,
        )
    )
    out, right = console(), ("step", "restarts", "last line")
    rows = make_table("run", "state", *right, "processes", right=right)
    for state in statuses:
        hosts = f"{state.count} on {pluralize(len(state.hosts), 'host')}"
        rows.add_row(
            *(state.name, state.state, _step_text(state), format_count(state.restarts)),
            *(_last_line_age(state), hosts if state.count else ""),
        )
    print_table(out, rows)
    print_next_commands(out, f"jaxdist status {statuses[0].folder}")


def _print_run(status: RunStatus) -> None:
    """Print one run, with the step and phase that each process is in, or was."""
    out = console()
    loss = "" if status.loss is None else f", loss {status.loss:.3f}"
    out.print(f"{status.name}    {status.state}    step {_step_text(status)}{loss}")
    if status.state in _STATE_HINTS:
        out.print(f"  {_STATE_HINTS[status.state]}")
    folder = RunFolder(Path(status.folder))
    if status.state in ("dead", "stopped", "failed") and folder.has_run:
        out.print(f"  {resume_command(folder)} resumes it", soft_wrap=True)
    again = pluralize(status.restarts, "restart")
    out.print(f"  {again}; last line {_last_line_age(status)}\n")
    if not status.processes:
        return
    rows = make_table("rank", "host", "step", "phase", right=("rank", "step"))
    pause = "between phases" if status.state in _ACTIVE_STATES else "ended"
    for rank, at in sorted(status.processes.items()):
        rows.add_row(str(rank), at.host, format_count(at.step), at.phase or pause)
    print_table(out, rows)


def _step_text(state: RunStatus) -> str:
    if not state.steps:
        return format_count(state.step)
    share = format_percent(state.step / state.steps, 0)
    return f"{format_count(state.step)} of {format_count(state.steps)} ({share})"


def _last_line_age(state: RunStatus) -> str:
    return "none" if state.line_s is None else f"{format_duration(state.line_s)} ago"
