"""Hosts in a box: that their links hold the rate, and that nothing of them is left.

    python benchmarks/testbed.py psum
    python benchmarks/testbed.py cycles --times 100

Needs Linux and root. `psum` adds up 4 MB a host over two hosts at 200 Mbit a second:
each of them sends 4 MB, so 0.160 s by arithmetic, without headers. `cycles` makes a
testbed of four hosts and removes it, again and again, and looks for namespaces, links,
queues and files that were not there before the first.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from jaxdist.launch.testbed import manager
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.link_shaping import parse_link_rate
from jaxdist.launch.testbed.namespaces import NETNS_FOLDER

RATE = "200mbit"
FOLDERS = (NETNS_FOLDER, Path("/run/netns"))
NUMBERS = 1_000_000
"""float32 numbers of a host: 4 MB."""
WORKER = f"""
import json, sys
import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec
from jaxdist.launch.testbed.traffic_counter import TrafficCounter, shard_local_arrays
from jaxdist.launch.distributed import initialize

initialize()
mesh = jax.make_mesh((jax.process_count(),), ("data",), (AxisType.Auto,))
along = PartitionSpec("data")
add = jax.jit(
    jax.shard_map(
        lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=along, out_specs=along
    )
)
x = shard_local_arrays(mesh, lambda rank: np.full({NUMBERS}, rank + 1.0, np.float32))
assert float(add(x).addressable_shards[0].data[0]) == 3
gauge = TrafficCounter(mesh)
readings = [gauge.measure(lambda: add(x)) for _ in range(int(sys.argv[1]))]
print(json.dumps([(r.seconds, r.tx_bytes) for r in readings]))
"""


def psum(args):
    """Time one sum over two hosts, and read what they sent."""
    with EmulatedCluster(2, RATE, disable_gso=args.frames) as hosts:
        command = (sys.executable, "-c", WORKER, str(args.times))
        done = hosts.run(command, timeout=300)
    ranks = [json.loads(each.stdout.splitlines()[-1]) for each in done]
    seconds = [max(s for s, _ in each) for each in zip(*ranks)]
    sent = statistics.median(b for each in ranks for _, b in each)
    sum_ = 8 * 4 * NUMBERS / parse_link_rate(RATE)
    middle = statistics.median(seconds)
    print(f"{4 * NUMBERS:,} bytes a host over {RATE}: {sum_:.3f} s by arithmetic")
    print(f"  measured   {middle:.3f} s ({min(seconds):.3f} to {max(seconds):.3f})")
    print(f"  ratio      {middle / sum_:.3f}")
    print(f"  sent       {sent / 1e6:.3f} MB a host, headers included")


def cycles(args):
    """Make and remove a testbed again and again.

    Raises:
        SystemExit: something is left.
    """
    manager.remove_testbed()
    before, start = there(), time.monotonic()
    for _ in range(args.times):
        manager.create_testbed(4, RATE)
        manager.remove_testbed()
    seconds = (time.monotonic() - start) / args.times
    print(f"{args.times} testbeds of 4 hosts, {seconds:.2f} s each")
    if (after := there()) != before:
        raise SystemExit(f"left: {after}, before: {before}")
    print("no namespace, link, queue or file is left")


def there():
    """All of a testbed, as this machine lists it; other hosts may come and go."""
    words = (("ip", "-o", "link"), ("tc", "qdisc"))
    said = [
        subprocess.run(each, capture_output=True, text=True, check=True).stdout
        for each in words
    ]
    files = [p for folder in FOLDERS for p in folder.rglob("jaxdist-testbed*")]
    return manager.netns_names(), said, files


def main():
    """Do one of both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("psum", "cycles"))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--frames", action="store_true", help="count every header")
    args = parser.parse_args()
    {"psum": psum, "cycles": cycles}[args.what](args)


if __name__ == "__main__":
    main()
