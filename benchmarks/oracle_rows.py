"""Measured rows of others beside our predictions, held out by size and by chance.

    python benchmarks/oracle_rows.py FOLDER [--worst]

FOLDER has vtrain/ and calculon/ as of github.com/VIA-Research/vTrain (commit f8dda847)
and github.com/calculon-ai/calculon (caa4b11f). Each line fits three constants to the
rows of a selection, and scores all other rows of the file.
"""

import argparse
import time
from pathlib import Path

from jaxdist.calibrate.fit import MOST, fit
from jaxdist.calibrate.fitted import fitted
from jaxdist.calibrate.formats.registry import FORMATS, format_of
from jaxdist.calibrate.score import score
from jaxdist.calibrate.selection import selection
from jaxdist.meshes.clusters.read import find

SPLITS = {
    "vtrain/single_node_calibration.csv": (
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
    "vtrain/multi_node_calibration.csv": (
        "devices<=256",
        "devices>=512",
        "hidden<=8192",
        "row % 2 == 0",
        "row % 2 == 1",
        "row % 9 == 0",
    ),
}


def held_out(path, text, name=None):
    """Fit to the rows of a selection, and return the score of the others."""
    form = format_of(path, name, FORMATS)
    rows = form.read(path, find(form.cluster))
    found = fit(form, selection(text).of(rows), form.constants[:MOST])
    known = fitted(form, form.cluster, found, text, path.name)
    return score(rows, known), found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worst", action="store_true", help="the worst rows, too")
    args = parser.parse_args()
    begun = time.perf_counter()
    for file, texts in SPLITS.items():
        print(f"\n{file}\n{'fitted':24} rows  scored  MAPE  median   p95  baseline")
        for text in texts:
            found, made = held_out(args.folder / file, text)
            one = found.total
            shares = [one.mape, one.median, one.p95, one.baseline_mape]
            values = " ".join(f"{c.name} {made.values[c.name]:.3g}" for c in made.free)
            print(
                f"{text:24} {len(made.rows):4} {one.rows:7} "
                + " ".join(f"{100 * share:6.2f}" for share in shares)
                + f"    {values}"
            )
            for row in sorted(found.rows, key=lambda r: -r.error)[: 8 * args.worst]:
                print(
                    f"    {row.row.label:70} {row.row.measured:.4g} {row.predicted:.4g}"
                )
    print(f"\n{time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
