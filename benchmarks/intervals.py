"""How many measured rows lie in the intervals of predictions that never saw them.

    python benchmarks/intervals.py FOLDER [--record]

FOLDER has vtrain/, calculon/ and paradl/ as for oracle_rows.py and paradl_rows.py.
Constants and intervals are of the rows that a line names, and all other rows of the
file are counted. Steps are those of jaxdist/oracle/held_out_steps.csv, each in the
interval of all other networks, or machines. Five minutes.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import oracle_rows
import paradl_rows
import record

from jaxdist.calibrate.formats.paradl import ParadlFormat
from jaxdist.calibrate.score import score_predictions
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.step_errors import TIMED, read_held_out_steps, step_interval

PLANS = {
    "samples split": Plan(mesh=MeshShape(data=2)),
    "layers split": Plan(mesh=MeshShape(tensor=2)),
    "stages": Plan(mesh=MeshShape(pipe=2)),
}
LIKE, OTHER = "like those fitted", "other networks"
ONE, SEVERAL = "vTrain, one host", "vTrain, several hosts"
ROWS = {
    (ONE, LIKE): ("row % 4 == 0", "row % 4 == 2", "row % 20 == 0"),
    (ONE, OTHER): ("hidden==1024", "hidden==2048"),
    (ONE, "more devices"): ("devices<=2", "devices<=4"),
    (ONE, "other layouts"): ("tensor==1", "pipe==1", "microbatch<=2"),
    (SEVERAL, LIKE): ("row % 2 == 0", "row % 2 == 1", "row % 9 == 0"),
    (SEVERAL, "other sizes"): ("devices<=256", "devices>=512", "hidden<=8192"),
    ("Megatron", OTHER): ("model == megatron-22B", "model == gpt3-175B"),
}
FILES = {
    ONE: oracle_rows.ONE,
    SEVERAL: oracle_rows.SEVERAL,
    "Megatron": oracle_rows.MEGATRON,
}
RUNS, RANKED = paradl_rows.RUNS, paradl_rows.RANKED


def counted(scored):
    """Return whether each row with an interval is in it, and half the width."""
    has = [one for one in scored if one.interval is not None]
    return [one.is_covered for one in has], [one.interval.half_width for one in has]


def fitted(folder):
    """Yield the figures of constants that were fitted."""
    for (name, kind), texts in ROWS.items():
        file = FILES[name]
        inside: list[bool] = []
        widths: list[float] = []
        form, rows = oracle_rows.rows_of(folder / file)
        for text in texts:
            known = oracle_rows.learn(form, rows, text, file)
            one, two = counted(score_predictions(rows, known).rows)
            inside, widths = inside + one, widths + two
        yield f"{name}, {kind}", inside, widths
    yield from paradl(folder / "paradl")


def paradl(folder):
    """Yield the figures of constants that were fitted to ParaDL's rows."""
    inside: list[bool] = []
    widths: list[float] = []
    form = ParadlFormat()
    rows = {
        name: form.read(folder / name, load_cluster(form.cluster))
        for name in (RUNS, RANKED, paradl_rows.SPATIAL, paradl_rows.VGG)
    }
    # The rate of dense layers that read a map is in no row of these two files.
    two = [one for one in form.constants if one.name != "map_dense"]
    for name, scored, kind in (
        (RUNS, RUNS, "runs"),
        (RANKED, RANKED, "ranking"),
        (RANKED, paradl_rows.VGG, "ranking of VGG-16 from ResNet50's"),
    ):
        inside, widths = [], []
        for text in (text for file, text in paradl_rows.SPLITS if file == name):
            train = paradl_rows.chosen(rows[name], text)
            known, _ = paradl_rows.fitted(form, train, two, text, name)
            if any(row.key not in known.rows for row in rows[scored]):
                one, half = counted(score_predictions(rows[scored], known).rows)
                inside, widths = inside + one, widths + half
        yield f"ParaDL, {kind}", inside, widths
    inside, widths = [], []
    runs = rows[RUNS] + rows[paradl_rows.SPATIAL]
    for network in sorted({paradl_rows.network_of(row) for row in runs}):
        train = [row for row in runs if paradl_rows.network_of(row) != network]
        known, _ = paradl_rows.fitted(
            form, train, form.constants, f"all but {network}", RUNS
        )
        mine = [row for row in runs if paradl_rows.network_of(row) == network]
        one, half = counted(score_predictions(mine, known).rows)
        inside, widths = inside + one, widths + half
    yield "ParaDL, runs, other networks", inside, widths


def executed():
    """Yield the figures of predicted steps, network by network left out."""
    steps = read_held_out_steps()
    for machine, name in (
        (TIMED, "executed plans, timed hosts"),
        ("dgx-h100", "FSDP on H100, from data sheets"),
        ("dgx-a100", "FSDP on A100, from data sheets"),
        ("abci", "ParaDL's runs on ABCI, from data sheets"),
    ):
        cluster = load_cluster("testbed" if machine == TIMED else machine)
        for kind, plan in PLANS.items():
            inside, widths = [], []
            for one in steps:
                if (one.machine, one.layout) != (machine, kind):
                    continue
                others = [x for x in steps if x.network != one.network]
                found = step_interval(
                    cluster, plan, timed=machine == TIMED, steps=others
                )
                inside.append(found.holds(1.0, math.exp(one.log_ratio)))
                widths.append(found.half_width)
            if inside:
                yield f"{name}, {kind}, other networks", inside, widths
    inside, widths = [], []
    for machine in ("abci", "dgx-h100", "dgx-a100"):
        others = [x for x in steps if x.machine != machine]
        for one in steps:
            if one.machine == machine:
                found = step_interval(
                    load_cluster(machine), PLANS[one.layout], timed=False, steps=others
                )
                inside.append(found.holds(1.0, math.exp(one.log_ratio)))
                widths.append(found.half_width)
    yield "steps from data sheets, other machines", inside, widths


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    record.add_record_option(parser)
    args = parser.parse_args()
    made = []
    for name, inside, widths in (*executed(), *fitted(args.folder)):
        share, width = 100 * np.mean(inside), 100 * np.median(widths)
        print(f"{name:60} {len(inside):5} {share:5.0f} % +-{width:.1f} %", flush=True)
        made += [
            record.row(name, len(inside), "", figure="rows"),
            record.row(name, float(share), "%", figure="in the interval"),
            record.row(name, float(width), "%", figure="half width, median"),
        ]
    if args.record:
        record.write_result("intervals", made)


if __name__ == "__main__":
    main()
