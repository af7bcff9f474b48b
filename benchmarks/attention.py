"""Attention on TPUs and GPUs: memory with the kernel of the platform and written out.

    python benchmarks/attention.py                    # with jaxdist[tpu,cuda12]

Attention alone, forward and backward, and the step of GPT-2 small, compiled by the real
compilers of machines that are not here. Nothing is run.
"""

import argparse
import subprocess
import sys
from typing import Any

from record import add_record_option, row, write_result
from targets import compile_step

GOALS = {"tpu-v5p:2x2x1": 20, "h100:1x4": 60}
"""Least ratio of the memory written out to that with the kernel, by target."""
SHAPE = 8, 4096, 16, 128
ALONE = "attention, 8 x 4,096 tokens on 4 devices, 16 heads of 128, bfloat16"
GPT2 = "GPT-2 small, data 2 x fsdp 4, bfloat16, 64 x 1,024 tokens a device; h100:1x8"
STEPS = {"in a loop": (), "unrolled": ("plan.scan=off",)}


def temporary_bytes(target_name: str, fused: bool) -> int:
    """Return the temporary memory of attention and its gradients on a device."""
    from jaxdist.meshes.targets.compilers import (
        prepare_compilation,
        quiet_stderr,
        target_devices,
    )
    from jaxdist.meshes.targets.target import parse_target

    target = parse_target(target_name)
    prepare_compilation(target)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jaxdist.layers import causal_attention

    platform = target.platform if fused else "cpu"

    def loss(query: Any, key: Any, value: Any) -> Any:
        read = causal_attention(query, key, value, platform)
        return read.astype(jnp.float32).sum()

    # In a shard_map, as the steps are; the samples are divided.
    mesh = Mesh(np.array(target_devices(target)), ("data",))
    split = NamedSharding(mesh, P("data"))
    array = jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16, sharding=split)
    gradients = jax.shard_map(
        jax.grad(loss, (0, 1, 2)),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    with quiet_stderr():
        lowered = jax.jit(gradients).lower(array, array, array)
        sizes: Any = lowered.compile().memory_analysis()
        return int(sizes.temp_size_in_bytes)


def in_process(target: str, kind: str) -> int:
    """Return the same from a process of its own: a process has one compiler."""
    words = [sys.executable, __file__, "--alone", target, kind]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return int(done.stdout)


def main() -> int:
    """Compile, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    add_record_option(parser)
    args = parser.parse_args()
    if args.alone:
        print(temporary_bytes(args.alone[0], args.alone[1] == "fused"))
        return 0
    rows = []
    for target, goal in GOALS.items():
        written, fused = (in_process(target, kind) for kind in ("written", "fused"))
        for name, value, unit in (
            ("written out", written / 1e9, "GB"),
            ("with its kernel", fused / 1e9, "GB"),
            ("ratio", written / fused, ""),
        ):
            rows.append(row(f"{ALONE}; {target}", value, unit, figure=name))
        rows[-1]["goal"] = f"at least {goal}"
    words = (
        *("gpt2_small", "data.name=synthetic", "precision=bfloat16", "data.batch=512"),
        *("plan.mesh.data=2", "plan.mesh.fsdp=4"),
    )
    wrong = 0
    for title, more in STEPS.items():
        found = compile_step((*words, *more), "h100:1x8")
        wrong += bool(found["differences"])
        memory = found["memory_bytes"] / 1e9
        rows.append(row(GPT2, memory, "GB", figure=f"memory {title}"))
        rows[-1]["goal"] = "at most 12"
    for each in rows:
        print(each["case"], each["figure"], each["value"], each["unit"])
    if args.record:
        write_result(
            "attention",
            rows,
            title="Attention with the kernels of TPUs and GPUs",
            measures="Temporary memory of attention alone, forward and backward, "
            "written out and with the kernel of the platform (splash attention, that "
            "of cuDNN), and memory of a device for the step of GPT-2 small, as the "
            "real compilers have it. Nothing was run.",
            not_run="takes the compilers of TPUs and GPUs, 7 GB",
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
