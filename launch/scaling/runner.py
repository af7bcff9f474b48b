"""Execution: the runs of a study, one after the other, each as `launch` makes it."""

import re
import shutil
import sys
from collections.abc import Callable
from typing import Final, TextIO

import psutil

from jaxdist.core.errors import FatalError
from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.launchers.processes.group import (
    ProcessFailure,
    exit_on_signals,
    run_and_stream,
)
from jaxdist.launch.launchers.program import our_command
from jaxdist.launch.scaling.grid import ScalingRun
from jaxdist.launch.scaling.results import FailedRun, ScalingResult
from jaxdist.launch.scaling.run_metrics import (
    ScalingMeasurement,
    is_complete,
    read_measurement,
)
from jaxdist.launch.scaling.study import ScalingStudy

_CPU_SAMPLE_S: Final = 0.5
"""Seconds in which other work is looked for before a run."""
_BUSY_SHARE: Final = 0.2
_ERROR_LINE: Final = re.compile(r"^(error: |\w*Error: |F\d{4} )")

RunCallback = Callable[[int, ScalingRun, ScalingMeasurement | FailedRun], None]
"""Is told the number of a run, from 1, what it was, and what came of it."""


def run_study(study: ScalingStudy, callback: RunCallback) -> ScalingResult:
    """Make the runs that are not there yet, and read all.

    A run that fails is named, and the others go on. What was interrupted is made again
    from its start: a run in two sittings is no measure.

    Args:
        study: what to run.
        callback: looks on.
    """
    study.write_manifest()
    found: list[ScalingMeasurement | FailedRun] = []
    with exit_on_signals():
        for number, cell in enumerate(study.runs, start=1):
            found.append(_measure_run(study, cell, number))
            callback(number, cell, found[-1])
    return ScalingResult(
        experiment=study.experiment,
        grid=study.grid,
        place=study.placement,
        readings=tuple(one for one in found if isinstance(one, ScalingMeasurement)),
        lost=tuple(one for one in found if isinstance(one, FailedRun)),
    )


def _measure_run(
    study: ScalingStudy, cell: ScalingRun, number: int
) -> ScalingMeasurement | FailedRun:
    folder, log = study.run_folder(cell).path, study.log_path(cell)
    try:
        if not is_complete(folder):
            failure = _execute_run(study, cell, number)
            if failure is not None:
                return FailedRun(cell=cell, why=_failure_reason(failure), log=str(log))
        return read_measurement(cell, folder, study.samples)
    except FatalError as unread:
        return FailedRun(cell=cell, why=str(unread), log=str(log))


def _execute_run(
    study: ScalingStudy, cell: ScalingRun, number: int
) -> ProcessFailure | None:
    """Run one cell from its start, what its processes say into its log."""
    shutil.rmtree(study.run_folder(cell).path, ignore_errors=True)
    said = _cpu_load_warning(psutil.cpu_percent(_CPU_SAMPLE_S) / 100)
    sys.stderr.write(said)
    command = our_command(["train", study.experiment, *study.run_overrides(cell)])
    with study.log_path(cell).open("w", encoding="utf-8", buffering=1) as log:
        log.write(said)
        tasks = study.placement.tasks(command, cell.processes, number)
        return run_and_stream(tasks, lambda *said: _log_line(log, *said))


def _log_line(log: TextIO, rank: int, line: str, error: bool) -> None:
    log.write(f"r{rank:02} | {line}\n")


def _cpu_load_warning(share: float) -> str:
    """Warn of other work, seen while no run of ours is there; its figures are of both.

    >>> _cpu_load_warning(0.8)
    'warn: other work takes 80 % of the cores: the next figures are of both\\n'
    >>> _cpu_load_warning(0.1)
    ''
    """
    if share < _BUSY_SHARE:
        return ""
    taken = format_percent(share, 0)
    return (
        f"warn: other work takes {taken} of the cores: the next figures are of both\n"
    )


def _failure_reason(failure: ProcessFailure) -> str:
    """Say how a run ended, in one line."""
    said = [line for line in failure.last_lines if line.strip()]
    errors = [line for line in said if _ERROR_LINE.match(line)]
    line = (errors or said or ["it said nothing"])[-1]
    return f"process {failure.rank} {failure.exit_description}: {line.strip()}"


def print_run(
    number: int, cell: ScalingRun, outcome: ScalingMeasurement | FailedRun, total: int
) -> None:
    """Print what came of a run, a line on standard error."""
    came = (
        f"failed, {outcome.why}" if isinstance(outcome, FailedRun) else _rate(outcome)
    )
    sys.stderr.write(f"run {number} of {total}: {cell.title}: {came}\n")
    sys.stderr.flush()


def _rate(reading: ScalingMeasurement) -> str:
    return (
        f"{reading.samples_per_s:,.0f} samples/s, {len(reading.step_seconds)} "
        "steady steps"
    )
