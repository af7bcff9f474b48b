"""Memory a device needs for a step, split by split: the plan's account and XLA's.

    python benchmarks/memory.py --json

Compiles one training step of a small Transformer (AdamW) for each split and sets beside
each other what the plan says a device holds of parameters and optimizer, and what
`memory_analysis()` of the compiled step says: the state it is given, and what lives
between (activations, gradients, parameters put together).

XLA's CPU backend by default orders a program for concurrency, which here starts all
gathers at once. Accelerators order it for memory; the flag below does so here.
"""

import argparse
import json
import math
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_enable_concurrency_optimized_scheduler=false",
    )
)

import jax
import jax.numpy as jnp
import numpy as np
import optax
from record import add_record_option, row, write_result

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory, objective_for
from jaxdist.train.build_layout import build_layout
from jaxdist.train.layout import Layout
from jaxdist.train.step import make_train_step
from jaxdist.train.task import Task

SPLITS = {
    "one device": Plan(),
    "data 4": Plan(mesh=MeshShape(data=4)),
    "data 4, sparse 1 %": Plan(
        mesh=MeshShape(data=4), reduce=ReductionConfig(algorithm="sparse")
    ),
    "fsdp 4, zero 1": Plan(mesh=MeshShape(fsdp=4), zero=1),
    "fsdp 4, zero 3": Plan(mesh=MeshShape(fsdp=4)),
    "fsdp 8, zero 3": Plan(mesh=MeshShape(fsdp=8)),
    "tensor 4, pairs": Plan(mesh=MeshShape(tensor=4)),
    "tensor 4, sequence": Plan(mesh=MeshShape(tensor=4), tensor_strategy="sequence"),
    "tensor 4, filter": Plan(mesh=MeshShape(tensor=4), tensor_strategy="filter"),
    "tensor 4, channel": Plan(mesh=MeshShape(tensor=4), tensor_strategy="channel"),
    "fsdp 4 x tensor 2, zero 3": Plan(mesh=MeshShape(fsdp=4, tensor=2)),
}
MODEL = ModelConfig(
    name="llama",
    vocabulary=256,
    context=64,
    depth=8,
    heads=8,
    kv_heads=8,
    embed=512,
    hidden=2048,
)
BATCH = 8


def make_task() -> Task:
    """Return the network with AdamW: two numbers of state a parameter."""
    return Task(
        model=model_factory(MODEL),
        optimizer=optax.adamw(1e-3),
        objective=objective_for(MODEL),
    )


def planned(layout: Layout) -> tuple[int, int]:
    """Bytes of parameters and of optimizer state that the plan gives a device."""
    # ZeRO 3 alone divides parameters over fsdp; the state of the optimizer always is.
    held = [
        leaf.local_shape(layout.plan, include_fsdp=layout.gathers_params)
        for leaf in layout.param_shardings
    ]
    worked = [leaf.local_shape(layout.plan) for leaf in layout.param_shardings]
    size = np.dtype(np.float32).itemsize
    total = (sum(math.prod(shape) for shape in shapes) for shapes in (held, worked))
    params, opt = total
    return params * size, 2 * opt * size


def measure(task: Task, plan: Plan) -> dict[str, Any]:
    """Compile a step and read XLA's account of its memory."""
    tokens = jax.ShapeDtypeStruct((BATCH, MODEL.context or 64), jnp.int32)
    ids = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    shapes = {"tokens": tokens, "target": tokens, "id": ids}
    mesh = build_mesh(plan, jax.devices()[: plan.mesh.devices])
    layout = build_layout(task, plan, mesh, shapes)
    batch = {
        key: jax.ShapeDtypeStruct(shapes[key].shape, shapes[key].dtype, sharding=place)
        for key, place in layout.batch_shardings(shapes).items()
    }
    step = jax.jit(make_train_step(layout), donate_argnums=0)
    sizes: Any = step.lower(layout.state, batch).compile().memory_analysis()
    params, opt = planned(layout)
    given = sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in batch.values()
    )
    return {
        "parameters": params,
        "optimizer": opt,
        "state": sizes.argument_size_in_bytes - given,
        "between": sizes.temp_size_in_bytes,
    }


def main() -> None:
    """Print a row for each split."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_record_option(parser)
    args = parser.parse_args()
    task = make_task()
    rows = {name: measure(task, plan) for name, plan in SPLITS.items()}
    if args.record:
        made = [
            row(name, size / 1e6, "MB", figure=what)
            for name, sizes in rows.items()
            for what, size in sizes.items()
        ]
        write_result("memory", made)
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'MB':28}" + "".join(f"{key:>12}" for key in rows["data 4"]))
    for name, sizes in rows.items():
        figures = "".join(f"{value / 1e6:>12.1f}" for value in sizes.values())
        print(f"{name:28}{figures}")


if __name__ == "__main__":
    main()
