"""Measured FSDP steps beside our predictions: held-out hosts, networks and contexts.

    python benchmarks/fsdp_rows.py FOLDER [--score FOLDER] [--worst] [--record]

FOLDER has measured.csv: numbers of github.com/mosaicml/llm-foundry (commit 8c8dd48f).
A line fits the three constants of each card to some rows, and scores all others; of the
parts of a network, a context or a row, each is left out once, and errors are those of
all parts. --score takes a folder of further rows of the same columns, which are scored
with the constants of all rows of FOLDER.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import record

from jaxdist.calibrate.fit import MAX_CONSTANTS, fit, select_constants
from jaxdist.calibrate.fitted_constants import make_fitted_constants
from jaxdist.calibrate.formats.fsdp import FsdpFormat
from jaxdist.calibrate.measured_rows import MeasuredRow
from jaxdist.calibrate.score import ScoredRow, score_predictions, summarize_errors
from jaxdist.meshes.clusters.load import load_cluster

MEASURED = "measured.csv"
FORM = FsdpFormat()
SPLITS = {
    "two hosts, from one": lambda row: int(row["gpus"]) <= 8,
    "125m and 350m, from larger": lambda row: row["model"] not in ("125m", "350m"),
    "contexts above 8,192, from shorter": lambda row: int(row["context"]) <= 8192,
}
"""Which rows are fitted; all others are scored."""
PARTS = {
    "each network left out once": "model",
    "each context left out once": "context",
    "each row left out once": "row",
}
TITLE = "FSDP steps of MPT networks"
MEASURES = (
    "Errors of the predicted seconds of 54 steps of MPT networks under PyTorch FSDP "
    "on 8 and 16 H100 and 8 A100. Three constants of each card are fitted to some "
    "rows, and all others are scored; the baseline is one utilisation of each card. "
    "Errors do not depend on the machine."
)
HEADS = ("rows", "scored", "MAPE", "median", "95th percentile", "worst", "baseline")


def read(folder: Path):
    """Return the rows of all CSV files of a folder."""
    files, cluster = sorted(folder.glob("*.csv")), load_cluster(FORM.cluster)
    return [row for path in files for row in FORM.read(path, cluster)]


def learn(rows: list[MeasuredRow]):
    """Return the constants that fit some rows, and the fit itself."""
    found = fit(FORM, rows, select_constants(FORM, None, MAX_CONSTANTS))
    return make_fitted_constants(FORM, FORM.cluster, found, "some", MEASURED), found


def held_out(rows: list[MeasuredRow], column):
    """Return the scored rows of parts that are each left out once."""
    scored: list[ScoredRow] = []
    for value in dict.fromkeys(row.columns[column] for row in rows):
        known, _ = learn([row for row in rows if row.columns[column] != value])
        scored += score_predictions(rows, known).rows
    return scored


class Table:
    """Prints errors by case and keeps them as rows of results."""

    def __init__(self, worst):
        self.rows, self.worst = [], worst
        heads = "rows  scored     MAPE  median     p95   worst     MFU"
        print(f"{'':45}{heads}")

    def add(self, case, fitted, scored: Sequence[ScoredRow], *, groups=False):
        """Print and keep the errors of scored rows, and of each group of them."""
        one = summarize_errors(scored)
        shares = (one.mape, one.median, one.p95, one.worst, one.baseline_mape)
        percents = [100 * share for share in shares]
        print(f"{case:44}{fitted:5} {one.rows:7} ", *(f"{x:7.2f}" for x in percents))
        values = (fitted, one.rows, *(round(x, 1) for x in percents))
        units = ("", "", *["%"] * 5)
        self.rows += [
            record.row(case, value, unit, figure=figure)
            for value, unit, figure in zip(values, units, HEADS, strict=True)
        ]
        for row in sorted(scored, key=lambda row: -row.error)[: 6 * self.worst]:
            off = row.predicted / row.row.measured - 1
            print(f"    {row.row.label:60} {off:7.1%}")
        for name in dict.fromkeys(one.row.group for one in scored if groups):
            own = [one for one in scored if one.row.group == name]
            self.add(f"{case}: {name}", fitted, own)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--score", type=Path, help="folder of further rows")
    parser.add_argument("--worst", action="store_true", help="the worst rows, too")
    record.add_record_option(parser)
    args = parser.parse_args()
    rows, table = read(args.folder), Table(args.worst)
    known, _ = learn(rows)
    if args.score:
        scored = score_predictions(read(args.score), known).rows
        table.add("further rows", len(rows), scored, groups=True)
        return

    # The error of a fit is no prediction; it stands beside those of what was left out.
    fitted = score_predictions(rows, replace(known, rows=())).rows
    table.add("all rows, as fitted", len(rows), fitted, groups=True)
    for case, is_fitted in SPLITS.items():
        train = [row for row in rows if is_fitted(row.columns)]
        table.add(case, len(train), score_predictions(rows, learn(train)[0]).rows)
    for case, column in PARTS.items():
        parts = len({row.columns[column] for row in rows})
        # Parts are not of one size: the mean of the rows that are fitted.
        mean_train = round(len(rows) * (1 - 1 / parts))
        table.add(case, mean_train, held_out(rows, column))
    print(", ".join(f"{one['name']} {one['value']:.3g}" for one in known.constants))
    if args.record:
        record.write_result("fsdp_rows", table.rows, title=TITLE, measures=MEASURES)


if __name__ == "__main__":
    main()
