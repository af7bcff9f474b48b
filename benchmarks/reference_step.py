"""A step beside a plain one, under the same compiler and options: cycles and memory.

    python benchmarks/reference_step.py                    # with jaxdist[tpu,cuda12]

The plain step is `jax.jit` over shardings that XLA's partitioner follows: the same
network and optimizer, parameters stacked and in one `lax.scan`, cast before they are
gathered, with no collective written by hand. Both are compiled for the target.
"""

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from record import add_record_option, row, write_result

if TYPE_CHECKING:
    from jaxdist.train.layout import Layout

LLAMA = ("llama", "data.name=synthetic", "precision=bfloat16", "model.depth=4")
STEPS = {
    "4 blocks of Llama 1B, fsdp 8, bfloat16, 2 x 2,048 tokens a device": (
        *LLAMA,
        *("data.batch=16", "plan.mesh.data=1", "plan.mesh.fsdp=8"),
        "plan.attention=einsum",  # as the plain step has it
    ),
}
TARGETS = ("tpu-v5p:2x2x2", "h100:1x8")


def plain_step(layout: "Layout") -> tuple[Any, tuple[Any, ...]]:
    """Return the plain step of a layout with one loop, and its abstract arguments."""
    import jax
    import optax
    from flax import nnx
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from jaxdist.train.objective import cast_floats
    from jaxdist.train.state import named_leaves, replace_leaves

    task, mesh = layout.task, layout.mesh
    (scan,) = layout.block_scans
    leaves = named_leaves(task.state.params)
    names = tuple(leaves)
    looped = [i for each in scan.indices for i in each]
    others = [name for i, name in enumerate(names) if i not in looped]

    def placed(name: str, count: int = 0) -> Any:
        spec = layout.param_shardings[names.index(name)].spec()
        shape = leaves[name].shape
        spec, shape = ((None, *spec), (count, *shape)) if count else (spec, shape)
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct(shape, leaves[name].dtype, sharding=sharding)

    params = {
        "blocks": {
            inner: placed(f"{scan.blocks[0]}/{inner}", len(scan.blocks))
            for inner in scan.names
        },
        "others": {name: placed(name) for name in others},
    }
    opt = jax.eval_shape(task.optimizer.init, params)
    opt = optax.tree.map_params(
        task.optimizer,
        lambda _, like: like,
        opt,
        params,
        transform_non_params=lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(mesh, P())
        ),
    )
    batch = {
        key: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=layout.batch_shardings(layout.batch_shapes)[key]
        )
        for key, x in layout.batch_shapes.items()
    }

    def mean_loss(params: Any, batch: Any) -> Any:
        # Kernels alone are cast, as in our step: norms stay in float32.
        used = jax.tree.map(
            lambda x: cast_floats(x, task.dtype) if x.ndim > 1 else x, params
        )
        # The graph wants leaves for every block. The first one's stand in for all of
        # them; the scan gives each block its own.
        first = {
            f"{block}/{inner}": used["blocks"][inner][0]
            for block in scan.blocks
            for inner in scan.names
        }
        tree = replace_leaves(task.state.params, used["others"] | first)
        model: Any = nnx.merge(task.graph, tree, task.state.stats, copy=True)
        model.train()
        blocks = dict(model.chain())
        start = [*blocks].index(scan.blocks[0])
        x: Any = task.objective.model_inputs(batch)[0]
        for name in [*blocks][:start]:
            x = blocks[name](x)
        graph, form = nnx.split(blocks[scan.blocks[0]])

        def body(x: Any, own: Any) -> tuple[Any, None]:
            return nnx.merge(graph, replace_leaves(form, own), copy=True)(x), None

        x, _ = lax.scan(body, x, used["blocks"])
        for name in [*blocks][start + len(scan.blocks) :]:
            x = blocks[name](x)
        return task.objective.losses(x, batch).mean()

    def step(params: Any, opt: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(mean_loss)(params, batch)
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = task.optimizer.update(grads, opt, params)
            return optax.apply_updates(params, updates), opt, loss

    # The new state lies as the old one did, or its donated buffers could not be used.
    places = jax.tree.map(lambda x: x.sharding, (params, opt))
    jitted = jax.jit(
        step,
        donate_argnums=(0, 1),
        out_shardings=(*places, NamedSharding(mesh, P())),
    )
    return jitted, (params, opt, batch)


def figures(title: str, compiled: Any, seconds: float) -> list[dict[str, Any]]:
    """Return memory and cycles of a compiled step."""
    from jaxdist.partition.audit import compiled_memory_bytes
    from jaxdist.profile.compiled_schedule import read_schedule

    schedule = read_schedule(compiled.as_text(), frozenset())
    found = [("memory", compiled_memory_bytes(compiled) / 1e9, "GB")]
    if schedule.cycles:
        found.append(("cycles", schedule.cycles / 1e6, "M"))
    found.append(("compilation", seconds, "s"))
    return [row(title, value, unit, figure=name) for name, value, unit in found]


def main() -> int:
    """Compile both steps, print, and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--target", default=",".join(TARGETS), help="a list with commas"
    )
    add_record_option(parser)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for target_name in args.target.split(","):
        from jaxdist.meshes.targets.compiler_options import program_options
        from jaxdist.meshes.targets.compilers import prepare_compilation
        from jaxdist.meshes.targets.target import parse_target

        target = parse_target(target_name)
        prepare_compilation(target)
        from jaxdist.launch.analysis.target_compile import lay_out_on_target
        from jaxdist.launch.config.resolve import resolve_config
        from jaxdist.train.program import lower_program

        for title, words in STEPS.items():
            layout = lay_out_on_target(resolve_config(words[0], words[1:]), target)
            jitted, given = plain_step(layout)
            lowered = {
                "jaxdist": lower_program(layout).step,
                "jit and XLA's partitioner": jitted.lower(*given),
            }
            for name, one in lowered.items():
                began = time.perf_counter()
                compiled = one.compile(compiler_options=dict(program_options(layout)))
                took = time.perf_counter() - began
                rows += figures(f"{title}; {target}; {name}", compiled, took)
                for each in rows[-3:]:
                    print(each["case"], each["figure"], each["value"], each["unit"])
    if args.record:
        write_result(
            "reference_step",
            rows,
            title="A step beside a plain one under the same compiler",
            measures="Memory of a device and estimated cycles of jaxdist's step and of "
            "a plain one with the same network, optimizer and dtypes: jit over "
            "shardings, one scan over stacked parameters, collectives by XLA's "
            "partitioner. Nothing was run.",
            not_run="takes the compilers of TPUs and GPUs, 7 GB",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
