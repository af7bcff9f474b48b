"""ParaDL's measured rows beside our predictions, held out by devices, split and model.

    python benchmarks/paradl_rows.py FOLDER [--worst]

FOLDER has measured_iterations.csv and table8_resnet50.csv: numbers of
github.com/ankahira/paraDL (commit cc23ef09) and TruongThaoNguyen/paraDL-analysis
(ce36803b). Each line fits two constants to the runs of a selection, and scores all
other runs, and the ranking with the same constants; the last lines fit to rankings.
"""

import argparse
from pathlib import Path

from jaxdist.calibrate.fit import fit
from jaxdist.calibrate.fitted_constants import make_fitted_constants
from jaxdist.calibrate.formats.paradl import ParadlFormat
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import score_predictions, score_rankings
from jaxdist.meshes.clusters.load import load_cluster

RUNS, RANKED = "measured_iterations.csv", "table8_resnet50.csv"
SPLITS = (
    (RUNS, "gpus<=8"),
    (RUNS, "gpus<=16"),
    (RUNS, "gpus>=8"),
    (RUNS, "strategy in (data, data+spatial, spatial)"),
    (RUNS, "strategy in (data, data+filter)"),
    (RUNS, "strategy != data"),
    (RUNS, "model == resnet50"),
    (RUNS, "model == vgg16 or strategy == spatial"),
    (RUNS, "gpus>=1"),
    (RANKED, "gpus<=32"),
    (RANKED, "gpus>=128"),
    (RANKED, "strategy in (spatial+data, filter+data)"),
    (RANKED, "gpus>=1"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worst", action="store_true", help="the worst rows, too")
    args = parser.parse_args()
    form = ParadlFormat()
    rows = {
        name: form.read(args.folder / name, load_cluster(form.cluster))
        for name in (RUNS, RANKED)
    }
    print(
        "fitted                                        rows  reduce  staging  accuracy"
    )
    for file, text in SPLITS:
        train = chosen(rows[file], text)
        found = fit(form, train, form.constants)
        known = make_fitted_constants(form, form.cluster, found, text, file)
        values = found.values
        print(
            f"{text:45} {len(found.rows):4} {values['reduce']:7.3f} "
            f"{values['staging']:8.3f}  on them {1 - found.mape:.1%}"
        )
        for name in (RUNS, RANKED):
            if any(row.key not in known.rows for row in rows[name]):
                held(name, score_predictions(rows[name], known), args.worst)


def held(name, found, worst):
    """Print the scores of held-out rows by group."""
    total = found.total
    ranks = score_rankings(found.rows)
    order = f", {ranks.right} of {ranks.contests} rankings right" if ranks else ""
    print(f"    {name}: {total.mean_accuracy:.1%} of {total.rows}{order}")
    groups = (f"{n} {one.mean_accuracy:.1%}" for n, one in found.groups.items())
    print(f"        {'; '.join(groups)}")
    for row in sorted(found.rows, key=lambda row: -row.error)[: 4 * worst]:
        print(f"        {row.row.label}: {row.predicted:.4g} of {row.row.measured:.4g}")


def chosen(rows, text):
    """Return the rows of a selection, or of any of several joined by or."""
    parts = [parse_row_filter(part).select(rows) for part in text.split(" or ")]
    keys = {row.key for part in parts for row in part}
    return [row for row in rows if row.key in keys]


if __name__ == "__main__":
    main()
