"""One reduction over four hosts on shaped links: ways to sum, beside torch's DDP.

    python benchmarks/links.py --rates 100mbit,none --sizes 4
    python benchmarks/links.py --rates 100mbit,400mbit,1gbit,none --sizes 4,64 \
        --torch-python ~/torch/bin/python --json links.json

Needs Linux and root: each host is a network namespace with a link of its own, one
process and one thread. Every method sums one float32 matrix a host. Its readings are
taken in turn with those of the other methods, in `--rounds` processes one after
another, torch's between ours. A reading lasts from the moment that all hosts are ready
until the last of them has the sum; bytes are those that a host's interface counts.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.link_shaping import (
    FRAME_BYTES,
    TCP_SEGMENT_BYTES,
    parse_link_rate,
)

HERE = Path(__file__).parent
OURS, TORCH = HERE / "links_jax.py", HERE / "links_torch.py"
METHODS = (
    "exact,two-phase,bf16,int8,int4,sign,random_k,top_k,sparse,aligned,hierarchical,"
    "power1,power4"
)
TORCH_METHODS = "all_reduce,ddp,fp16,powersgd1,powersgd4"


@dataclass(frozen=True, kw_only=True)
class Row:
    mib: int
    rate: str
    method: str
    seconds: list[float]
    """One a reading: of the slowest host."""
    sent: list[int]
    """One a reading: the median of the hosts."""


def run(hosts: EmulatedCluster, command, given, timeout):
    """Run a worker on every host; {method: (seconds, bytes)} of its readings."""
    done = hosts.run([*command, json.dumps(given)], timeout=timeout)
    lines = [[x for x in r.stdout.splitlines() if x.startswith("{")] for r in done]
    readings = {}
    for ranks in zip(*(map(json.loads, each) for each in lines), strict=True):
        seconds = [max(each) for each in zip(*(r["seconds"] for r in ranks))]
        sent = [statistics.median(each) for each in zip(*(r["sent"] for r in ranks))]
        readings[ranks[0]["method"]] = (seconds, sent)
    return readings


def measure(hosts: EmulatedCluster, mib, rate, args):
    """Return the rows of one size at the rate that the links have now."""
    workers = [([sys.executable, str(OURS)], args.methods)]
    if args.torch_python:
        workers.append(([args.torch_python, str(TORCH)], args.torch_methods))
    total: dict[str, tuple[list[float], list[int]]] = {}
    for _ in range(args.rounds):
        for command, methods in workers:
            given = {"mib": mib, "methods": methods.split(","), "times": args.times}
            for name, readings in run(hosts, command, given, args.timeout).items():
                seconds, sent = total.setdefault(name, ([], []))
                seconds += readings[0]
                sent += readings[1]
    return [
        Row(mib=mib, rate=rate, method=name, seconds=seconds, sent=sent)
        for name, (seconds, sent) in total.items()
    ]


def ring_seconds(mib, rate, hosts):
    """What a ring needs for all the bytes: 2 (P-1)/P S / rate, headers included."""
    sent = 2 * (hosts - 1) / hosts * (mib << 20) * FRAME_BYTES / TCP_SEGMENT_BYTES
    return 8 * sent / parse_link_rate(rate)


def table(rows: list[Row], hosts):
    """Yield the lines of one size and rate."""
    exact = next((r for r in rows if r.method == "exact"), rows[0])
    base = statistics.median(exact.seconds)
    for row in rows:
        middle = statistics.median(row.seconds)
        limited = row.rate != "none"
        ring = ring_seconds(row.mib, row.rate, hosts) if limited else 0.0
        cells = (
            f"{row.mib} MiB",
            row.rate,
            row.method,
            f"{1e3 * middle:.1f}",
            f"{1e3 * min(row.seconds):.1f}-{1e3 * max(row.seconds):.1f}",
            f"{statistics.median(row.sent) / 1e6:.3f}",
            f"{middle / ring:.2f}" if ring else "",
            f"{base / middle:.2f}",
        )
        yield f"| {' | '.join(cells)} |"


def main(args):
    heads = (
        *("size", "rate", "method", "ms, median", "min-max", "MB sent a host"),
        *("x ring arithmetic", "exact / it"),
    )
    rows = []
    with EmulatedCluster(args.hosts) as hosts:
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
        for rate in args.rates.split(","):
            hosts.set_rate(None if rate == "none" else rate)
            for mib in map(int, args.sizes.split(",")):
                rows += (found := measure(hosts, mib, rate, args))
                print("\n".join(table(found, args.hosts)), flush=True)
    if not args.torch_python:
        print("\ntorch's rows are left out: --torch-python PYTHON runs them")
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="100mbit,none", help="of tc, or none")
    parser.add_argument("--sizes", default="4", help="MiB of the matrix on a host")
    parser.add_argument("--methods", default=METHODS, help="names of psum(via=...)")
    parser.add_argument("--torch-python", metavar="PYTHON", help="one that has torch")
    parser.add_argument("--torch-methods", default=TORCH_METHODS)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--times", type=int, default=3, help="readings a process")
    parser.add_argument("--rounds", type=int, default=2, help="processes, one by one")
    parser.add_argument("--timeout", type=float, default=900, help="s a process")
    parser.add_argument("--json", metavar="FILE", help="every reading")
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
