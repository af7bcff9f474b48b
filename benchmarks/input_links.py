"""An epoch behind a slow origin: all samples from it, or a part exchanged by hosts.

    python benchmarks/input_links.py [--rate 100mbit] [--q 0.1] [--epochs 3]

Needs Linux and root: one host serves the data set, four others train, each a network
namespace with a link of its own. A step waits `--compute` seconds in place of a model,
while the next batches are read ahead. Rows are epochs behind the first: `global` draws
from all samples and reads them of the origin, `local` and `partial` keep theirs in
memory, and `partial` exchanges some, which the hosts bring each other. Bytes are what
the training hosts' interfaces sent and received in all epochs, beside the bytes of the
samples that leave partitions for another host.
"""

import argparse
import json
import queue
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np

from jaxdist.core.plan.shuffle import ShuffleConfig
from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder, order_from_config
from jaxdist.input.local_shuffle.source import (
    LocalShuffleSource,
    make_local_shuffle_source,
)
from jaxdist.input.local_shuffle.store import ArrayStore
from jaxdist.input.sources import Arrays, SampleIds
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.link_shaping import parse_counters

HOSTS, BATCH, PARTITIONS, AHEAD = 4, 32, 32, 2
ADDRESS, TOKEN = "10.77.0.{}:4100", "benchmark"


class Remote:
    """Samples that a server has; is a `Source`."""

    fingerprint = "remote"

    def __init__(self, address: str, like: Arrays, samples: int):
        self.peers = PeerClient(
            addresses=[address], example=like, token=TOKEN, deadline_s=60.0
        )
        self.like, self.samples = like, samples

    def __len__(self):
        return self.samples

    def get(self, ids: SampleIds) -> Arrays:
        if not ids.any():  # what a sample looks like needs no message
            return {k: np.repeat(x, len(ids), 0) for k, x in self.like.items()}
        found = self.peers.fetch(ids.astype(np.int64), np.zeros(len(ids), np.int64))
        return {k: np.concatenate([found[int(i)][k] for i in ids]) for k in self.like}


