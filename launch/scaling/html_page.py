"""The page of a study: one offline HTML file, in the look of a run's report."""

import json
from pathlib import Path
from typing import Any

from jaxdist.core.text.formatting import format_size
from jaxdist.launch.report.html_document import read_resource, render_template
from jaxdist.launch.run_folder.folder import write_atomic
from jaxdist.launch.scaling import findings
from jaxdist.launch.scaling.charts import batch_figures, fit_bars
from jaxdist.launch.scaling.fit import FIT_EQUATION
from jaxdist.launch.scaling.json_view import scaling_tree
from jaxdist.launch.scaling.results import ScalingResult
from jaxdist.launch.scaling.table import (
    COLUMNS,
    batch_measurements,
    batch_scope,
    table_row,
)


def write_page(result: ScalingResult, folder: Path) -> Path:
    """Write `scale.html` and `scale.json` into a study's folder; return the page."""
    page = folder / "scale.html"
    write_atomic(page, render_page(result))
    write_atomic(
        folder / "scale.json", json.dumps(scaling_tree(result), indent=2) + "\n"
    )
    return page


def render_page(result: ScalingResult) -> str:
    """Write the page of a study as one HTML document that asks for nothing."""
    return render_template(
        read_resource("scale.html.j2", __package__), _template_values(result)
    )


def _template_values(result: ScalingResult) -> dict[str, Any]:
    return {
        "result": result,
        "headline": findings.headline(result),
        "facts": _facts(result),
        "heads": ("input", "batch", *COLUMNS, "sent"),
        "rows": [
            (
                one.run.input,
                str(one.run.batch),
                *table_row(result, one),
                format_size(one.sent_bytes),
            )
            for one in result.readings
        ],
        "words": ("reduce", "input"),
        "measured": findings.measurement_sentence(result) if result.readings else "",
        "blocks": [
            (f"Batch {asked} {batch_scope(result)}", batch_figures(result, asked))
            for asked in result.grid.batches
            if batch_measurements(result, asked)
        ],
        "equation": FIT_EQUATION,
        "fits": [
            (
                f"{one.reduce}, {one.source} input",
                findings.fit_sentence(one),
                fit_bars(one),
            )
            for one in result.fits
        ],
        "drifts": [findings.divergence_sentence(one) for one in result.drifts],
        "costs": findings.input_cost_sentences(result),
    }


def _facts(result: ScalingResult) -> dict[str, str]:
    """Name what was trained, and where."""
    shared = findings.shared_cores_sentence(result)
    place = result.place.title
    facts = {
        "Place": f"{place}; {shared}" if shared else place,
        "Runs": f"{len(result.readings)} measured, {len(result.lost)} failed",
    }
    for one in result.readings[:1]:
        facts["Network"] = f"{one.parameters:,} parameters"
        facts["Data"] = f"{one.samples:,} training samples"
    return facts
