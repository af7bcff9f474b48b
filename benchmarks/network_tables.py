"""Published simulations of allreduces beside ours: every row of every table.

    python benchmarks/network_tables.py FOLDER [--pace ranks] [--calls 2] [--apart 0]
        [--rows]

FOLDER has CSV files with the columns platform, ranks, bytes or elements, density,
algorithm, and ms or ms_mean with ms_min and ms_max: numbers of
github.com/TruongThaoNguyen/allreduce_simulate, commit 45057ad. Platforms are the named
ones, `smpi` factors, shares by round trip; nothing is fitted to a row.

Rows with one `ms` are a thousand calls, one after the other, over a thousand. A rank
that is done early begins the next call early, so ours is what the last of `--calls`
adds; the second call adds as much as the sixth, where the first differs. With `--apart`
ranks begin their first call at random times within so many microseconds.
"""

import argparse
import csv
import itertools
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxdist.network.concurrent import (
    CollectiveMessages,
    schedule_messages,
    simulate_concurrent,
)
from jaxdist.network.platforms.read import find_topology
from jaxdist.network.protocol_overheads import protocol_overheads
from jaxdist.network.published import (
    PUBLISHED_ENCODINGS,
    PUBLISHED_SCHEDULES,
    PUBLISHED_SPARSE_SCHEDULES,
)
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.sparse import (
    SparseEncoding,
    simulate_sparse,
    sparse_schedule_messages,
)


def read(folder):
    """Yield the rows of all files."""
    for path in sorted(Path(folder).glob("*.csv")):
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                size = float(row.get("bytes") or 4 * int(row["elements"]))
                ms = float(row.get("ms") or row["ms_mean"])
                least, most = row.get("ms_min") or ms, row.get("ms_max") or ms
                yield {
                    **row,
                    "table": path.stem,
                    "size": size,
                    "ms": ms,
                    "spread": (float(least), float(most)),
                }


def called(made: CollectiveMessages, times):
    """Return messages of so many calls, each rank going on as soon as it is done."""
    steps = int(made.step.max()) + 1
    return replace(
        made,
        step=np.concatenate([made.step + steps * call for call in range(times)]),
        sources=np.tile(made.sources, times),
        targets=np.tile(made.targets, times),
        size=np.tile(made.size, times),
        compute_s=np.tile(made.compute_s, times),
    )


def begun_apart(made: CollectiveMessages, ranks, seconds):
    """Return messages after one byte to the next rank, which each works on a while."""
    here = np.arange(ranks)
    wait = np.random.default_rng(0).uniform(0, seconds, ranks)
    return replace(
        made,
        step=np.concatenate([np.zeros(ranks, np.int64), made.step + 1]),
        sources=np.concatenate([here, made.sources]),
        targets=np.concatenate([(here + 1) % ranks, made.targets]),
        size=np.concatenate([np.ones(ranks), made.size]),
        compute_s=np.concatenate([wait, made.compute_s]),
    )


def ours(row, network: NetworkModel, pace, calls, apart):
    """Return our ms for a row."""
    name, ranks = row["algorithm"], int(row["ranks"])
    topology = network.topology
    if name in PUBLISHED_SCHEDULES:
        steps = PUBLISHED_SCHEDULES[name](ranks, 4)
        if pace == "steps":
            return 1e3 * simulate_collective(steps, row["size"], network).seconds
        made = schedule_messages(
            steps, row["size"], np.arange(ranks), topology.reduce_s_per_byte
        )
        if "ms_mean" in row:
            calls = 1
        until = []
        for times in range(max(1, calls - 1), calls + 1):
            many = called(made, times)
            if apart:
                many = begun_apart(many, ranks, 1e-6 * apart)
            until.append(simulate_concurrent([many], network, pace).seconds)
        return 1e3 * (until[-1] - until[0] if calls > 1 else until[0])
    sums, copies = PUBLISHED_ENCODINGS[name]
    if name in ("sparse_big", "sparse_small"):  # all with all: there is one step of it
        pace = "steps"
    seed = 0 if pace == "ranks" else None
    how = SparseEncoding(
        density=float(row["density"]),
        reduce_encoding=sums,
        copy_encoding=copies,
        seed=seed,
    )
    steps = PUBLISHED_SPARSE_SCHEDULES[name](ranks, 4)
    if pace == "steps":
        return 1e3 * simulate_sparse(steps, row["size"], network, how).seconds
    made = sparse_schedule_messages(steps, row["size"], topology, how)
    return 1e3 * simulate_concurrent([made], network, pace).seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--pace", default="ranks", choices=("steps", "ranks"))
    parser.add_argument("--calls", type=int, default=2, help="of rows that are means")
    parser.add_argument("--apart", type=float, default=0.0, help="microseconds")
    parser.add_argument("--rows", action="store_true", help="print every row")
    args = parser.parse_args()
    networks = {
        name: NetworkModel(
            topology=find_topology(name, 1, {}),
            overheads=protocol_overheads("smpi"),
            sharing="rtt",
        )
        for name in ("tsubame3", "abci")
    }
    begun, rows = time.perf_counter(), list(read(args.folder))
    for row in rows:
        row["ours"] = ours(
            row, networks[row["platform"]], args.pace, args.calls, args.apart
        )
        row["off"] = row["ours"] / row["ms"] - 1
        if args.rows:
            print(
                f"{row['platform']:9} {row['ranks']:>4} {row['size'] / 2**20:6g} MiB "
                f"{row.get('density') or '':12} {row['algorithm']:18} "
                f"{row['ms']:9.3f} {row['ours']:9.3f} {100 * row['off']:+6.2f} %"
            )
    for table, some in itertools.groupby(rows, lambda row: row["table"]):
        say(table, [abs(row["off"]) for row in some])
    say("all", [abs(row["off"]) for row in rows])
    orders(rows)
    print(f"{time.perf_counter() - begun:.1f} s")


def say(name, off):
    middle, worst = statistics.median(off), max(off)
    print(f"{name}: {len(off)} rows, median {middle:.2%}, max {worst:.2%}")


def orders(rows):
    """Compare the order of algorithms in every setting, pair by pair."""
    wrong, pairs, settings = [], 0, 0

    def key(row):
        setting = ("table", "platform", "ranks", "bytes", "elements", "density")
        return tuple(row.get(name) or "" for name in setting)

    for _, some in itertools.groupby(sorted(rows, key=key), key):
        settings += 1
        for one, other in itertools.combinations(list(some), 2):
            pairs += 1
            if (one["ms"] - other["ms"]) * (one["ours"] - other["ours"]) < 0:
                wrong.append((one, other))
    print(f"order: {len(wrong)} of {pairs} pairs in {settings} settings are exchanged")
    for one, other in wrong:
        print(
            f"  {one['table']} {one['ranks']} ranks: {one['algorithm']} {one['ms']} "
            f"{one['spread']}, {other['algorithm']} {other['ms']} {other['spread']}; "
            f"ours {one['ours']:.3f} and {other['ours']:.3f}"
        )


if __name__ == "__main__":
    main()
