"""What `jaxdist.distribute` costs: its step against one in a hand-written `shard_map`.

    python benchmarks/distribute.py --record

Both train ResNet-8 of plain flax layers on digits, with the same batch over the same
devices, in turn, in one process; a ratio is taken round by round, so that a drifting
machine drifts under both. By hand it is what a careful user writes: a jitted function
of pure trees, gradients and loss averaged by `lax.pmean`, batch norms told of the axis.
What `distribute` adds is found on the host: it takes module and optimizer as they are,
and gives them their new arrays.
"""

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")

from functools import partial

import jax
import numpy as np
import optax
from flax import nnx
from handwritten import ResNet8
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from record import add_record_option, row, write_result

import jaxdist
from jaxdist.input import open_data
from jaxdist.launch.experiments.digits import digits

TX = optax.sgd(0.05, momentum=0.9, nesterov=True)


def loss_of(model, batch):
    logits, labels = model(batch["image"]), batch["label"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def step(model, optimizer, batch):
    """The step of one device."""
    loss, grads = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, grads)
    return loss


class Distributed:
    """The step by `jaxdist.distribute`."""

    def __init__(self):
        self.model = ResNet8(nnx.Rngs(0))
        self.optimizer = nnx.Optimizer(self.model, TX, wrt=nnx.Param)
        self.call = jaxdist.distribute(step, donate=True)

    def __call__(self, batch):
        return self.call(self.model, self.optimizer, batch)


class ByHand:
    """The same step in a `shard_map` that is written by hand."""

    def __init__(self, mesh):
        model = ResNet8(nnx.Rngs(0))
        for _, module in nnx.iter_modules(model):
            if isinstance(module, nnx.BatchNorm):
                # Statistics are those of the whole batch, as `distribute` has them.
                module.axis_name = "data"
        graph, params, *rest = nnx.split(model, nnx.Param, ...)
        (stats,) = rest
        whole = NamedSharding(mesh, P())
        self.state = jax.device_put((params, stats, jax.jit(TX.init)(params)), whole)

        @partial(jax.jit, donate_argnums=0)
        @partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(P(), P("data")),
            out_specs=(P(), P()),
            check_vma=False,
        )
        def call(state, batch):
            params, stats, opt = state

            def local_loss(params):
                model = nnx.merge(graph, params, stats, copy=True)
                return loss_of(model, batch), nnx.state(model, nnx.Not(nnx.Param))

            (loss, stats), grads = jax.value_and_grad(local_loss, has_aux=True)(params)
            loss, grads = lax.pmean(loss, "data"), lax.pmean(grads, "data")
            updates, opt = TX.update(grads, opt, params)
            return (optax.apply_updates(params, updates), stats, opt), loss

        self.call = call

    def __call__(self, batch):
        self.state, loss = self.call(self.state, batch)
        return loss


def seconds(run, batch, steps):
    """Time a step, mean of several in a row."""
    start = time.perf_counter()
    for _ in range(steps):
        loss = run(batch)
    jax.block_until_ready(loss)
    return (time.perf_counter() - start) / steps


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=10, help="steps a round")
    parser.add_argument("--batch", type=int, default=128)
    add_record_option(parser)
    args = parser.parse_args()
    source, _ = open_data(digits().data)
    samples = source.get(np.arange(args.batch))
    ours = Distributed()
    hand = ByHand(ours.call.mesh)
    rows = NamedSharding(ours.call.mesh, P("data"))
    batch = jax.device_put(
        {"image": samples["image"], "label": samples["label"].astype(np.int32)}, rows
    )
    np.testing.assert_allclose(float(ours(batch)), float(hand(batch)), rtol=1e-5)
    taken = []
    for turn in range(args.rounds + 1):
        # The order alternates too: whoever runs second finds warmer caches.
        order = (ours, hand) if turn % 2 else (hand, ours)
        times = {run: seconds(run, batch, args.steps) for run in order}
        taken.append((times[ours], times[hand]))
    taken = taken[1:]  # the first round warms up
    ratios = [a / b for a, b in taken]
    made = [row("step", statistics.median(ratios), "", figure="ratio", readings=ratios)]
    for figure, column in (("distribute", 0), ("by hand", 1)):
        ms = [1e3 * pair[column] for pair in taken]
        middle = statistics.median(ms)
        made.append(row("step", middle, "ms", figure=figure, readings=ms))
    for each in made:
        sys.stdout.write(f"{each['figure']:12} {each['value']:g} {each['unit']}\n")
    if args.record:
        write_result(
            "distribute",
            made,
            title="A step of one's own on all devices",
            measures="The step of `jaxdist.distribute` against the same step in a "
            "`shard_map` that is written by hand: ResNet-8 of plain flax layers on "
            "digits, four fake devices.",
            goal="ratio at most 1.02",
        )


if __name__ == "__main__":
    main()
