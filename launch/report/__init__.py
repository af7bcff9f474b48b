"""The report of a run: one offline HTML file made from the files of its folder."""

import os
from pathlib import Path

from jaxdist.launch.report.page import render_report
from jaxdist.launch.report.run_record import read_run_data


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, from whatever files the run left there.

    Args:
        folder: folder of the run.

    Returns:
        The report's path.

    Raises:
        BadInput: the folder does not exist.
    """
    page = render_report(read_run_data(folder))
    report, part = folder / "report.html", folder / "report.html.part"
    part.write_text(page, encoding="utf-8")
    os.replace(part, report)
    return report
