"""Is compression worth it? Seconds to 95 % on digits, four hosts, beside torch's DDP.

    python benchmarks/to_accuracy.py --rates 100mbit,none
    python benchmarks/to_accuracy.py --torch-python ~/torch/bin/python --json found.json

Needs Linux and root: each host is a network namespace with a link of its own, one
process and one thread. A network 64-1024-1024-10 (4.5 MB of gradient) on scikit-learn's
digits, SGD with momentum 0.9, 128 samples a step; weights and order of the samples are
the same in both stacks. Every method has the learning rate of `--grid` with which it
needs the fewest steps on a seed that is not reported. Seconds begin when all hosts are
ready: compiling, and loading torch, come before. Accuracy is looked at after every
second step, inside the seconds.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from jaxdist.launch.testbed.hosts import EmulatedCluster

HERE = Path(__file__).parent
OURS, TORCH = HERE / "to_accuracy_jax.py", HERE / "to_accuracy_torch.py"
METHODS = "exact,int8,sparse 1 %,power1,power4,power4 in 3 buckets"
TORCH_METHODS = "ddp,fp16,powersgd1,powersgd4"
UNREPORTED = 100


def run(hosts: EmulatedCluster, command, methods, lrs, seeds, args):
    """Train on all hosts; one row a training: of the slowest host."""
    until = {"target": args.target, "most": args.most, "least": args.least}
    given = {"methods": methods, "lrs": lrs, "seeds": seeds, **until}
    done = hosts.run([*command, json.dumps(given)], timeout=args.timeout)
    lines = [[x for x in r.stdout.splitlines() if x.startswith("{")] for r in done]
    for ranks in zip(*(map(json.loads, each) for each in lines), strict=True):
        seconds = [each["s"] for each in ranks]
        slowest = None if None in seconds else max(seconds)
        sent = {k: statistics.median(r[k] for r in ranks) for k in ("mb", "step_kb")}
        yield {**ranks[0], "s": slowest, **sent}


def tuned(rows):
    """Return the rate of each method that reached the target in the fewest steps."""
    steps: dict[str, dict[float, int]] = {}
    for row in rows:
        each = steps.setdefault(row["method"].removeprefix("torch "), {})
        # None where the target was not reached: such a rate comes last.
        each[row["lr"]] = row["steps"] or sys.maxsize
    return {method: [min(each, key=each.__getitem__)] for method, each in steps.items()}


def table(rows):
    """Yield a line a method."""
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        seconds = [row["s"] for row in own if row["s"] is not None]
        middle = {
            key: statistics.median(row[key] for row in own if row[key] is not None)
            for key in ("steps", "step_ms", "mb", "step_kb")
            if seconds
        }
        ends = f"{min(seconds):.2f}-{max(seconds):.2f}" if seconds else ""
        cells = (
            own[0]["rate"],
            method,
            str(own[0]["lr"]),
            f"{statistics.median(seconds):.2f}" if seconds else "",
            ends,
            *(f"{middle[key]:.1f}" if seconds else "" for key in middle),
            f"{100 * statistics.mean(row['accuracy'] for row in own):.2f}",
            f"{len(seconds)}/{len(own)}",
        )
        yield f"| {' | '.join(cells)} |"


def main(args):
    workers = [([sys.executable, str(OURS)], args.methods.split(","))]
    if args.torch_python:
        torch = [args.torch_python, str(TORCH)], args.torch_methods.split(",")
        workers.append(torch)
    grid = [float(rate) for rate in args.grid.split(",")]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    heads = (
        *("rate", "method", "lr", "s, median", "min-max", "steps", "ms a step"),
        *("MB sent a host", "kB a step", "accuracy, %", "reached"),
    )
    found = []
    with EmulatedCluster(args.hosts) as hosts:
        lrs = json.loads(args.lrs) if args.lrs else {}
        for command, methods in workers:
            new = [method for method in methods if method not in lrs]
            each = dict.fromkeys(new, grid)
            if new:
                # On free links: how many steps a rate needs does not depend on them.
                lrs |= tuned(run(hosts, command, new, each, [UNREPORTED], args))
        print("rates by steps to the target:", json.dumps(lrs), flush=True)
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
        for rate in args.rates.split(","):
            hosts.set_rate(None if rate == "none" else rate)
            for command, methods in workers:
                rows = run(hosts, command, methods, lrs, seeds, args)
                new = [{"rate": rate, **row} for row in rows]
                print("\n".join(table(new)), flush=True)
                found += new
    if not args.torch_python:
        print("\ntorch's rows are left out: --torch-python PYTHON runs them")
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="100mbit,none", help="of tc, or none")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--torch-python", metavar="PYTHON", help="one that has torch")
    parser.add_argument("--torch-methods", default=TORCH_METHODS)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--grid", default="0.02,0.05,0.1,0.2,0.4", help="rates tried")
    parser.add_argument("--lrs", help="rates known, as JSON: {method: [rate]}")
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--most", type=int, default=200, help="steps, then given up")
    parser.add_argument("--least", type=int, default=0, help="steps in any case")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=900, help="s a process")
    parser.add_argument("--json", metavar="FILE", help="every training")
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
