"""Faults of peers and disks, on four processes: what training gets, and how late.

    python benchmarks/input_faults.py [--faults killed,stalled] [--json]

Four hosts keep their samples on disk and bring each other what moves, over loopback. A
step waits `--compute` seconds in place of a model, while the next batches are read;
hosts are at most a step apart, as those of one program are, but nobody waits for a host
that is gone. Everything that is read is held against the data set; `late` is the mean
epoch of the hosts that were never gone, beside that without faults.

    none        nothing happens
    killed      host 1 is killed in the second epoch, and started again in the third
    stalled     host 1 is stopped for as long, and goes on
    flipped     one in 1,000 samples that a host sends has a bit turned
    duplicates  every answer comes twice, with a sample that nobody asked for
    full        host 1 may write 1 MiB to a file of its disk
"""

import argparse
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa

from jaxdist.core.plan.shuffle import Partial
from jaxdist.input.batch_assembly import Batch, TrainBatchAssembler
from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder, order_from_config
from jaxdist.input.local_shuffle.source import (
    AsyncExchanger,
    make_local_shuffle_source,
    max_retention_steps,
)

HOSTS, VICTIM, PARTITIONS, AHEAD = 4, 1, 16, 2
FAULTS = ("none", "killed", "stalled", "flipped", "duplicates", "full")
GONE = ("killed", "stalled")
FREE = np.iinfo(np.int64).max


class Origin:
    """Samples in a file that all hosts read; the first number of each is its id."""

    fingerprint = "faults"

    def __init__(self, given):
        self.x = np.load(Path(given["folder"]) / "x.npy", mmap_mode="r")

    def __len__(self):
        return len(self.x)

    def get(self, ids):
        return {"x": self.x[ids]}


class Flipping(PeerServer):
    """Turns a bit of every 1,000th sample that it sends."""

    seen = flipped = 0

    def sample_table(self, ids):
        table = super().sample_table(ids)
        rows = table.column("key x").to_pylist()
        for place, row in enumerate(rows):
            self.seen += 1
            if self.seen % 1000 == 100:
                rows[place] = bytes([row[0] ^ 4]) + row[1:]
                self.flipped += 1
        return table.set_column(2, "key x", pa.array(rows, pa.binary()))


class Doubling(PeerServer):
    """Sends everything twice, and a sample that nobody asked for."""

    def sample_table(self, ids):
        table, other = super().sample_table(ids), self._store.ids()[:1]
        return pa.concat_tables([table, table, super().sample_table(other)])


SERVERS = {"flipped": Flipping, "duplicates": Doubling}


def order_for(given) -> PartialShuffleOrder:
    asked = Partial(exchange_fraction=given["q"], partitions=PARTITIONS)
    order = order_from_config(
        asked, num_samples=given["samples"], batch=given["batch"], seed=0
    )
    assert isinstance(order, PartialShuffleOrder)
    return order


def clock(given):
    """The step of each host, seen by all of them; a host that is gone is at the end."""
    path = Path(given["folder"]) / "clock"
    return np.memmap(path, np.int64, "r+", shape=(HOSTS, 2))


def told(given, host, address=""):
    """Write this host's address, or wait for another's."""
    path = Path(given["folder"]) / f"address-{host}"
    if address:
        path.with_suffix(".new").write_text(address)
        path.with_suffix(".new").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return path.read_text()


def again(given, host):
    """Return where this host listened before it was killed, or any port."""
    path = Path(given["folder"]) / f"address-{host}"
    return path.read_text() if path.exists() else "127.0.0.1:0"


def ahead(steps, read):
    """Yield batches that a thread reads up to `AHEAD` steps early."""
    ready: queue.Queue[Batch] = queue.Queue(AHEAD)

    def work():
        for step in steps:
            ready.put(read(step))

    threading.Thread(target=work, daemon=True).start()
    for step in steps:
        yield step, ready.get()


def host(given, rank, start: int):
    """Train one host's part; print what it read, and when each step ended."""
    if given["fault"] == "full" and rank == VICTIM:
        # A write past it fails with EFBIG, since Python ignores SIGXFSZ.
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        warnings.simplefilter("ignore")
    order, origin = order_for(given), Origin(given)
    folder = Path(given["folder"])
    own = make_local_shuffle_source(
        origin, order, host=rank, num_hosts=HOSTS, folder=folder
    )
    own.fill_store(start)
    kind = SERVERS.get(given["fault"], PeerServer)
    server = kind(own.store, again(given, rank))
    told(given, rank, server.address)
    addresses = [told(given, other) for other in range(HOSTS)]
    peers = own.fetcher = PeerClient(
        addresses=addresses, example=like_of(given), deadline_s=given["deadline"]
    )
    own.retention_steps = max_retention_steps(order)
    behind, steps = AsyncExchanger(own), given["epochs"] * order.steps(1)
    rows = np.arange(given["batch"]).reshape(HOSTS, -1)[rank]
    recipe = behind.assembler(
        lambda source: TrainBatchAssembler(
            source=source, order=order, dtypes={"x": "float32"}
        )
    )
    at = clock(given)
    at[rank, 1] = 1  # ready
    while not start and not at[:, 1].all():
        time.sleep(0.005)
    for step, batch in ahead(range(start, steps), lambda s: recipe(s, rows)):
        ids = batch["x"][:, 0].astype(np.int64)
        assert np.array_equal(ids, batch["id"]), f"step {step}: other samples"
        assert np.array_equal(batch["x"], origin.x[ids]), f"step {step}: other bytes"
        time.sleep(given["compute"])
        while at[:, 0].min() < step:  # the step of a program is that of all hosts
            time.sleep(0.0005)
        print(json.dumps({"step": step, "ids": ids.tolist(), "at": time.monotonic()}))
        sys.stdout.flush()
        # A host that was taken away stays at the end: nobody waits for it again.
        at[rank, 0] = max(at[rank, 0], step + 1)
    behind.wait()
    counts = vars(own.counts)
    mine = {"from_peers": peers.fetched_count, "bad": peers.corrupt_count}
    mine |= {"flipped": getattr(server, "flipped", 0), "peak": own.store.peak_count}
    mine |= {"failed": peers.failed_calls}
    print(json.dumps({"counts": counts | mine}), flush=True)
    at[rank, 1] = 2  # done; peers may still ask
    while (at[:, 1] < 2).any():
        time.sleep(0.01)
    server.shutdown()