def data(given):
    shape = (given["samples"], given["bytes"] // 4)
    return np.random.default_rng(0).random(shape, np.float32)


def serve(given):
    """Be the origin until every host has said that it is done."""
    x = data(given)
    store = ArrayStore({"x": x[:1]}, len(x))
    store.put(np.arange(len(x)), {"x": x})
    with PeerServer(store, ADDRESS.format(1), TOKEN):
        time.sleep(given["lasts"])


def ahead(steps, read):
    """Yield batches that a thread reads up to `AHEAD` steps early."""
    ready: queue.Queue[Arrays] = queue.Queue(AHEAD)

    def work():
        for step in steps:
            ready.put(read(step))

    threading.Thread(target=work, daemon=True).start()
    for _ in steps:
        yield ready.get()


def host(given, rank):
    """Train one host's part of some epochs; say how long each took."""
    own = rank - 1
    like = {"x": np.zeros((1, given["bytes"] // 4), np.float32)}
    wait_for(ADDRESS.format(1))
    source = Remote(ADDRESS.format(1), like, given["samples"])
    q = given["q"] if given["way"] == "partial" else 0.0
    asked = ShuffleConfig(
        exchange_fraction=None if given["way"] == "global" else q, partitions=PARTITIONS
    )
    order = order_from_config(asked, num_samples=given["samples"], batch=BATCH, seed=0)
    rows = np.arange(own * BATCH // HOSTS, (own + 1) * BATCH // HOSTS)
    reader: Remote | LocalShuffleSource = source
    server = None
    if given["way"] != "global":
        reader = make_local_shuffle_source(
            source, order, host=own, num_hosts=HOSTS, folder=None
        )
        reader.retention_steps = AHEAD + 2
        server = PeerServer(reader.store, ADDRESS.format(rank + 1), TOKEN)
        where = [ADDRESS.format(other + 2) for other in range(HOSTS)]
        reader.fetcher = PeerClient(addresses=where, example=like, token=TOKEN)
        reader.fill_store(0)

    def read(step):
        batch = reader.get(order.ids(step, rows).astype(np.int64))
        if isinstance(reader, LocalShuffleSource):
            reader.exchange(step)
        return batch

    seconds, moved, per_epoch = [], [], order.steps(1)
    wait_until(given["begin"])
    batches = ahead(range(given["epochs"] * per_epoch), read)
    for _ in range(given["epochs"]):
        before, start = traffic(), time.perf_counter()
        for _ in range(per_epoch):
            next(batches)
            time.sleep(given["compute"])
        seconds.append(time.perf_counter() - start)
        moved.append(traffic() - before)
    counts = vars(reader.counts) if isinstance(reader, LocalShuffleSource) else {}
    print(json.dumps({"seconds": seconds, "moved": moved, "counts": counts}))
    time.sleep(1)
    if server is not None:
        server.shutdown()


def traffic():
    """Return the bytes that this host's interface has sent and received."""
    seen = parse_counters(Path("/proc/net/dev").read_text(), "eth0")
    return seen.tx_bytes + seen.rx_bytes


def wait_for(address):
    """Wait until somebody listens there."""
    where, port = address.split(":")
    while True:
        try:
            socket.create_connection((where, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.1)


def wait_until(moment):
    """Begin at the same time on all hosts."""
    # Hosts are namespaces of one machine, so they have one clock.
    time.sleep(max(moment - time.time(), 0))


def measure(hosts: EmulatedCluster, args, way):
    """Run one way; return seconds of the epochs behind the first, and bytes of each."""
    lasts = args.fill + args.epochs * args.slowest
    given = {**vars(args), "way": way, "begin": time.time() + args.fill, "lasts": lasts}
    words = [sys.executable, __file__, "--child", json.dumps(given)]
    found = hosts.run(*([*words, str(r)] for r in range(HOSTS + 1)), timeout=300)
    lines = [one.stdout.splitlines()[-1] for one in found[1:]]
    read = [json.loads(line) for line in lines]
    seconds = [max(each) for each in zip(*(r["seconds"] for r in read))]
    moved = [sum(each) for each in zip(*(r["moved"] for r in read))]
    return seconds[1:], sum(moved) / len(moved), read[0]["counts"]


def formula(args, way):
    """Return the bytes that an epoch moves into and out of the training hosts."""
    if way == "local":
        return 0.0
    if way == "global":
        return args.samples * args.bytes
    asked = ShuffleConfig(exchange_fraction=args.q, partitions=PARTITIONS)
    order = order_from_config(asked, num_samples=args.samples, batch=BATCH, seed=0)
    assert isinstance(order, PartialShuffleOrder)
    each = PARTITIONS // HOSTS
    hosts = [range(h * each, (h + 1) * each) for h in range(HOSTS)]
    steps = range(args.epochs * order.steps(1))
    moved = sum(len(order.step_exchange(s, own)[1]) for s in steps for own in hosts)
    # What leaves one training host comes to another: both interfaces count it.
    return 2 * moved * args.bytes / args.epochs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--q", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--bytes", type=int, default=24576, help="of a sample")
    parser.add_argument("--compute", type=float, default=0.0125, help="s a step")
    parser.add_argument("--fill", type=float, default=15, help="s to fill the stores")
    parser.add_argument("--slowest", type=float, default=8, help="s an epoch at most")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        given, rank = json.loads(args.child[0]), int(args.child[1])
        serve(given) if rank == 0 else host(given, rank)
        return
    size = args.samples * args.bytes
    print(f"{args.samples:,} samples of {args.bytes:,} B, {size / 1e6:.1f} MB")
    with EmulatedCluster(HOSTS + 1, args.rate) as hosts:
        base = None
        for way in ("local", "partial", "global"):
            seconds, moved, counts = measure(hosts, args, way)
            middle = statistics.median(seconds)
            base = base or middle
            said = formula(args, way)
            ratio = f"{moved / said:.3f}" if said else ""
            print(
                f"{way:8} {middle:6.2f} s an epoch ({min(seconds):.2f} to "
                f"{max(seconds):.2f})  {middle / base:5.2f} x local  "
                f"{moved / 1e6:7.2f} MB  {ratio} of the formula  "
                f"{counts}",
                flush=True,
            )


if __name__ == "__main__":
    main()
