"""The report of a run: one offline HTML file made from the files of its folder."""

from jaxdist.launch.report.page import write_report

__all__ = ["write_report"]
