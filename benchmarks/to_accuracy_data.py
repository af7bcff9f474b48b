"""What both stacks of `to_accuracy.py` train on: the same samples, weights, order."""

import functools
import itertools
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SIZES = (64, 1024, 1024, 10)
BATCH = 128


@functools.cache
def digits():
    """Return the images and labels to train on, and those that are held out."""
    found = load_digits()
    images = (found.data / 16).astype(np.float32)
    labels = found.target.astype(np.int32)
    train, test, *both = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=0
    )
    return (train, both[0]), (test, both[1])


def weights(seed):
    """Return kernel [in, out] and bias [out] of each layer, as torch draws them."""
    rng = np.random.default_rng(seed)
    for wide, narrow in itertools.pairwise(SIZES):
        edge = wide**-0.5
        kernel = rng.uniform(-edge, edge, (wide, narrow))
        bias = rng.uniform(-edge, edge, narrow)
        yield kernel.astype(np.float32), bias.astype(np.float32)


def batches(seed, samples):
    """Yield the places of each step's samples, epoch after epoch, without end."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(samples)
        for start in range(0, samples - BATCH + 1, BATCH):
            yield order[start : start + BATCH]


def train(trained, seed, sent, target, most, least):
    """Train until the target is reached; what a host reports of it.

    Args:
        trained: has `step(places)`, which waits for its end, and `accuracy()`.
        seed: of the order.
        sent: bytes that this host has sent.
        target: held-out accuracy, looked at after every second step.
        most: steps after which it is given up.
        least: steps that are done in any case.
    """
    start, before, reached, parts = time.perf_counter(), sent(), None, []
    for number, places in enumerate(batches(seed, len(digits()[0][1])), 1):
        early, then = time.perf_counter(), sent()
        trained.step(places)
        parts.append((time.perf_counter() - early, sent() - then))
        if number % 2 == 0:
            now = trained.accuracy()
            if reached is None and now >= target:
                reached = number, time.perf_counter() - start, sent() - before
            if number >= (least if reached else most):
                break
    steps, seconds, total = reached or (None, None, sent() - before)
    each, bytes_ = np.median(parts, axis=0)
    return {
        "steps": steps,
        "s": seconds,
        "mb": total / 1e6,
        "accuracy": now,
        "step_ms": 1e3 * each,
        "step_kb": bytes_ / 1e3,
    }
