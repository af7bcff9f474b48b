"""Networks and lists made for each other: what a DLN saves, with honest controls.

    python benchmarks/network_design.py

64 MiB, 12.5 GB/s and 0.5 us a link. First the lists on networks of 1,024 ranks, equal
shares and shares by round trip; then sparse sums against dense ones by density; then
how long simulations take.
"""

import argparse
import time
from typing import Any

from record import add_record_option, row, write_result

from jaxdist.network.contention_search import minimize_contention
from jaxdist.network.lower_bound import bandwidth_lower_bound
from jaxdist.network.platforms.read import find_topology
from jaxdist.network.protocol_overheads import protocol_overheads
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.sparse import SparseEncoding, simulate_sparse
from jaxdist.network.topologies.registry import make_topology

RANKS, BYTES = 1024, 2.0**26
NETWORKS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("DLN, 1 host a switch", "dln", {}),
    ("DLN, 4 hosts a switch", "dln", {"per_switch": 4}),
    ("fat tree 2:1", "fat_tree", {"oversubscription": 2}),
    ("fat tree 1:1", "fat_tree", {}),
    ("torus 32x32", "torus", {}),
    ("star", "star", {}),
)
LISTS = {
    "halving_doubling_far": "farthest first (textbook)",
    "halving_doubling": "nearest first",
    "striped_halving_doubling": "striped",
    "swing": "Swing",
    "ring": "ring",
}
"""What results call the lists."""
DENSITIES = tuple(1 / part for part in (512, 256, 128, 64, 32, 16, 8, 4))


def made(name, ranks, settings, sharing="maxmin") -> NetworkModel:
    return NetworkModel(topology=make_topology(name, ranks, settings), sharing=sharing)


def lists():
    """Print networks and lists, and the best way that is found; return the rows."""
    rows = []
    print(f"| network | ports | {' | '.join(LISTS)} | best found |")
    for label, name, settings in NETWORKS:
        cells = []
        for each, figure in LISTS.items():
            steps = schedule_by_name(each, RANKS)
            both = [
                1e3
                * simulate_collective(
                    steps, BYTES, made(name, RANKS, settings, rule)
                ).seconds
                for rule in ("maxmin", "rtt")
            ]
            # Alike in the digits that are printed.
            same = abs(both[0] - both[1]) < 5e-4
            rows.append(row(label, both[0], "ms", figure=figure))
            if not same:
                by_trip = f"{figure}, shares by round trip"
                rows.append(row(label, both[1], "ms", figure=by_trip))
            cells.append(f"{both[0]:.3f}" if same else f"{both[0]:.3f} / {both[1]:.3f}")
        on = made(name, RANKS, settings)
        best = minimize_contention(RANKS, BYTES, on)[0]
        cells.append(f"{1e3 * best.simulation.seconds:.3f} {best.schedule.name}")
        rows += [
            row(label, on.topology.ports, "", figure="ports"),
            row(label, 1e3 * best.simulation.seconds, "ms", figure="best found"),
            row(label, best.schedule.name, "", figure="by"),
        ]
        print(f"| {label} | {on.topology.ports} | {' | '.join(cells)} |", flush=True)
    bound = bandwidth_lower_bound(made("star", RANKS, {}).topology, RANKS, BYTES)
    print(f"bound by one link a host: {1e3 * bound:.3f} ms")
    return rows


def sparse():
    """Print sparse sums beside dense ones, by density; return the rows."""
    rows = []
    abci, smpi = find_topology("abci", 32, {}), protocol_overheads("smpi")
    on = NetworkModel(topology=abci, overheads=smpi, sharing="rtt")
    flat, two = schedule_by_name("ring", 32), schedule_by_name("two_level_ring", 32, 4)
    dense = simulate_collective(two, 2 * BYTES, on).seconds
    print(f"ABCI, 32 ranks, 128 MiB: dense in two levels {1e3 * dense:.3f} ms")
    for density in DENSITIES:
        how = SparseEncoding(density=density)
        near = simulate_sparse(two, 2 * BYTES, on, how).seconds
        far = simulate_sparse(flat, 2 * BYTES, on, how).seconds
        print(
            f"density 1/{1 / density:g}: two levels {1e3 * near:.3f} ms "
            f"({near / dense - 1:+.1%} to dense, {near / far - 1:+.1%} to flat sparse)",
            flush=True,
        )
        case, flat_part = f"1/{1 / density:g}", 100 * (near / far - 1)
        rows += [
            row(case, 1e3 * near, "ms", figure="two levels"),
            row(case, 100 * (near / dense - 1), "%", figure="to dense in two levels"),
            row(case, flat_part, "%", figure="to the flat sparse ring"),
        ]
    return rows


def speed():
    """Print how long simulations take, lists and networks anew; return the rows."""
    rows = []
    cases: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
        ("ring", "star", 256, {}),
        ("halving_doubling_far", "fat_tree", 1024, {"oversubscription": 2}),
        ("two_level_ring", "fat_tree", 65536, {}),
        ("two_level_halving", "fat_tree", 65536, {"per_host": 8}),
        ("two_level_ring", "torus", 65536, {"dims": "256x256"}),
    )
    for name, network, ranks, settings in cases:
        begun, worked = time.perf_counter(), time.process_time()
        on = made(network, ranks, settings)
        hosts = settings.get("per_host") if name.startswith("two") else None
        found = simulate_collective(schedule_by_name(name, ranks, hosts), BYTES, on)
        took, work = time.perf_counter() - begun, time.process_time() - worked
        ms, where = 1e3 * found.seconds, f"{on.topology.name}, {ranks:,} ranks"
        print(f"{name} on {where}: {ms:.3f} ms in {took:.1f} s, {work:.1f} s of CPU")
        rows.append(row(f"{name} on {where}", work, "s"))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_record_option(parser)
    args = parser.parse_args()
    parts = {"network_design": lists, "sparse_hosts": sparse, "network_scale": speed}
    for result, part in parts.items():
        made_rows = part()
        if args.record:
            write_result(result, made_rows)