def like_of(given):
    return {"x": np.zeros((1, given["floats"]), np.float32)}


def start(given, rank, first=0):
    words = [sys.executable, __file__, "--child", json.dumps([given, rank, first])]
    out = (Path(given["folder"]) / f"out-{rank}").open("a")
    return subprocess.Popen(words, stdout=out)


def trouble(given, children):
    """Take host 1 away for an epoch, and give it back."""
    at, per_epoch = clock(given), order_for(given).steps(1)
    wait_for(lambda: at[VICTIM, 0] >= 1.5 * per_epoch, children)
    kill = given["fault"] == "killed"
    os.kill(children[VICTIM].pid, signal.SIGKILL if kill else signal.SIGSTOP)
    done, at[VICTIM, 0] = int(at[VICTIM, 0]), FREE
    wait_for(lambda: at[0, 0] >= 2.5 * per_epoch, children)
    if kill:
        children[VICTIM].wait()
        children[VICTIM] = start(given, VICTIM, done)
    else:
        os.kill(children[VICTIM].pid, signal.SIGCONT)


def wait_for(reached, children):
    while not reached():
        failed = [c.returncode for c in children if c.poll()]
        if any(code != -signal.SIGKILL for code in failed):
            raise RuntimeError("a host failed")
        time.sleep(0.002)


def run(given):
    """Run the hosts of one fault; return what each said."""
    children = []
    np.zeros((HOSTS, 2), np.int64).tofile(Path(given["folder"]) / "clock")
    try:
        children += [start(given, rank) for rank in range(HOSTS)]
        if given["fault"] in GONE:
            trouble(given, children)
        for child in children:
            if child.wait(timeout=300):
                raise RuntimeError(f"a host ended with {child.returncode}")
    finally:
        for child in children:
            child.kill()
            child.wait()
    lines = [
        (Path(given["folder"]) / f"out-{rank}").read_text().splitlines()
        for rank in range(HOSTS)
    ]
    return [[json.loads(line) for line in each] for each in lines]


def judge(given, said):
    """Hold what hosts read against the order; sum up what they counted."""
    order = order_for(given)
    steps = given["epochs"] * order.steps(1)
    read = [{row["step"]: row["ids"] for row in rows if "step" in row} for rows in said]
    for step in range(steps):
        ids = [i for host in read for i in host[step]]
        assert ids == order.ids(step).tolist(), f"step {step}: another order"
    counts = [row["counts"] for rows in said for row in rows if "counts" in row]
    summed = {key: sum(each[key] for each in counts) for key in counts[0]}
    there = [rank for rank in range(HOSTS) if rank != VICTIM]
    first = order.steps(1) - 1
    times = [
        {row["step"]: row["at"] for row in said[r] if "step" in row} for r in there
    ]
    spent = [(at[steps - 1] - at[first]) / (given["epochs"] - 1) for at in times]
    return {"fault": given["fault"], "epoch_s": max(spent), **summed}


def measure(args, fault):
    with tempfile.TemporaryDirectory() as folder:
        given = {**vars(args), "fault": fault, "folder": folder}
        x = np.random.default_rng(0).random((args.samples, args.floats), np.float32)
        x[:, 0] = np.arange(args.samples)
        np.save(Path(folder) / "x.npy", x)
        return judge(given, run(given))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--floats", type=int, default=1024, help="of a sample")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--q", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--compute", type=float, default=0.05, help="s a step")
    parser.add_argument("--deadline", type=float, default=2.0, help="s, of peers")
    parser.add_argument("--json", action="store_true", help="an object a line")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        host(*json.loads(args.child))
        return
    base = 0.0
    for fault in args.faults.split(","):
        found = measure(args, fault)
        base = base or found["epoch_s"]
        if args.json:
            print(json.dumps(found), flush=True)
            continue
        late = found["epoch_s"] / base - 1
        print(
            f"{fault:10} {found['epoch_s']:6.2f} s an epoch ({late:+6.1%} late)  "
            f"{found['received']:5} came, {found['from_peers']:5} from peers, "
            f"{found['dataset_reads']:4} of the data set, "
            f"{found['store_misses']:4} strays, "
            f"{found['bad']:3} bad of {found['flipped']} flipped",
            flush=True,
        )


if __name__ == "__main__":
    main()
