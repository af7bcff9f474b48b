"""Pipelines measured: steps, ticks, memory and compilation, on fake devices.

    python benchmarks/pipelines.py steps
    python benchmarks/pipelines.py ticks
    python benchmarks/pipelines.py memory
    python benchmarks/pipelines.py compile

`steps`: milliseconds of a step, eight equal blocks in four stages, eight microbatches;
benchmarks/pipelines_torch.py is the same in torch, on four processes.
`ticks`: the same over 4 to 32 microbatches, and the line through them.
`memory`: bytes that a device needs, by microbatches, by stages of one network, and by
stages of two blocks each.
`compile`: seconds to trace and to compile four stages of different shapes.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from functools import partial

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
# As `jaxdist train` sets it: threads for devices that wait, and the cores.
os.environ.setdefault("NPROC", str(3 + (os.cpu_count() or 1)))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.layers import LayerNorm, Linear
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import image_shape, model_factory
from jaxdist.train.build_layout import build_layout
from jaxdist.train.layout import Layout
from jaxdist.train.objective import Regression
from jaxdist.train.program import compile_program, initial_state, trace_train_step
from jaxdist.train.task import Task

STAGES, BLOCKS, MICRO = 4, 8, 8


class Mlp(nnx.Module):
    """x + a network of two layers, of 512 numbers a sample."""

    def __init__(self, rngs):
        self.norm = LayerNorm(512, rngs=rngs)
        self.wide = Linear(512, 1024, rngs=rngs)
        self.back = Linear(1024, 512, rngs=rngs)

    def __call__(self, x):
        inner = jax.nn.gelu(self.wide(self.norm(x)), approximate=False)
        return x + self.back(inner)


class Encoder(nnx.Module):
    """Attention over 64 tokens of 128 numbers with 4 heads, then two layers."""

    def __init__(self, rngs):
        self.norm1, self.norm2 = (LayerNorm(128, rngs=rngs) for _ in range(2))
        self.query, self.out = (
            Linear(128, 384, rngs=rngs),
            Linear(128, 128, rngs=rngs),
        )
        self.wide = Linear(128, 512, rngs=rngs)
        self.back = Linear(512, 128, rngs=rngs)

    def __call__(self, x):
        samples, tokens, _ = x.shape
        # [samples, tokens, query/key/value, heads, 32]
        parts = self.query(self.norm1(x)).reshape(samples, tokens, 3, 4, 32)
        q, k, v = (parts[:, :, i] for i in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 32**0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = x + self.out(mixed.reshape(samples, tokens, 128))
        return x + self.back(jax.nn.relu(self.wide(self.norm2(x))))


class Stack(nnx.Module):
    """Blocks one behind the other."""

    def __init__(self, block, count=BLOCKS, *, rngs):
        self.names = tuple(f"block{i}" for i in range(count))
        for name in self.names:
            setattr(self, name, block(rngs))

    def chain(self):
        return ((name, getattr(self, name)) for name in self.names)

    def __call__(self, x):
        for name, block in self.chain():
            with jax.named_scope(name):
                x = block(x)
        return x


@dataclass(frozen=True, kw_only=True)
class Near(Regression):
    """The mean square of all that a sample is away from its target."""

    def dim_axes(self, key, rank):
        return ()

    def losses(self, outputs, batch):
        square = (outputs - batch["target"]) ** 2
        return square.reshape(square.shape[0], -1).mean(-1)


KINDS = {"mlp": (Mlp, (64, 512)), "transformer": (Encoder, (8, 64, 128))}
"""A block, and the shape of a microbatch."""


def stack(kind, micro=MICRO, stages=STAGES, schedule="1f1b", blocks=BLOCKS) -> Layout:
    """Return the layout of blocks in stages."""
    block, (rows, *shape) = KINDS[kind]
    task = Task(
        model=partial(Stack, block, blocks),
        optimizer=optax.sgd(1e-3),
        objective=Near(),
        microbatches=micro,
    )
    x = jax.ShapeDtypeStruct((micro * rows, *shape), jnp.float32)
    shapes = {
        "image": x,
        "target": x,
        "id": jax.ShapeDtypeStruct(x.shape[:1], jnp.int32),
    }
    plan = Plan(mesh=MeshShape(pipe=stages), pipe=PipelineConfig(schedule=schedule))
    mesh = build_mesh(plan, jax.devices()[:stages])
    return build_layout(task, plan, mesh, shapes)


def seconds(layout: Layout, steps):
    """Return the seconds of steps, after three that warm up."""
    program, state = compile_program(layout), initial_state(layout)
    rng = np.random.default_rng(0)
    batch = {
        key: jnp.asarray(rng.normal(size=x.shape), x.dtype)
        if x.ndim > 1
        else jnp.arange(x.shape[0], dtype=x.dtype)
        for key, x in layout.batch_shapes.items()
    }
    batch = jax.device_put(batch, program.batch_shardings)
    found = []
    for _ in range(steps + 3):
        start = time.perf_counter()
        state, metrics = program.compiled_step(state, batch)
        jax.block_until_ready((state, metrics))
        found.append(time.perf_counter() - start)
    return found[3:]


def spread(found):
    """Return median, least and most, in milliseconds."""
    return [round(1e3 * f(found), 1) for f in (statistics.median, min, max)]


def steps(args):
    for kind in KINDS:
        for schedule in ("gpipe", "1f1b", "eager-1f1b", "zb-h1"):
            found = spread(seconds(stack(kind, schedule=schedule), args.steps))
            yield {"blocks": kind, "schedule": schedule, "ms": found}
        alone = spread(seconds(stack(kind, stages=1), args.steps))
        yield {"blocks": kind, "schedule": "one device", "ms": alone}


def ticks(args):
    for kind in KINDS:
        rows = {}
        for micro in (4, 8, 16, 24, 32):
            found = seconds(stack(kind, micro), args.steps)
            # 1F1B has M + S - 1 ticks forward and as many backward, filling and
            # draining included.
            rows[micro] = 2 * (micro + STAGES - 1), statistics.median(found)
        counts, times = np.array(list(rows.values())).T
        slope, first = np.polyfit(counts, times, 1)
        line = first + slope * rows[16][0]
        yield {
            "blocks": kind,
            "ms by microbatches": {m: round(1e3 * t, 1) for m, (_, t) in rows.items()},
            "ms a tick": round(1e3 * slope, 2),
            "ms besides": round(1e3 * first, 1),
            "16 microbatches, over the line": round(rows[16][1] / line, 3),
        }


def memory(args):
    del args
    for schedule in ("gpipe", "1f1b", "eager-1f1b", "zb-h1"):
        for stages, micro in ((4, 4), (4, 8), (4, 16), (4, 32), (2, 16), (8, 16)):
            if stages > len(jax.devices()):
                continue
            layout = stack("transformer", micro, stages, schedule)
            lengths = {"schedule": schedule, "stages": stages, "microbatches": micro}
            yield {**lengths, "bytes": compile_program(layout).memory_bytes}
        for stages in (2, 4, 8):
            if stages > len(jax.devices()):
                continue
            layout = stack("transformer", 16, stages, schedule, 2 * stages)
            lengths = {"schedule": schedule, "blocks": 2 * stages, "stages": stages}
            yield {**lengths, "bytes": compile_program(layout).memory_bytes}


def compile_(args):
    del args
    config = ModelConfig(name="vgg16", size="tiny")
    for micro in (4, 8, 32):
        task = Task(
            model=model_factory(config), optimizer=optax.sgd(0.1), microbatches=micro
        )
        shape = 2 * micro, *image_shape(config)
        shapes = {
            "image": jax.ShapeDtypeStruct(shape, jnp.float32),
            "label": jax.ShapeDtypeStruct(shape[:1], jnp.int32),
            "id": jax.ShapeDtypeStruct(shape[:1], jnp.int32),
        }
        plan = Plan(mesh=MeshShape(pipe=STAGES))
        layout = build_layout(task, plan, build_mesh(plan), shapes)
        start = time.perf_counter()
        lowered = trace_train_step(layout).lower()
        middle = time.perf_counter()
        lowered.compile()
        end = time.perf_counter()
        yield {
            "network": "vgg16, tiny",
            "stages": STAGES,
            "microbatches": micro,
            "trace s": round(middle - start, 2),
            "compile s": round(end - middle, 2),
        }


WHAT = {"steps": steps, "ticks": ticks, "memory": memory, "compile": compile_}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    for row in WHAT[args.what](args):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
