"""Maximum pooling, as `lax.reduce_window` has it and as `jaxdist.layers` does.

    python benchmarks/maxima.py [--json]

Milliseconds of a forward pass, and of one with its backward pass, behind a ReLU as
networks have it; the least of the rounds, in turn, and what the two make of the same
numbers. The shapes are those of layers of this package.
"""

import argparse
import json
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from flax import nnx
from record import add_record_option, row, write_result

from jaxdist.layers.pool import max_over_windows
from jaxdist.layers.window import make_windows

ROUNDS = 15
CASES: dict[str, tuple[tuple[int, ...], int, int, str | int]] = {
    "VGG-16, narrow, 12 x 32 x 32 x 16, 2 x 2": (
        (12, 32, 32, 16),
        2,
        2,
        "VALID",
    ),
    "VGG-16, 8 x 112 x 112 x 64, 2 x 2": ((8, 112, 112, 64), 2, 2, "VALID"),
    "ResNet-50, 2 x 112 x 112 x 64, 3 x 3, stride 2": ((2, 112, 112, 64), 3, 2, 1),
    "AlexNet, 4 x 27 x 27 x 96, 3 x 3, stride 2": ((4, 27, 27, 96), 3, 2, "VALID"),
    "GoogLeNet, 8 x 28 x 28 x 192, 3 x 3, stride 1": (
        (8, 28, 28, 192),
        3,
        1,
        1,
    ),
    "CosmoFlow, 32 x 32 x 32 x 16, 2 x 2 x 2": ((1, 32, 32, 32, 16), 2, 2, "VALID"),
}
"""Shape of the input, extent of the window, stride and padding."""


def at_once(x, windows):
    """Pool as flax does, by JAX's own operation."""
    extents, strides, pads = zip(*((w.extent, w.stride, w.pads) for w in windows))
    return nnx.max_pool(x, extents, strides, pads)


def by_dims(x, windows):
    """Pool as `MaxPool` does."""
    return max_over_windows(x, windows, -jnp.inf)


def programs(way, windows):
    """Return the forward pass, and both."""

    def forward(x):
        return way(jax.nn.relu(x), windows)

    def both(x):
        y, back = jax.vjp(forward, x)
        return back(y)[0]

    return jax.jit(forward), jax.jit(both)


def milliseconds(calls, x):
    """Return the least time of each call, made in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call(x))
            own.append(time.perf_counter() - start)
    return [round(1e3 * min(own), 3) for own in times]


def rows():
    """Yield a row a case."""
    for name, (shape, extent, stride, padding) in CASES.items():
        windows = make_windows(shape[1:-1], extent, stride, padding)
        x = jax.random.normal(jax.random.key(0), shape)
        calls = [p for way in (at_once, by_dims) for p in programs(way, windows)]
        made = [call(x) for call in calls]
        differ = max(float(abs(made[i] - made[i + 2]).max()) for i in (0, 1))
        jax_s, jax_both, ours_s, ours_both = milliseconds(calls, x)
        yield {
            "case": name,
            "forward_ms": [jax_s, ours_s],
            "both_ms": [jax_both, ours_both],
            "times": round(jax_both / ours_both, 1),
            "differ": differ,
        }


def result_rows(measured):
    """Yield the rows that are recorded."""
    for one in measured:
        for name, key in (("forward", "forward_ms"), ("both passes", "both_ms")):
            for way, ms in zip(("JAX", "jaxdist"), one[key], strict=True):
                yield row(one["case"], ms, "ms", figure=f"{name}: {way}", n=ROUNDS)
        ratio = "both passes: JAX over jaxdist"
        yield row(one["case"], one["times"], "", figure=ratio, n=ROUNDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    add_record_option(parser)
    asked = parser.parse_args()
    measured = []
    for one in rows():
        measured.append(one)
        print(json.dumps(one) if asked.json else "  ".join(map(str, one.values())))
    if asked.record:
        write_result("maxima", list(result_rows(measured)))


if __name__ == "__main__":
    main()
