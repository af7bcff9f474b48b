"""What it costs to know which samples a host reads, by epoch and partition.

    python benchmarks/ids.py

First one epoch of a host of 512 that share a billion samples, in units of NumPy's own
permutation of as many numbers, timed in the same process; then the first batch behind a
resume at epoch 90 of ImageNet's size, and those that follow.
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from record import add_record_option, row, write_result

from jaxdist.input.keyed_permutation import permute
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.local_shuffle.shuffle import PartialShuffle, SampleLocations

ROUNDS = 5


def seconds(call: Callable[[], object]) -> float:
    """Return the least time of several calls."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def one_epoch() -> list[dict[str, Any]]:
    """Time an epoch of partitions; return the rows that are recorded."""
    shuffle = PartialShuffle.from_fraction(samples=10**9, partitions=512, q=0.1, seed=1)
    slots = np.arange(shuffle.size(7))
    own = np.full_like(slots, 7)
    draw = np.random.default_rng(0)
    numpy = seconds(lambda: draw.permutation(slots.size))
    places = SampleLocations(own, slots)
    step = seconds(lambda: shuffle.trace(places, 4, 3))
    order = seconds(lambda: shuffle.apply_read_order(permute, 4, own, slots))
    # ru_maxrss is in kB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{slots.size:,} slots; NumPy's permutation of as many: {1e3 * numpy:.0f} ms")
    print(f"  one epoch               {1e3 * step:5.0f} ms   {step / numpy:.2f} x")
    both = step + order
    print(f"  with the reading order  {1e3 * both:5.0f} ms   {both / numpy:.2f} x")
    print(f"  peak memory             {peak:5.0f} MB")
    return [
        row("one epoch", step / numpy, "permutations", n=ROUNDS),
        row("with the reading order", both / numpy, "permutations", n=ROUNDS),
        row("memory", peak, "MB"),
    ]


def first_batches() -> list[dict[str, Any]]:
    """Time the first batches of an epoch; return the rows that are recorded."""
    made = []
    print("1,281,167 samples, epoch 90, batches of 4,096, Q = 0.1")
    for partitions in (16, 512, 4096):
        shuffle = PartialShuffle.from_fraction(
            samples=1_281_167, partitions=partitions, q=0.1
        )
        order = PartialShuffleOrder(shuffle=shuffle, batch=4096)
        step = order.steps(90)
        start = time.perf_counter()
        order.ids(step)
        first = time.perf_counter() - start
        for later in range(1, 21):
            order.ids(step + later)
        rest = (time.perf_counter() - start - first) / 20
        print(
            f"  {partitions:5,} partitions   first {first:.2f} s, then "
            f"{1e3 * rest:.0f} ms a batch"
        )
        made.append(row(f"first batch, {partitions:,} partitions", first, "s"))
        per_sample = 1e6 * rest / order.batch
        made.append(row(f"a sample after it, {partitions:,}", per_sample, "µs"))
    return made


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_record_option(options)
    given = options.parse_args()
    result = [*one_epoch(), *first_batches()]
    if given.record:
        write_result("ids", result)
