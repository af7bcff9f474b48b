"""Measured rows of others beside our predictions, held out by size and by chance.

    python benchmarks/oracle_rows.py FOLDER [--worst]

FOLDER has vtrain/ and calculon/ with rows and tables of github.com/VIA-Research/vTrain
(commit f8dda847) and github.com/calculon-ai/calculon (caa4b11f). A line fits the first
three constants of the format to the rows of a selection, and scores all others.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np

from jaxdist.calibrate.fit import MAX_CONSTANTS, fit
from jaxdist.calibrate.fitted_constants import (
    FittedConstants,
    initial_constants,
    make_fitted_constants,
)
from jaxdist.calibrate.formats.rates import MEGATRON_CONSTANTS, megatron_rates
from jaxdist.calibrate.formats.registry import FORMATS, detect_format
from jaxdist.calibrate.measured_rows import RowFormat, initial_values
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import ScoreReport, score_predictions
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.published.megatron.links import RankGroup, all_reduce_seconds

ONE = "vtrain/single_node_calibration.csv"
SEVERAL = "vtrain/multi_node_calibration.csv"
MEGATRON = "calculon/measured.csv"
SPLITS = {
    ONE: (
        "devices<=2",
        "devices<=4",
        "hidden==1024",
        "hidden==2048",
        "tensor==1",
        "pipe==1",
        "microbatch<=2",
        "row % 4 == 0",
        "row % 4 == 2",
        "row % 20 == 0",
    ),
    SEVERAL: (
        "devices<=256",
        "devices>=512",
        "hidden<=8192",
        "row % 2 == 0",
        "row % 2 == 1",
        "row % 9 == 0",
    ),
    MEGATRON: (
        "model == megatron-22B",
        "model == gpt3-175B",
        "mode == full",
        "mode == seqsel",
    ),
}


def rows_of(path):
    form = detect_format(path, None, FORMATS)
    return form, form.read(path, load_cluster(form.cluster))


def learn(form: RowFormat, rows, text, name):
    found = fit(
        form, parse_row_filter(text).select(rows), form.constants[:MAX_CONSTANTS]
    )
    return make_fitted_constants(form, form.cluster, found, text, name)


def line(title, found: ScoreReport, known: FittedConstants, worst):
    """Print one score; of Megatron's points the times alone."""
    one = found.groups.get("iteration_time", found.total)
    shares = (one.mape, one.median, one.p95, one.worst, one.baseline_mape)
    numbers = " ".join(f"{100 * share:7.2f}" for share in shares)
    values = " ".join(f"{c['name']} {c['value']:.3g}" for c in known.constants)
    print(f"{title:24} {len(known.rows):5} {one.rows:6} {numbers}  {values}")
    for row in sorted(found.rows, key=lambda r: -r.error)[: 8 * worst]:
        print(f"    {row.row.label:70} {row.row.measured:.4g} {row.predicted:.4g}")


def memory(rows, form: RowFormat):
    """Print the errors of Megatron's published memory, which has no constants."""
    for name, one in score_predictions(
        rows, initial_constants(form, form.cluster)
    ).groups.items():
        if name != "iteration_time":
            print(
                f"{name:24} {one.rows:12} {100 * one.mape:7.2f} {100 * one.worst:7.2f}"
            )


def tables(folder: Path):
    """Print the errors of sums in a host, beside NCCL's times."""
    now, cluster = (
        megatron_rates(initial_values(MEGATRON_CONSTANTS)),
        load_cluster("vtrain-a100"),
    )
    print("\nNCCL in a host, 1 MiB to 1 GiB: mean error by devices")
    for ranks in range(2, 9):
        path = folder / f"vtrain/all_reduce/a100/AR_GPU{ranks}_1M_1024M_LUT"
        who, errors = RankGroup(ranks_per_host=ranks, hosts=1, groups_per_host=1), []
        for row in list(csv.reader(path.open()))[1:]:
            ours = all_reduce_seconds(float(row[0]), who, cluster, now)
            errors.append(abs(ours / (1e-9 * float(row[3])) - 1))
        print(f"  {ranks}: {100 * np.mean(errors):.1f} %", end="")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worst", action="store_true", help="the worst rows, too")
    args = parser.parse_args()
    begun = time.perf_counter()
    for file, texts in SPLITS.items():
        form, rows = rows_of(args.folder / file)
        heads = "rows  scored    MAPE  median     p95   worst  baseline"
        print(f"\n{file}\n{'fitted':24}  {heads}")
        plain = initial_constants(form, form.cluster)
        line("nothing", score_predictions(rows, plain), plain, args.worst)
        for text in texts:
            known = learn(form, rows, text, file)
            line(text, score_predictions(rows, known), known, args.worst)
    memory(rows, form)
    form, small = rows_of(args.folder / ONE)
    print("\nfitted to all rows of one host, scored on several")
    known = learn(form, small, "devices<=8", ONE)
    line(
        "devices<=8",
        score_predictions(rows_of(args.folder / SEVERAL)[1], known),
        known,
        args.worst,
    )
    tables(args.folder)
    print(f"\n{time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
