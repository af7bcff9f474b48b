"""A host of `zero_bubble.py`: steps of stages that wait where others compute."""

import json
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.launch.distributed import initialize
from jaxdist.meshes.build import build_mesh
from jaxdist.models.conv_blocks import Chain
from jaxdist.train.build_layout import build_layout
from jaxdist.train.objective import Regression
from jaxdist.train.program import Program, compile_program, initial_state
from jaxdist.train.task import Task

ROWS = 8
"""Samples of a microbatch."""


def wait(ms, x):
    """Return an array after a while."""

    def sleep(first):
        time.sleep(1e-3 * ms)
        return np.asarray(first)

    # One number passes: the array itself would be copied to Python and back.
    first = x.reshape(-1)[0]
    waited = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), x.dtype), first)
    return x.at[(0,) * x.ndim].set(waited)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def wait_backward(ms, x):
    """Return an array, whose gradient comes after a while."""
    return x


wait_backward.defvjp(
    lambda ms, x: (x, None), lambda ms, _, cotangent: (wait(ms, cotangent),)
)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def wait_forward(ms, x):
    """Return an array after a while, and its gradient at once."""
    return wait(ms, x)


@wait_forward.defjvp
def _(ms, primals, tangents):
    return wait_forward(ms, *primals), tangents[0]


class Slow(nnx.Module):
    """A dense layer whose three products take a given time each, and no core."""

    def __init__(self, width, ms, rngs):
        draw = nnx.initializers.normal(width**-0.5)
        self.kernel = nnx.Param(draw(rngs.params(), (width, width)))
        self.ms = ms

    def __call__(self, x):
        kernel = wait_backward(self.ms, self.kernel[...])
        return jnp.tanh(wait_forward(self.ms, wait_backward(self.ms, x) @ kernel))


def program_of(schedule, stages, blocks, width, ms, micro) -> Program:
    """Compile the step of a schedule."""

    def network(*, rngs):
        return Chain({f"block{i}": Slow(width, ms, rngs) for i in range(blocks)})

    task = Task(
        model=network,
        optimizer=optax.sgd(1e-3),
        objective=Regression(),
        microbatches=micro,
    )
    x = jax.ShapeDtypeStruct((micro * ROWS, width), jnp.float32)
    ids = jax.ShapeDtypeStruct(x.shape[:1], jnp.int32)
    pipe = PipelineConfig(
        schedule=schedule,
        cuts=tuple(f"block{i}" for i in range(0, blocks, blocks // stages))[1:],
    )
    plan = Plan(mesh=MeshShape(pipe=stages), pipe=pipe)
    shapes = {"image": x, "target": x, "id": ids}
    return compile_program(build_layout(task, plan, build_mesh(plan), shapes))


def batch_of(program: Program):
    """Return a batch; all stages have the same samples."""
    rng = np.random.default_rng(0)
    arrays = {
        key: rng.normal(size=x.shape).astype(x.dtype)
        if x.ndim > 1
        else np.arange(x.shape[0], dtype=x.dtype)
        for key, x in program.layout.batch_shapes.items()
    }
    return {
        key: jax.make_array_from_callback(
            x.shape, program.batch_shardings[key], x.__getitem__
        )
        for key, x in arrays.items()
    }


def main(schedules, rounds, **sizes):
    initialize()
    programs = {
        name: program_of(name, jax.process_count(), **sizes) for name in schedules
    }
    for program in programs.values():
        assert not program.differences
    found: dict[str, list[float]] = {name: [] for name in schedules}
    states = {name: initial_state(one.layout) for name, one in programs.items()}
    batches = {name: batch_of(one) for name, one in programs.items()}
    for number in range(rounds + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            states[name], metrics = program.compiled_step(states[name], batches[name])
            jax.block_until_ready((states[name], metrics))
            # Links are set up in the first round.
            if number:
                found[name].append(time.perf_counter() - start)
    print(json.dumps(found))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
