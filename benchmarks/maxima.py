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

from jaxdist.layers.pool import max_over_windows
from jaxdist.layers.window import make_windows

ROUNDS = 15
CASES = {
    "VGG-16, narrow": ((12, 32, 32, 16), 2, 2, "VALID"),
    "VGG-16": ((8, 112, 112, 64), 2, 2, "VALID"),
    "ResNet-50": ((2, 112, 112, 64), 3, 2, 1),
    "AlexNet": ((4, 27, 27, 96), 3, 2, "VALID"),
    "GoogLeNet, a branch": ((8, 28, 28, 192), 3, 1, 1),
    "CosmoFlow": ((1, 32, 32, 32, 16), 2, 2, "VALID"),
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
    times = [[] for _ in calls]
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for row in rows():
        print(json.dumps(row) if asked.json else "  ".join(map(str, row.values())))


if __name__ == "__main__":
    main()
