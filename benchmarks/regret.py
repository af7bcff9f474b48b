"""Regret of an automatic choice of how to sum, on four hosts on shaped links.

    python benchmarks/regret.py --rates 100mbit,400mbit,1gbit,none
    python benchmarks/regret.py --rates none --times 15 --json regret.json

Needs Linux and root: each host is a network namespace with a link of its own, one
process and one thread. At each rate the hosts measure their link once
(`jaxdist.calibrate.reduction_timings`) and choose for every size out of three sets: the
exact ways, these and int8, and those with all lossy ways as well. Then every way is
timed at that size, in turn, and its time is the first quartile: other work on the
machine only adds. Regret is what the chosen way takes longer than the fastest one of
its set.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from jaxdist.launch.testbed.hosts import EmulatedCluster

WORKER = Path(__file__).with_name("regret_worker.py")
HEADS = ("rate", "size", "out of", "choice", "ms", "fastest", "ms", "regret", "exact")


def measured(hosts: EmulatedCluster, sizes, times, timeout, cache):
    """Return what all hosts have chosen and [{way: seconds of each time}] by size."""
    given = json.dumps({"sizes": sizes, "times": times})
    command = [sys.executable, str(WORKER), given]
    done = hosts.run(command, timeout=timeout, env=cache)
    ranks = [json.loads(each.stdout.splitlines()[-1]) for each in done]
    if len({json.dumps(rank["choices"]) for rank in ranks}) > 1:
        raise SystemExit("hosts have chosen differently")
    seconds = [
        {way: [max(each) for each in zip(*(s[way] for s in same))] for way in same[0]}
        for same in zip(*(rank["seconds"] for rank in ranks), strict=True)
    ]
    return ranks[0]["link"], ranks[0]["choices"], seconds


def quartile(seconds):
    return float(np.quantile(seconds, 0.25))


def rows(rate, sizes, choices, seconds):
    """Yield a row for each size and each set of ways."""
    for mib, by_set, timed in zip(sizes, choices, seconds, strict=True):
        ms = {way: 1e3 * quartile(each) for way, each in timed.items()}
        for name, (among, choice) in by_set.items():
            best = min(among, key=ms.__getitem__)
            regret = ms[choice] / ms[best] - 1
            yield {
                "rate": rate,
                "mib": mib,
                "set": name,
                "choice": choice,
                "ms": ms[choice],
                "best": best,
                "best_ms": ms[best],
                "regret": regret,
                "exact_ms": ms["exact"],
            }


def line(row):
    """Write a row of the table."""
    cells = (
        row["rate"],
        f"{row['mib']:g} MiB",
        row["set"],
        row["choice"],
        f"{row['ms']:.1f}",
        row["best"],
        f"{row['best_ms']:.1f}",
        f"{row['regret']:.1%}",
        f"{row['exact_ms']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def main(args):
    sizes, found = [float(size) for size in args.sizes.split(",")], []
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}", flush=True)
    with EmulatedCluster(args.hosts) as hosts, tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        for rate in args.rates.split(","):
            hosts.set_rate(None if rate == "none" else rate)
            link, choices, seconds = measured(
                hosts, sizes, args.times, args.timeout, cache
            )
            ours = list(rows(rate, sizes, choices, seconds))
            print("\n".join(map(line, ours)), flush=True)
            found.append({"rate": rate, "link": link, "rows": ours, "seconds": seconds})
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="100mbit,400mbit,1gbit,none", help="of tc")
    parser.add_argument("--sizes", default="0.1,4,64", help="MiB of a matrix")
    parser.add_argument(
        "--times", default="41,9,3", help="of each way, one number or one a size"
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=540, help="s a rate")
    parser.add_argument("--json", metavar="FILE", help="every reading, and the links")
    args = parser.parse_args()
    given = [int(each) for each in args.times.split(",")]
    args.times = given * len(args.sizes.split(",")) if len(given) == 1 else given
    return args


if __name__ == "__main__":
    main(arguments())
