"""A host of `flow_links.py`: trains in stages or on its share of each minibatch."""

import itertools
import json
import statistics
import sys
import time
from typing import Final

import jax
import numpy as np
import optax
import to_accuracy_data as data
from flax import nnx

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.launch.distributed import initialize
from jaxdist.launch.testbed.link_shaping import read_local_counters
from jaxdist.layers import Conv, Linear, MaxPool
from jaxdist.meshes.build import build_mesh
from jaxdist.models.conv_blocks import Chain
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import (
    Program,
    compile_eval_step,
    compile_program,
    initial_state,
)
from jaxdist.train.task import Task

STREAM = 12
PIPEDREAM: Final = "pipedream"
STAGES = MeshShape(pipe=4)
WAYS = {
    "data parallel": (Plan(mesh=MeshShape(data=4)), 1, data.BATCH),
    "1f1b": (Plan(mesh=STAGES), 8, data.BATCH),
    "pipedream": (
        Plan(mesh=STAGES, pipe=PipelineConfig(schedule=PIPEDREAM)),
        STREAM,
        STREAM * data.BATCH,
    ),
    "pipedream 3-1": (
        Plan(
            mesh=STAGES,
            pipe=PipelineConfig(schedule=PIPEDREAM, cuts=("dense1",), replicas=(3, 1)),
        ),
        STREAM,
        STREAM * data.BATCH,
    ),
}
"""A plan, the parts of a step's batch, and the batch."""


class Filters(nnx.Module):
    """A 3x3 convolution and ReLU; then, where asked, half the rows and columns."""

    def __init__(self, inputs, outputs, rngs, *, halve):
        self.conv = Conv(inputs, outputs, (3, 3), padding=1, rngs=rngs)
        self.halve = MaxPool(2, 2) if halve else None

    def __call__(self, x):
        y = jax.nn.relu(self.conv(x))
        return self.halve(y) if self.halve else y


class Layer(nnx.Module):
    """A dense layer, with ReLU but for the last of all."""

    def __init__(self, inputs, outputs, rngs, *, last):
        self.dense, self.last = Linear(inputs, outputs, rngs=rngs), last

    def __call__(self, x):
        y = self.dense(x.reshape(len(x), -1))
        return y if self.last else jax.nn.relu(y)


def dense(*sizes, rngs):
    """Return dense layers, named from dense1 on."""
    ends = list(itertools.pairwise(sizes))
    return {
        f"dense{i}": Layer(*pair, rngs, last=i == len(ends))
        for i, pair in enumerate(ends, 1)
    }


def four_dense(*, rngs):
    return Chain(dense(64, 1024, 1024, 1024, 10, rngs=rngs))


def vgg(*, rngs):
    filters = ((1, 16, False), (16, 16, True), (16, 32, True))
    blocks = {
        f"conv{i}": Filters(inputs, outputs, rngs, halve=halve)
        for i, (inputs, outputs, halve) in enumerate(filters, 1)
    }
    return Chain(blocks | dense(128, 1024, 1024, 1024, 10, rngs=rngs))


NETWORKS = {"dense": (four_dense, (64,)), "vgg": (vgg, (8, 8, 1))}
"""A network, and the shape of its images."""


def program_of(network, way, rate):
    """Compile the step of a way at a rate, and its score of the held-out samples."""
    plan, parts, batch = WAYS[way]
    move = optax.sgd(rate, momentum=0.9)
    model, image = NETWORKS[network]
    task = Task(model=model, optimizer=move, microbatches=parts)
    kinds = {"image": (image, "float32"), "label": ((), "int32"), "id": ((), "int32")}

    def shapes(rows):
        return {
            key: jax.ShapeDtypeStruct((rows, *shape), dtype)
            for key, (shape, dtype) in kinds.items()
        }

    program = compile_program(build_layout(task, plan, build_mesh(plan), shapes(batch)))
    test = len(data.digits()[1][1])
    weighed = {**shapes(test), "weight": jax.ShapeDtypeStruct((test,), "float32")}
    return program, weighed, compile_eval_step(program.layout, weighed)


def placed(arrays, shardings):
    """Put rows of arrays that every host has on the devices that take them."""
    return {
        key: jax.make_array_from_callback(x.shape, shardings[key], x.__getitem__)
        for key, x in arrays.items()
    }


def minibatches(images, labels):
    """Yield minibatches of whole samples, epoch after epoch."""
    for places in data.batches(0, len(labels)):
        yield {
            "image": images[places],
            "label": labels[places],
            "id": places.astype(np.int32),
        }


def train(program: Program, weighed, score, rounds, target):
    """Return [seconds of training, accuracy] round by round, and each round's cost."""
    layout = program.layout
    samples, (images, labels) = (
        (each.reshape(-1, *layout.batch_shapes["image"].shape[1:]), its)
        for each, its in data.digits()
    )
    ids = np.arange(len(labels), dtype=np.int32)
    whole = {"image": images, "label": labels, "id": ids}
    whole["weight"] = np.ones(len(labels), np.float32)
    held_out = placed(whole, layout.batch_shardings(weighed))
    feed = minibatches(*samples)
    size = layout.batch_shapes["id"].shape[0]
    state, curve, total, costs = initial_state(layout), [], 0.0, []
    for number in range(rounds + 1):
        # As many minibatches a round for every way: a step of PipeDream takes them all,
        # one of the others a single one.
        taken = [next(feed) for _ in range(STREAM)]
        rows = {key: np.concatenate([t[key] for t in taken]) for key in taken[0]}
        steps = len(rows["id"]) // size
        batches = [
            placed(
                {k: x[i * size : (i + 1) * size] for k, x in rows.items()},
                program.batch_shardings,
            )
            for i in range(steps)
        ]
        start, before = time.perf_counter(), read_local_counters().tx_bytes
        for batch in batches:
            state, metrics = program.run(1, state, batch)
            jax.block_until_ready(metrics)
        spent, sent = (
            time.perf_counter() - start,
            read_local_counters().tx_bytes - before,
        )
        if not number:  # links are set up
            state = initial_state(layout)
            score(state.params, state.stats, held_out)
            continue
        total += spent
        costs.append((spent / STREAM, sent / STREAM))
        found = score(state.params, state.stats, held_out)
        curve.append([total, float(found["correct"]) / len(labels)])
        if curve[-1][1] >= target and number > 5:
            break
    return curve, [statistics.median(each) for each in zip(*costs)]


def main(network, way, rates, rounds, target):
    initialize()
    for rate in rates:
        program, weighed, score = program_of(network, way, rate)
        curve, (seconds, sent) = train(program, weighed, score, rounds, target)
        row = {"network": network, "way": way, "rate": rate, "curve": curve}
        row |= {"minibatch_s": seconds, "minibatch_mb": sent / 1e6}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
