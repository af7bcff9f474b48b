"""The loop a careful user writes by hand: plain flax, optax and jit, no framework.

The network is ResNet-8 of plain `flax.nnx` layers, laid out on the same mesh as the
job it is compared with, and partitioned by XLA from the shardings of its arguments.
Run as a program it trains one epoch of digits and prints when its first step was done:

    python benchmarks/handwritten.py START     (START: Unix seconds of the command)
"""

import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


class Block(nnx.Module):
    def __init__(self, cin, cout, stride, rngs):
        conv = partial(nnx.Conv, use_bias=False, rngs=rngs)
        norm = partial(nnx.BatchNorm, momentum=0.9, rngs=rngs)
        self.c1, self.b1 = conv(cin, cout, (3, 3), stride), norm(cout)
        self.c2, self.b2 = conv(cout, cout, (3, 3)), norm(cout)
        self.short = None if stride == 1 else conv(cin, cout, (1, 1), stride)

    def __call__(self, x):
        y = self.b2(self.c2(jax.nn.relu(self.b1(self.c1(x)))))
        return jax.nn.relu(y + (x if self.short is None else self.short(x)))


class ResNet8(nnx.Module):
    def __init__(self, rngs, width=16, classes=10):
        w = width
        self.stem = nnx.Conv(1, w, (3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(w, momentum=0.9, rngs=rngs)
        sizes = ((w, w, 1), (w, 2 * w, 2), (2 * w, 4 * w, 2))
        self.blocks = nnx.List([Block(*size, rngs=rngs) for size in sizes])
        self.head = nnx.Linear(4 * w, classes, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Hand:
    """The hand-written job: state, jitted step, and batches from memory."""

    def __init__(
        self, mesh: Mesh, tx: optax.GradientTransformation, images: Any, labels: Any
    ) -> None:
        graph, params, *rest = nnx.split(ResNet8(nnx.Rngs(0)), nnx.Param, ...)
        (stats,) = rest
        whole = NamedSharding(mesh, P())
        self.state = jax.device_put((params, stats, jax.jit(tx.init)(params)), whole)
        self.where = (
            NamedSharding(mesh, P("data", "spatial_h")),
            NamedSharding(mesh, P("data")),
        )
        self.images, self.labels = images, labels
        self.step = _jit_step(graph, tx)

    def batch(self, ids: np.ndarray) -> Any:
        """Put the samples on the devices."""
        return jax.device_put((self.images[ids], self.labels[ids]), self.where)

    def epoch(self, order: np.random.Generator, batch: int, steps: int) -> None:
        """Train `steps` steps in a fresh order and wait for the last."""
        ids = np.concatenate([order.permutation(len(self.images)) for _ in range(2)])
        loss = None
        for i in range(steps):
            part = self.batch(ids[i * batch : (i + 1) * batch])
            self.state, loss = self.step(self.state, *part)
        jax.block_until_ready(loss)


def _jit_step(graph: Any, tx: optax.GradientTransformation) -> Any:
    def loss_of(params, stats, x, y):
        model = nnx.merge(graph, params, stats, copy=True)
        model.train()
        loss = optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
        return loss, nnx.state(model, nnx.BatchStat)

    @partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        params, stats, opt = state
        found = jax.value_and_grad(loss_of, has_aux=True)(params, stats, x, y)
        (loss, stats), grads = found
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), stats, opt), loss

    return step


def main() -> None:
    """Train until the first step is done."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32).repeat(2, 1).repeat(2, 2)
    axes = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "spatial_h"), axis_types=axes)
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.2, 22, 660)
    tx = optax.sgd(rate, momentum=0.9, nesterov=True)
    hand = Hand(mesh, tx, images[..., None], digits.target.astype(np.int32))
    hand.epoch(np.random.default_rng(0), batch=64, steps=1)
    sys.stdout.write(f"{time.time() - float(sys.argv[1])}\n")


if __name__ == "__main__":
    main()
