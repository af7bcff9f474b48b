"""The report of a run, or of several: an offline HTML file made from their folders."""

from jaxdist.launch.report.page import write_report
from jaxdist.launch.report.runs_page import write_runs_page
from jaxdist.launch.report.target_section import write_target_page

__all__ = ["write_report", "write_runs_page", "write_target_page"]
