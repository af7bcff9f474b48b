"""Networks and lists made for each other: what a DLN saves, with honest controls.

    python benchmarks/network_design.py

64 MiB, 12.5 GB/s and 0.5 us a link. First the lists on networks of 1,024 ranks, equal
shares and shares by round trip; then sparse sums against dense ones by density; then
how long simulations take.
"""

import time

from jaxdist.network.bound import nic_bound
from jaxdist.network.lists import step_list
from jaxdist.network.mitigate import mitigate
from jaxdist.network.simulate import Network, simulate
from jaxdist.network.sparse import Entries
from jaxdist.network.sparse_runs import simulate_sparse
from jaxdist.network.topologies.registry import topology

RANKS, BYTES = 1024, 2.0**26
NETWORKS = (
    ("DLN, 1 host a switch", "dln", {}),
    ("DLN, 4 hosts a switch", "dln", {"per_switch": 4}),
    ("fat tree 2:1", "fat_tree", {"oversubscription": 2}),
    ("fat tree 1:1", "fat_tree", {}),
    ("torus 32x32", "torus", {}),
    ("star", "star", {}),
)
LISTS = (
    "halving_doubling_far",
    "halving_doubling",
    "striped_halving_doubling",
    "swing",
    "ring",
)
DENSITIES = (1 / 512, 1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4)


def made(name, ranks, settings, sharing="maxmin"):
    return Network(topology=topology(name, ranks, settings), sharing=sharing)


def lists():
    """Print the table of networks and lists, and the best way that is found."""
    print(f"| network | ports | {' | '.join(LISTS)} | best found |")
    for label, name, settings in NETWORKS:
        cells = []
        for each in LISTS:
            steps = step_list(each, RANKS)
            both = [
                1e3 * simulate(steps, BYTES, made(name, RANKS, settings, rule)).seconds
                for rule in ("maxmin", "rtt")
            ]
            same = abs(both[0] - both[1]) < 5e-4
            cells.append(f"{both[0]:.3f}" if same else f"{both[0]:.3f} / {both[1]:.3f}")
        on = made(name, RANKS, settings)
        best = mitigate(RANKS, BYTES, on)[0]
        cells.append(f"{1e3 * best.simulation.seconds:.3f} {best.algorithm.name}")
        print(f"| {label} | {on.topology.ports} | {' | '.join(cells)} |", flush=True)
    bound = nic_bound(made("star", RANKS, {}).topology, RANKS, BYTES)
    print(f"bound by one link a host: {1e3 * bound:.3f} ms")


def sparse():
    """Print hierarchical and flat sparse sums beside dense ones, by density."""
    settings = {"per_host": 8, "oversubscription": 2}
    on = made("fat_tree", 256, settings)
    flat, two = step_list("ring", 256), step_list("two_level_ring", 256, 8)
    dense = simulate(two, BYTES, on).seconds, simulate(flat, BYTES, on).seconds
    print("256 ranks in hosts of 8 with NVLink on a fat tree 2:1, ms")
    print(f"dense: two levels {1e3 * dense[0]:.3f}, flat {1e3 * dense[1]:.3f}")
    for density in DENSITIES:
        how = Entries(density=density)
        near = simulate_sparse(two, BYTES, on, how).seconds
        far = simulate_sparse(flat, BYTES, on, how).seconds
        print(
            f"density {density:.5f}: two levels {1e3 * near:.3f} "
            f"({near / dense[0] - 1:+.0%} to dense), flat {1e3 * far:.3f} "
            f"({near / far - 1:+.0%} of two levels to it)",
            flush=True,
        )


def speed():
    """Print how long simulations take, lists and networks made anew."""
    for name, network, ranks, settings in (
        ("ring", "star", 256, {}),
        ("halving_doubling_far", "fat_tree", 1024, {"oversubscription": 2}),
        ("two_level_ring", "fat_tree", 65536, {}),
        ("two_level_halving", "fat_tree", 65536, {"per_host": 8}),
        ("two_level_halving", "dragonfly", 65536, {}),
        ("two_level_ring", "torus", 65536, {"dims": "256x256"}),
    ):
        begun = time.perf_counter()
        on = made(network, ranks, settings)
        hosts = settings.get("per_host") if name.startswith("two") else None
        found = simulate(step_list(name, ranks, hosts), BYTES, on)
        took = time.perf_counter() - begun
        ms = 1e3 * found.seconds
        print(f"{name} on {on.topology.name}, {ranks:,}: {ms:.3f} ms in {took:.2f} s")


if __name__ == "__main__":
    lists()
    sparse()
    speed()
