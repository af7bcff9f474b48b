"""The report of a run: one offline HTML file made from the files of its folder."""

from pathlib import Path

from jaxdist.launch.report.page import render_report
from jaxdist.launch.report.run_record import read_run_data
from jaxdist.launch.run_folder.folder import RunFolder, write_atomic


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, from whatever files the run left there.

    Args:
        folder: folder of the run.

    Returns:
        The report's path.

    Raises:
        BadInput: the folder does not exist.
    """
    report = RunFolder(folder).report
    write_atomic(report, render_report(read_run_data(folder)))
    return report
