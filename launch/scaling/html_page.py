"""The page of a study: one offline HTML file, in the look of a run's report."""

import json
from pathlib import Path
from typing import Any

from jaxdist.core.text.formatting import size
from jaxdist.launch.report.html_document import fill, part
from jaxdist.launch.run_folder.folder import write_whole
from jaxdist.launch.scaling import findings
from jaxdist.launch.scaling.charts import bars, figures
from jaxdist.launch.scaling.fit import EQUATION
from jaxdist.launch.scaling.json_view import tree
from jaxdist.launch.scaling.results import ScalingResult
from jaxdist.launch.scaling.table import HEADS, block, of_whom, row


def write_page(result: ScalingResult, folder: Path) -> Path:
    """Write `scale.html` and `scale.json` into a study's folder; return the page."""
    page = folder / "scale.html"
    write_whole(page, render(result))
    write_whole(folder / "scale.json", json.dumps(tree(result), indent=2) + "\n")
    return page


def render(result: ScalingResult) -> str:
    """Write the page of a study as one HTML document that asks for nothing."""
    return fill(part("scale.html.j2", __package__), _shown(result))


def _shown(result: ScalingResult) -> dict[str, Any]:
    return {
        "result": result,
        "headline": findings.headline(result),
        "facts": _facts(result),
        "heads": ("input", "batch", *HEADS, "sent"),
        "rows": [
            (one.cell.source, str(one.cell.batch), *row(result, one), size(one.sent))
            for one in result.readings
        ],
        "words": ("reduce", "input"),
        "measured": findings.steps_measured(result) if result.readings else "",
        "blocks": [
            (f"Batch {asked} {of_whom(result)}", figures(result, asked))
            for asked in result.grid.batches
            if block(result, asked)
        ],
        "equation": EQUATION,
        "fits": [
            (f"{one.reduce}, {one.source} input", findings.fitted(one), bars(one))
            for one in result.fits
        ],
        "drifts": [findings.drift(one) for one in result.drifts],
        "costs": findings.input_costs(result),
    }


def _facts(result: ScalingResult) -> dict[str, str]:
    """Name what was trained, and where."""
    shared = findings.shared_cores(result)
    place = result.place.title
    facts = {
        "Place": f"{place}; {shared}" if shared else place,
        "Runs": f"{len(result.readings)} measured, {len(result.lost)} failed",
    }
    for one in result.readings[:1]:
        facts["Network"] = f"{one.parameters:,} parameters"
        facts["Data"] = f"{one.samples:,} training samples"
    return facts
