"""Zero bubble H1 beside other schedules, in stages that wait where others compute.

    python benchmarks/zero_bubble.py
    python benchmarks/zero_bubble.py --ms 20 --micro 4 --rounds 9

Needs Linux and root: four hosts, each a network namespace with a link of its own and
one process. A stage has two dense layers; each of the three products of a layer (the
forward pass, the gradient of its input, that of its weights) ends with a wait of so
many milliseconds, as if an accelerator computed it: four stages that compute would
share the cores of one machine, and idle time of one would be time for the others. Steps
of the schedules take turns, so ratios are of neighbours in time. Beside them what the
ticks of each schedule add up to.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from record import add_record_option, row, write_result

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.oracle.compute_times import MicrobatchTime
from jaxdist.oracle.schedule_times import schedule_time

WORKER = Path(__file__).with_name("zero_bubble_worker.py")
SCHEDULES = ("1f1b", "eager-1f1b", "zb-h1")
HOSTS, BLOCKS = 4, 8


def ticks_ms(schedule, ms, micro):
    """Return what the ticks of a schedule add up to, without exchanges."""
    plan = Plan(mesh=MeshShape(pipe=HOSTS), pipe=PipelineConfig(schedule=schedule))
    one = BLOCKS // HOSTS * ms
    stage = MicrobatchTime(forward=one, backward=2 * one, weights=one)
    # The first layer of all has no input whose gradient anybody needs.
    first = MicrobatchTime(forward=one, backward=2 * one - ms, weights=one)
    return schedule_time(plan, micro, [first, *[stage] * (HOSTS - 1)]).seconds


def main(args):
    given = {"schedules": SCHEDULES, "rounds": args.rounds, "blocks": BLOCKS}
    given |= {"width": args.width, "ms": args.ms, "micro": args.micro}
    with EmulatedCluster(HOSTS, None if args.rate == "none" else args.rate) as hosts:
        command = [sys.executable, str(WORKER), json.dumps(given)]
        done = hosts.run(command, timeout=args.timeout)
    ranks = [json.loads(each.stdout.splitlines()[-1]) for each in done]
    found = {
        name: [1e3 * max(each) for each in zip(*(rank[name] for rank in ranks))]
        for name in SCHEDULES
    }
    rows, base = [], found["1f1b"]
    print("| schedule | ms | ticks alone, ms | over 1f1b | min-max | ticks alone |")
    print("|---|---|---|---|---|---|")
    alone = {name: ticks_ms(name, args.ms, args.micro) for name in SCHEDULES}
    for name, taken in found.items():
        ratios = [a / b for a, b in zip(taken, base)]
        middle, ratio = statistics.median(taken), statistics.median(ratios)
        cells = (
            *(f"{middle:.0f}", f"{alone[name]:.0f}", f"{ratio:.3f}"),
            f"{min(ratios):.3f}-{max(ratios):.3f}",
            f"{alone[name] / alone['1f1b']:.3f}",
        )
        print(f"| {name} | {' | '.join(cells)} |")
        rows.append(row(name, ratio, "", figure="over 1F1B", readings=ratios))
        rows.append(row(name, middle, "ms", figure="a step", readings=taken))
        rows.append(row(name, alone[name], "ms", figure="its ticks alone"))
    if args.record:
        write_result("zero_bubble", rows)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="1gbit", help="of tc, or none")
    parser.add_argument("--ms", type=float, default=20, help="of a product")
    parser.add_argument("--micro", type=int, default=8, help="microbatches")
    parser.add_argument("--width", type=int, default=64, help="of a layer")
    parser.add_argument("--rounds", type=int, default=9, help="of a step each")
    parser.add_argument("--timeout", type=float, default=500, help="s")
    add_record_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
