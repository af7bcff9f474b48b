"""The simulator beside SimGrid: the same lists, the same ways, other code.

    python benchmarks/network_simgrid.py            # cases against SimGrid, times
    python benchmarks/network_simgrid.py --lazy     # SimGrid's own way of updating
    python benchmarks/network_simgrid.py --write F  # cases and times, as JSON

SimGrid 3.32 is taken from Debian 12's packages without being installed, by any
CPython 3.11 (docs/network.md has the commands); SIMGRID is the folder. The list is
replayed by one actor, step by step, each step's messages awaited together. Links are
one for each direction, ways are ours, given one by one. Rates are updated for all flows
at each event (network/optim:Full); updated lazily, which is its default, SimGrid is off
by a link's latency where a message begins in the instant in which others end.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

# CM02 has no correction factors, and shares links by round-trip time. A TCP-gamma of 0
# is no limit by a window; without crosstraffic no acknowledgements come back.
CONFIG = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/crosstraffic:0",
    "maxmin/precision:1e-9",
    "surf/precision:1e-12",
)
FULL = "network/optim:Full"
LISTS = (
    "ring",
    "recursive_doubling",
    "halving_doubling",
    "halving_doubling_far",
    "striped_halving_doubling",
    "swing",
)
NETWORKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("star", {}),
    ("fat_tree", {"oversubscription": 2}),
    ("fat_tree", {"routing": "ecmp", "uplink_bandwidth": "40GB/s"}),
    ("torus", {}),
    ("dln", {"per_switch": 4}),
    ("dragonfly", {"global_latency": "2.3us", "global_bandwidth": "20GB/s"}),
    ("fat_tree", {"per_host": 4, "oversubscription": 2, "nvlink_latency": "0.3us"}),
)
RANKS = (16, 64)
BYTES = 2.0**26

SIDE = """
import json, sys, time
import simgrid as sg
from simgrid import Actor, Comm, Engine, LinkInRoute
case = json.load(open(sys.argv[1]))
config = ["--cfg=" + word for word in case["config"]]
engine = Engine(["x", "--log=root.thres:critical", *config])
zone = sg.NetZone.create_full_zone("z")
hosts = [zone.create_host(f"h{i}", 1e9) for i in range(case["ranks"])]
links = [zone.create_link(f"l{i}", c) for i, c in enumerate(case["capacity"])]
for link, late in zip(links, case["latency"]):
    link.set_latency(late).seal()
for a, b, way in case["ways"]:
    route = [LinkInRoute(links[k]) for k in way]
    zone.add_route(hosts[a].netpoint, hosts[b].netpoint, None, None, route, False)
zone.seal()

def driver():
    for step in case["steps"]:
        Comm.wait_all([Comm.sendto_async(hosts[a], hosts[b], s) for a, b, s in step])

Actor.create("driver", hosts[0], driver)
begun = time.perf_counter()
engine.run()
print(json.dumps([Engine.clock, time.perf_counter() - begun]))
"""


def case_of(name, network, settings, ranks, config=(*CONFIG, FULL)):
    """Lay a case out for another process: links, ways, and whole bytes."""
    import numpy as np

    from jaxdist.network.schedules_by_name import schedule_by_name
    from jaxdist.network.topologies.registry import make_topology

    made, steps = make_topology(network, ranks, settings), schedule_by_name(name, ranks)
    each = round(BYTES / steps.chunks)  # SimGrid takes whole bytes
    moves = [
        [(t.source, t.target, each * t.count) for t in step.transfers]
        for step in steps.steps
    ]
    pairs = sorted({(a, b) for step in moves for a, b, _ in step})
    routes = made.routes(*np.array(pairs).T)
    ends = np.cumsum(np.bincount(routes.flow))[:-1]
    ways = [
        (a, b, way.tolist()) for (a, b), way in zip(pairs, np.split(routes.link, ends))
    ]
    return {
        "name": name,
        "network": network,
        "settings": settings,
        "ranks": ranks,
        "chunks": steps.chunks,
        "chunk": each,
        "config": config,
        "capacity": made.capacity.tolist(),
        "latency": made.latency.tolist(),
        "ways": ways,
        "steps": moves,
    }


def of_simgrid(case, folder):
    """Return SimGrid's seconds, and the seconds that it took."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(case, file)
        file.flush()
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{folder}/usr/lib/x86_64-linux-gnu",
            "PYTHONPATH": f"{folder}/usr/lib/python3/dist-packages",
        }
        words = [sys.executable, "-c", SIDE, file.name]
        done = subprocess.run(words, env=environment, check=True, capture_output=True)
    return json.loads(done.stdout.splitlines()[-1])


def ours(case):
    """Return our seconds, and the seconds that it took."""
    from jaxdist.network.schedules_by_name import schedule_by_name
    from jaxdist.network.simulate import NetworkModel, simulate_collective
    from jaxdist.network.topologies.registry import make_topology

    begun = time.perf_counter()
    made = make_topology(case["network"], case["ranks"], case["settings"])
    steps = schedule_by_name(case["name"], case["ranks"])
    # As CM02 shares links.
    network = NetworkModel(topology=made, sharing="rtt")
    found = simulate_collective(steps, float(case["chunk"] * steps.chunks), network)
    return found.seconds, time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lazy", action="store_true", help="SimGrid's default updates")
    parser.add_argument("--write", help="write the cases with SimGrid's times")
    args = parser.parse_args()
    folder = os.environ["SIMGRID"]
    config = CONFIG if args.lazy else (*CONFIG, FULL)
    rows, off = [], []
    for network, settings in NETWORKS:
        for name in LISTS:
            for ranks in RANKS:
                case = case_of(name, network, settings, ranks, config)
                theirs, _ = of_simgrid(case, folder)
                mine, _ = ours(case)
                off.append(abs(mine / theirs - 1))
                kept = ("name", "network", "settings", "ranks", "chunk")
                rows.append({key: case[key] for key in kept} | {"seconds": theirs})
                print(f"{name:26} {network:10} {ranks:4} {theirs:.9f} {off[-1]:.1e}")
    worst, middle = max(off), statistics.median(off)
    print(f"{len(off)} cases: worst {worst:.1e}, median {middle:.1e}")
    case = case_of("ring", "star", {}, 256, CONFIG)  # lazily it is faster
    theirs = [of_simgrid(case, folder)[1] for _ in range(3)]
    mine = [ours(case)[1] for _ in range(3)]
    slow, fast = statistics.median(theirs), statistics.median(mine)
    print(f"ring on 256: SimGrid {slow:.2f} s, here {fast:.4f} s: {slow / fast:.0f}x")
    if args.write:
        with open(args.write, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
