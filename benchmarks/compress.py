"""What packing 4 M floats costs, as multiples of one pass that reads and writes them.

    python benchmarks/compress.py [--rounds 15]

One device, one thread; rows are timed in turns, and the pass with them, so that the
ratio is of one and the same minute. `packed` is what a device sends of its own numbers;
what it does with those of others depends on how many there are.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
from jax import lax
from record import add_record_option, row, write_result

from jaxdist.collectives.compress.codec import (
    Bf16Codec,
    BlockQuantizationCodec,
    Codec,
    SignCodec,
)
from jaxdist.collectives.compress.powersgd import orthonormalize, transpose_matmul
from jaxdist.collectives.compress.top_k_codec import TopKCodec
from jaxdist.collectives.compress.top_k_selection import top_k_threshold

NUMBERS = 1 << 22
SLOTS = NUMBERS // 100


def power(x):
    """One device's part of PowerSGD: both thin matrices, and what it sends."""
    matrix = x.reshape(2048, 2048)
    basis = orthonormalize(matrix @ matrix[:, :4])
    own = transpose_matmul(matrix, basis)
    return basis, own, basis @ own.T


def packed(codec: Codec):
    return lambda x: codec.encode(x[None])


def rows():
    return {
        "one pass, x * 1.5": lambda x: x * 1.5,
        "bf16, packed": packed(Bf16Codec()),
        "int8, packed": packed(BlockQuantizationCodec(dtype="int8")),
        "int4, packed": packed(BlockQuantizationCodec(dtype="int4")),
        "fp8, packed": packed(BlockQuantizationCodec(dtype="fp8")),
        "sign, packed": packed(SignCodec()),
        "threshold of 1 %": lambda x: top_k_threshold(x, SLOTS),
        "values and places of 1 %, packed": packed(TopKCodec(density=0.01)),
        "power, rank 4: P, R and P R^T": power,
        "library: lax.top_k of 1 %": lambda x: lax.top_k(jnp.abs(x), SLOTS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    add_record_option(parser)
    args = parser.parse_args()
    rounds = args.rounds
    x = jax.random.normal(jax.random.key(0), (NUMBERS,))
    runs = {name: jax.jit(run) for name, run in rows().items()}
    for run in runs.values():
        jax.block_until_ready(run(x))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run(x))
            seconds[name].append(time.perf_counter() - start)
    first, *_ = seconds.values()
    made = []
    for name, times in seconds.items():
        ratios = sorted(a / b for a, b in zip(times, first))
        middle = statistics.median(ratios)
        ms = 1e3 * statistics.median(times)
        inner = ratios[1:-1]  # an interrupted call is no figure of the code
        made.append(row(name, ms, "ms", figure="a call", n=rounds))
        made.append(row(name, middle, "", figure="passes", readings=inner, n=rounds))
        print(
            f"{name:34} {ms:8.2f} ms   {middle:6.2f} x  "
            f"({ratios[1]:.2f} to {ratios[-2]:.2f})"
        )
    if args.record:
        write_result("compress", made)


if __name__ == "__main__":
    main()
