"""PipeDream beside data parallelism: accuracy against seconds on slow links.

    python benchmarks/flow_links.py --rate 100mbit

Needs Linux and root: four hosts, each a network namespace with a link of its own, one
process and one thread. Digits, minibatches of 128, weights and order of the samples the
same. `--network vgg`: three convolutions and four dense layers, 128-1024-1024-1024-10
(9 MB of gradient, all but 30 kB of it in the dense layers, as in VGG); `dense`: the
dense layers alone, 64-1024-1024-1024-10. Every way is trained at several rates. Seconds
are those of training steps; accuracy is looked at between them.
"""

import argparse
import json
import sys
from pathlib import Path

from jaxdist.launch.testbed.hosts import EmulatedCluster

WORKER = Path(__file__).with_name("flow_links_worker.py")
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "vgg": {
        "data parallel": (0.01, 0.02),
        "1f1b": (0.01, 0.02),
        "pipedream": (0.005, 0.01),
        "pipedream 3-1": (0.01, 0.02),
    },
    "dense": {
        "data parallel": (0.02, 0.05, 0.1),
        "1f1b": (0.02, 0.05, 0.1),
        "pipedream": (0.01, 0.02, 0.04),
    },
}
"""Learning rates of each way. `pipedream 3-1` cuts before the first dense layer, which
in `dense` is the first block."""


def curves(hosts: EmulatedCluster, way, args):
    """Yield a row for each rate: [seconds, accuracy] after every 12 minibatches."""
    given = {"network": args.network, "way": way, "rates": GRIDS[args.network][way]}
    given |= {"rounds": args.rounds, "target": args.target}
    command = [sys.executable, str(WORKER), json.dumps(given)]
    done = hosts.run(command, timeout=args.timeout)
    lines = [x for x in done[0].stdout.splitlines() if x.startswith("{")]
    yield from map(json.loads, lines)


def reached(curve, target):
    """Return the seconds until an accuracy, or None."""
    return next((s for s, accuracy in curve if accuracy >= target), None)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="100mbit", help="of tc")
    parser.add_argument("--network", default="vgg", choices=GRIDS)
    parser.add_argument("--ways", help="with commas; none is all of the network")
    parser.add_argument("--rounds", type=int, default=16, help="of 12 minibatches")
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--timeout", type=float, default=900, help="s a way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every curve")
    args = parser.parse_args()
    ways = args.ways.split(",") if args.ways else list(GRIDS[args.network])
    if unknown := set(ways) - set(GRIDS[args.network]):
        parser.error(f"{args.network} has no way {', '.join(sorted(unknown))}")
    found = []
    print(
        "| way | rate | s to the target | s a minibatch | MB sent a minibatch | best |"
    )
    print("|---|---|---|---|---|---|")
    with EmulatedCluster(4) as hosts:
        hosts.set_rate(args.rate)
        for way in ways:
            rows = list(curves(hosts, way, args))
            found += rows
            for row in rows:
                end = reached(row["curve"], args.target)
                cells = (
                    way,
                    str(row["rate"]),
                    "never" if end is None else f"{end:.1f}",
                    f"{row['minibatch_s']:.3f}",
                    f"{row['minibatch_mb']:.2f}",
                    f"{100 * max(a for _, a in row['curve']):.1f} %",
                )
                print(f"| {' | '.join(cells)} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
