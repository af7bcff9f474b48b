"""ParaDL's measured rows beside our predictions, held out by devices, split and model.

    python benchmarks/paradl_rows.py FOLDER [--worst]

FOLDER has measured_iterations.csv and table8_resnet50.csv, and may have
measured_spatial_open.csv and table8_vgg16_open.csv: numbers of
github.com/ankahira/paraDL (commit cc23ef09) and TruongThaoNguyen/paraDL-analysis
(ce36803b). Each line fits two constants to the runs of a selection, and scores all
other runs, and the ranking with the same constants; then lines fit to rankings. The
last lines leave one network out: all three constants are fitted to runs of the other
networks, from data sheets, and score all rows of the one that was left out.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jaxdist.calibrate.fit import fit
from jaxdist.calibrate.fitted_constants import make_fitted_constants
from jaxdist.calibrate.formats.paradl import ParadlFormat
from jaxdist.calibrate.measured_rows import MeasuredRow
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import ScoreReport, score_predictions, score_rankings
from jaxdist.meshes.clusters.load import load_cluster

RUNS, RANKED = "measured_iterations.csv", "table8_resnet50.csv"
SPATIAL, VGG = "measured_spatial_open.csv", "table8_vgg16_open.csv"
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
    cluster = load_cluster(form.cluster)
    rows = {
        name: form.read(args.folder / name, cluster)
        for name in (RUNS, RANKED, SPATIAL, VGG)
        if name in (RUNS, RANKED) or (args.folder / name).is_file()
    }
    # The rate of dense layers that read a map is in no row of the first two files.
    two = [one for one in form.constants if one.name != "map_dense"]
    print(
        "fitted                                        rows  reduce  staging  accuracy"
    )
    for file, text in SPLITS:
        train = chosen(rows[file], text)
        known, head = fitted(form, train, two, text, file)
        print(head)
        for name in (RUNS, RANKED):
            if any(row.key not in known.rows for row in rows[name]):
                held(name, score_predictions(rows[name], known), args.worst)
    runs = [row for name in (RUNS, SPATIAL) for row in rows.get(name, ())]
    tables = [row for name in (RANKED, VGG) for row in rows.get(name, ())]
    for network in sorted({network_of(row) for row in runs}):
        # Noisy rows as well: AlexNet has no quiet ones. A rate that is fitted to other
        # rows begins where a data sheet has it.
        neutral = [
            replace(one, initial=one.high) if one.name == "map_dense" else one
            for one in form.constants
        ]
        other = replace(form, constants=tuple(neutral))
        train = [row for row in runs if network_of(row) != network]
        known, head = fitted(other, train, neutral, f"all but {network}", RUNS)
        print(f"{head}, map_dense {known.values['map_dense']:.3g}")
        for name, found in (("runs", runs), ("rankings", tables)):
            mine = [row for row in found if network_of(row) == network]
            if mine:
                held(name, score_predictions(mine, known), args.worst)


def network_of(row: MeasuredRow):
    """Return the network of a row."""
    return row.columns["model"]


def fitted(form: ParadlFormat, train, constants, text, file):
    """Return constants fitted to rows, and a line that says how well."""
    found = fit(form, train, constants, allow_noisy=text.startswith("all but"))
    values = found.values
    head = (
        f"{text:45} {len(found.rows):4} {values['reduce']:7.3f} "
        f"{values['staging']:8.3f}  on them {1 - found.mape:.1%}"
    )
    return make_fitted_constants(form, form.cluster, found, text, file), head


def held(name, found: ScoreReport, worst):
    """Print the scores of held-out rows by group."""
    total = found.total
    ranks = score_rankings(found.rows)
    order = f", {ranks.right} of {ranks.contests} rankings right" if ranks else ""
    least = 1 - max(row.error for row in found.rows)
    scores = f"{total.mean_accuracy:.1%} of {total.rows}, least {least:.1%}{order}"
    if total.covered is not None:
        scores += f"; +-{total.half_width:.1%} holds {total.covered:.1%}"
    print(f"    {name}: {scores}")
    groups = (f"{n} {one.mean_accuracy:.1%}" for n, one in found.groups.items())
    print(f"        {'; '.join(groups)}")
    for row in sorted(found.rows, key=lambda row: -row.error)[: 4 * worst]:
        print(f"        {row.row.label}: {row.predicted:.4g} of {row.row.measured:.4g}")


def chosen(rows: Sequence[MeasuredRow], text: str):
    """Return the rows of a selection, or of any of several joined by or."""
    parts = [parse_row_filter(part).select(rows) for part in text.split(" or ")]
    keys = {row.key for part in parts for row in part}
    return [row for row in rows if row.key in keys]


if __name__ == "__main__":
    main()
