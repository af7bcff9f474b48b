"""A host of `to_accuracy.py`: trains with this package's step and reducers."""

import dataclasses
import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import to_accuracy_data as data
from flax import nnx

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.launch.distributed import initialize
from jaxdist.launch.testbed.link_shaping import read_local_counters
from jaxdist.launch.testbed.traffic_counter import TrafficCounter
from jaxdist.layers.linear import Linear
from jaxdist.meshes.build import build_mesh
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import Program, compile_program, initial_state
from jaxdist.train.task import Task

MOMENTUM = 0.9
METHODS = {
    "exact": ReductionConfig(),
    "int8": ReductionConfig(algorithm="int8"),
    "sparse 1 %": ReductionConfig(algorithm="sparse", momentum=MOMENTUM),
    "power1": ReductionConfig(algorithm="power", rank=1),
    "power4": ReductionConfig(algorithm="power", rank=4),
    "power4 in 3 buckets": ReductionConfig(algorithm="power", rank=4, bucket_mib=0.03),
}


class Layers(nnx.Module):
    """Dense layers with ReLU between them."""

    def __init__(self, *, rngs):
        wide = itertools.pairwise(data.SIZES)
        self.layers = nnx.List([Linear(i, o, rngs=rngs) for i, o in wide])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


def program_of(asked: ReductionConfig, lr) -> Program:
    """Compile the step of one method at one rate."""
    # One momentum: a sparse sum that is corrected has it itself.
    own = MOMENTUM if not asked.momentum else None
    task = Task(model=Layers, optimizer=optax.sgd(lr, momentum=own))
    plan = Plan(mesh=MeshShape(data=jax.process_count()), reduce=asked)
    kinds = {"image": ((64,), "float32"), "label": ((), "int32"), "id": ((), "int32")}
    shapes = {
        key: jax.ShapeDtypeStruct((data.BATCH, *shape), dtype)
        for key, (shape, dtype) in kinds.items()
    }
    return compile_program(build_layout(task, plan, build_mesh(plan), shapes))


def begin(program: Program, seed):
    """Return the state before the first step, with weights that both stacks have."""
    state = initial_state(program.layout)
    # Leaves of a tree are in the order of their names: bias before kernel.
    drawn = [x for kernel, bias in data.weights(seed) for x in (bias, kernel)]
    leaves, tree = jax.tree.flatten(state.params)
    given = [
        jax.make_array_from_callback(leaf.shape, leaf.sharding, x.__getitem__)
        for leaf, x in zip(leaves, drawn, strict=True)
    ]
    return dataclasses.replace(state, params=jax.tree.unflatten(tree, given))


def feed(program: Program, images, labels, places):
    """Place this host's samples."""
    arrays = {"image": images[places], "label": labels[places]}
    arrays["id"] = places.astype(np.int32)
    return {
        key: jax.make_array_from_process_local_data(program.batch_shardings[key], x)
        for key, x in arrays.items()
    }


@jax.jit
def right(leaves, images, labels):
    """Return the accuracy of weights that are here."""
    x = images
    for bias, kernel in zip(leaves[::2], leaves[1::2]):
        x = (jax.nn.relu(x) if x is not images else x) @ kernel + bias
    return jnp.mean(x.argmax(-1) == labels)


class Trained:
    """One method at one rate, compiled; `step` and `accuracy` are of one training."""

    def __init__(self, method, lr):
        rank, hosts = jax.process_index(), jax.process_count()
        part = data.BATCH // hosts
        self.own = slice(rank * part, (rank + 1) * part)
        self.program = program_of(METHODS[method], lr)
        self.samples, test = data.digits()
        self.test = [jnp.asarray(x) for x in test]

    def begin(self, seed):
        self.state = begin(self.program, seed)

    def step(self, places):
        images, labels = self.samples
        batch = feed(self.program, images, labels, places[self.own])
        self.state, metrics = self.program.run(1, self.state, batch)
        jax.block_until_ready(metrics)

    def accuracy(self):
        leaves = jax.tree.leaves(self.state.params)
        return float(right([x.addressable_data(0) for x in leaves], *self.test))


def main(methods, lrs, seeds, **until):
    initialize()
    gauge = TrafficCounter(jax.make_mesh((jax.process_count(),), ("data",)))

    def sent():
        return read_local_counters().tx_bytes

    for method in methods:
        for lr in lrs[method]:
            trained = Trained(method, lr)
            trained.begin(0)
            data.train(trained, 0, sent, target=0, most=2, least=2)  # compiles the rest
            for seed in seeds:
                trained.begin(seed)
                gauge.barrier()
                found = data.train(trained, seed, sent, **until)
                print(json.dumps({"method": method, "lr": lr, "seed": seed, **found}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
