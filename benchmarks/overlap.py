"""Whether sums of gradients hide behind the backward pass, on a link of 400 Mbit.

    python benchmarks/overlap.py
    python benchmarks/overlap.py --rate 100mbit --times 9 --threads

Needs Linux and root. Hosts compute the gradients of four dense layers, 4 MiB each, and
sum them by int8: in one bucket behind the pass, and in a bucket a layer, each as soon
as its gradient exists. Beside that, sums of other numbers in the same program, and as a
second program that is started at once. What a program takes longer than the pass alone
is exposed. A profiler's trace of one host says how long something moved, something
computed, and both at once. As many hosts as there are cores: where hosts share one, the
one that waits for its link leaves it to the others, and that looks like overlap.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from jaxdist.launch.testbed.hosts import EmulatedCluster

WORKER = Path(__file__).with_name("overlap_worker.py")


def main(args):
    # One thread a host is the testbed's; without its flag XLA takes all cores.
    env = {"XLA_FLAGS": ""} if args.threads else {}
    command = [sys.executable, str(WORKER), str(args.times)]
    with EmulatedCluster(args.hosts, args.rate) as hosts:
        done = hosts.run(command, timeout=args.timeout, env=env)
    ranks = [json.loads(each.stdout.splitlines()[-1]) for each in done]
    alone = None
    print("| program | ms | min-max | exposed ms |\n|---|---|---|---|")
    for name in ranks[0]["seconds"]:
        ms = [1e3 * max(each) for each in zip(*(r["seconds"][name] for r in ranks))]
        middle = statistics.median(ms)
        alone = alone or middle
        cells = name, f"{middle:.0f}", f"{min(ms):.0f}-{max(ms):.0f}"
        print(f"| {' | '.join(cells)} | {middle - alone:.0f} |")
    moving, working, both = ranks[0]["trace"]
    print(f"\ntrace of host 0: {moving:.0f} ms moving, {working:.0f} ms computing, ")
    print(f"{both:.1f} ms of both at once")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="400mbit", help="of tc")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--times", type=int, default=7, help="of each program")
    parser.add_argument("--threads", action="store_true", help="all cores a host")
    parser.add_argument("--timeout", type=float, default=500, help="s")
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
