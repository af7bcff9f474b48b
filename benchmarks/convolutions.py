"""Gradients of convolutions, as JAX derives them and as `jaxdist.layers` writes them.

    python benchmarks/convolutions.py [--json]

Each is timed in the entry computation and in the body of a scan, where microbatches and
the stages of a pipeline are. Milliseconds a convolution, the least of the rounds; the
shapes are those of layers of this package, small enough for a CPU.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax
from record import add_record_option, row, write_result

from jaxdist.layers.conv_gradients import convolve
from jaxdist.layers.halo import halo_conv
from jaxdist.layers.window import make_windows

TURNS, ROUNDS = 10, 5
WAYS: dict[str, Callable[..., jax.Array]] = {"jax": convolve, "jaxdist": halo_conv}
CASES = {
    "3x3, 64 x 8 x 8 x 16": ((64, 8, 8, 16), (3, 3), 16),
    "3x3 stride 2, 64 x 16 x 16 x 16": ((64, 16, 16, 16), (3, 3), 32, 2),
    "1x1 stride 2, the same images": ((64, 16, 16, 16), (1, 1), 32, 2),
    "7x7 stride 2, 16 x 32 x 32 x 3": ((16, 32, 32, 3), (7, 7), 16, 2),
    "5x5 in 2 groups, 16 x 13 x 13 x 32": ((16, 13, 13, 32), (5, 5), 32, 1, 2),
    "3x3x3, 4 x 8 x 8 x 8 x 16": ((4, 8, 8, 8, 16), (3, 3, 3), 16),
    "3x3x3 stride 2, the same volumes": ((4, 8, 8, 8, 16), (3, 3, 3), 16, 2),
}
"""Shape of the input, taps, features; a stride and groups where they are not 1."""


def gradient(way, wanted, shape, taps, features, stride=1, groups=1):
    """Return a gradient as a function of three arrays, and the arrays."""
    windows = make_windows(shape[1:-1], taps, stride, "SAME")
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (
        shape,
        (*taps, shape[-1] // groups, features),
        (shape[0], *(w.outputs for w in windows), features),
    )

    def grad(x, kernel, dy):
        given = [x, kernel]

        def one(value):
            used = [*given[:wanted], value, *given[wanted + 1 :]]
            return WAYS[way](*used, windows, groups)

        return jax.vjp(one, given[wanted])[1](dy)[0]

    return grad, [jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]


def looped(grad):
    """Return the gradient summed over turns, none of them the same to the compiler."""

    def total(*arrays):
        def turn(carried, _):
            # XLA keeps 0 times a float, which may be NaN: so each turn depends on the
            # last one, and is not moved out of the loop.
            other = 1 + 0 * carried.sum()
            return carried + grad(*(other * x for x in arrays)), None

        return lax.scan(turn, jnp.zeros_like(grad(*arrays)), length=TURNS)[0]

    return total


def milliseconds(function, arrays, times):
    run = jax.jit(function)
    jax.block_until_ready(run(*arrays))
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready(run(*arrays))
        seconds.append(time.perf_counter() - start)
    return 1e3 * min(seconds) / times


def result_rows(measured):
    """Yield the rows that are recorded."""
    places = {"plain": "outside", "loop": "in a loop"}
    for one in measured:
        for way, said in (("jax", "JAX"), ("jaxdist", "jaxdist")):
            case = f"{one['case']}, to its {one['gradient']}"
            figure = f"{places[one['place']]}: {said}"
            yield row(case, one[way], "ms", figure=figure, n=ROUNDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    add_record_option(parser)
    args = parser.parse_args()
    as_json = args.json
    if not as_json:
        print(f"{'ms':34} {'gradient to':11} {'where':6}", *(f"{w:>8}" for w in WAYS))
    rows = []
    for case, how in CASES.items():
        for wanted, name in enumerate(("input", "kernel")):
            for place in ("plain", "loop"):
                one = {"case": case, "gradient": name, "place": place}
                for way in WAYS:
                    grad, arrays = gradient(way, wanted, *how)
                    if place == "loop":
                        one[way] = milliseconds(looped(grad), arrays, TURNS)
                    else:
                        one[way] = milliseconds(grad, arrays, 1)
                rows.append(one)
                if not as_json:
                    figures = (f"{one[way]:8.2f}" for way in WAYS)
                    print(f"{case:34} {name:11} {place:6}", *figures, flush=True)
    if as_json:
        print(json.dumps(rows))
    if args.record:
        write_result("convolutions", list(result_rows(rows)))


if __name__ == "__main__":
    main()
