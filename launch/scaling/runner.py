"""Execution: the runs of a study, one after the other, each as `launch` makes it."""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from jaxdist.core.errors import BadInput, FatalError
from jaxdist.core.files import FolderMarker, delete_folder
from jaxdist.core.run_record import Run
from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.launchers.processes.group import exit_on_signals, run_and_stream
from jaxdist.launch.launchers.program import our_command
from jaxdist.launch.run_folder.folder import RunFolder, read_json_object, read_jsonl
from jaxdist.launch.scaling.grid import ScalingRun
from jaxdist.launch.scaling.results import FailedRun, ScalingResult
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement, measurement_from_rows
from jaxdist.launch.scaling.study import ScalingStudy

_CPU_SAMPLE_S: Final = 0.5
"""Seconds in which other work is looked for before a run."""
_BUSY_SHARE: Final = 0.2
_OTHER_WORK: Final = "other work takes"
_ERROR_LINE: Final = re.compile(r"^(error: |\w*Error: |F\d{4} )")

RunCallback = Callable[[int, ScalingRun, ScalingMeasurement | FailedRun], None]
"""Is called after each run with its number, from 1, the run, and what came of it."""


def run_study(study: ScalingStudy, callback: RunCallback) -> ScalingResult:
    """Make the runs that are not there yet, and read all of them.

    A run that fails is named, and the others go on. A run that was interrupted is made
    again from its start: one in two attempts is not comparable with the others.

    Args:
        study: what to run.
        callback: is called after each run.
    """
    # Before the first run: an interrupted study is recognised when it is resumed.
    study.write_manifest()
    found: list[ScalingMeasurement | FailedRun] = []
    with exit_on_signals():
        for number, cell in enumerate(study.runs, start=1):
            try:
                outcome = _measure_run(study, cell, number)
            except FatalError as error:
                log = str(study.log_path(cell))
                outcome = FailedRun(cell=cell, why=str(error), log=log)
            found.append(outcome)
            callback(number, cell, outcome)
    return ScalingResult(
        experiment=study.experiment,
        grid=study.grid,
        place=study.placement,
        readings=tuple(one for one in found if isinstance(one, ScalingMeasurement)),
        lost=tuple(one for one in found if isinstance(one, FailedRun)),
    )


def _delete_run(files: RunFolder) -> None:
    """Delete a run that did not come to its end, to start it again.

    Raises:
        BadInput: the folder is no run, or a process works in it.
    """
    if not files.path.exists():
        return
    # The lock file is what every run begins with. No other host is at work where the
    # lock of the run can be taken.
    marker = FolderMarker.take(files.lock_file, any_host=True)
    if marker is None:
        is_run = files.lock_file.is_file()
        raise BadInput(
            f"{files.path} is in the way of a run of this study",
            rule="a study deletes runs that did not come to their end, and nothing "
            "else",
            values="a process is at work in it" if is_run else "it is no run folder",
            remedy=("another -o FOLDER", f"mv {files.path} {files.path}-old"),
        )
    try:
        delete_folder(files.path, marker)
    finally:
        marker.file.close()


def _measure_run(
    study: ScalingStudy, cell: ScalingRun, number: int
) -> ScalingMeasurement | FailedRun:
    """Return what one run of a study measured; runs it where it is not complete.

    Raises:
        FatalError: it has too few steps to measure.
    """
    files, log_path = study.run_folder(cell), study.log_path(cell)
    before = read_json_object(files.summary) or {}
    failure = None
    if before.get("status") != "done" or before.get("resumed_at") is not None:
        _delete_run(files)
        # Looked for while no process of the study runs, or it would find itself.
        share, warning = psutil.cpu_percent(_CPU_SAMPLE_S) / 100, ""
        if share >= _BUSY_SHARE:
            taken = f"{_OTHER_WORK} {format_percent(share, 0)} of the cores"
            warning = f"warn: {taken}: the next figures are of both\n"
        sys.stderr.write(warning)
        command = our_command(["train", study.experiment, *study.run_overrides(cell)])
        # Buffered by line, so that who follows the log sees where a run is.
        with log_path.open("w", encoding="utf-8", buffering=1) as log:
            log.write(warning)
            tasks = study.placement.tasks(command, cell.processes, number)
            failure = run_and_stream(
                tasks,
                lambda rank, line, error: print(f"r{rank:02} | {line}", file=log),
            )
    if failure is not None:
        said = [line for line in failure.last_lines if line.strip()]
        # The last line is often of a traceback or of a runtime that shuts down.
        errors = [line for line in said if _ERROR_LINE.match(line)]
        line = (errors or said or ["it said nothing"])[-1].strip()
        why = f"process {failure.rank} {failure.exit_description}: {line}"
        return FailedRun(cell=cell, why=why, log=str(log_path))
    run = Run.from_json(files.summary.read_text(encoding="utf-8"))
    rows = read_jsonl(files.metrics).rows, read_jsonl(files.spans).rows
    found = measurement_from_rows(cell, run, study.samples, *rows)
    return replace(found, other_work=_other_work(log_path))


def _other_work(log_path: Path) -> str:
    """Return what the log of a run says of other work; of a run made before as well."""
    with suppress(OSError), log_path.open(encoding="utf-8", errors="replace") as log:
        first = log.readline().strip().removeprefix("warn: ")
        if first.startswith(_OTHER_WORK):
            return first.partition(":")[0]
    return ""


def print_run(
    number: int, cell: ScalingRun, outcome: ScalingMeasurement | FailedRun, total: int
) -> None:
    """Print what came of a run, a line on standard error."""
    if isinstance(outcome, FailedRun):
        came = f"failed, {outcome.why}"
    else:
        steps = len(outcome.step_seconds)
        came = f"{outcome.samples_per_s:,.0f} samples/s, {steps} steady steps"
    sys.stderr.write(f"run {number} of {total}: {cell.title}: {came}\n")
    sys.stderr.flush()
