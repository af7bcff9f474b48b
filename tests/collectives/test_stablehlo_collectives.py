"""Collectives of a lowered program: kinds, axes, dtypes as written, loops."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.stablehlo_collectives import read_stablehlo

MESH = {"data": 4, "tensor": 2}


@pytest.fixture(scope="module")
def mesh():
    kinds = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), tuple(MESH), kinds, devices=jax.devices()[:8])


@pytest.fixture
def lowered(mesh):
    def lower(local, *args):
        each = jax.shard_map(
            local, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
        )
        return jax.jit(each).lower(*args)

    return lower


@pytest.fixture
def read(lowered):
    def moves(local, *args):
        return read_stablehlo(lowered(local, *args).compiler_ir("stablehlo"), MESH)

    return moves


def found(moves):
    return [
        (m.kind, m.axes, m.group_size, m.payload, m.trip_count, m.bounded)
        for m in moves
    ]


def gather(x):
    return lax.all_gather(x, "data", tiled=True)


@pytest.mark.parametrize(
    ("local", "kind", "axes", "payload"),
    [
        (lambda x: lax.psum(x, "data"), "all-reduce", ("data",), 96),
        (lambda x: lax.psum(x, ("data", "tensor")), "all-reduce", tuple(MESH), 96),
        (gather, "all-gather", ("data",), 384),
        (
            lambda x: lax.psum_scatter(x, "tensor", tiled=True),
            "reduce-scatter",
            ("tensor",),
            48,
        ),
        (
            lambda x: lax.all_to_all(x, "data", 0, 0, tiled=True),
            "all-to-all",
            ("data",),
            96,
        ),
        (
            lambda x: lax.ppermute(x, "tensor", [(0, 1), (1, 0)]),
            "collective-permute",
            ("tensor",),
            96,
        ),
    ],
)
def test_every_kind_is_what_the_compiler_makes_of_it(
    lowered, local, kind, axes, payload
):
    low = lowered(local, jnp.zeros((8, 3)))
    (written,) = read_stablehlo(low.compiler_ir("stablehlo"), MESH)
    (made,) = read_collectives(low.compile().as_text(), MESH)
    assert (written.kind, written.axes, written.payload) == (kind, axes, payload)
    for name in "kind", "axes", "group_size", "payload", "wire_bytes", "trip_count":
        assert getattr(written, name) == getattr(made, name), name


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (jnp.bfloat16, 2),
        (jnp.float8_e4m3fn, 1),
        (jnp.int4, 0.5),
        (jnp.bool_, 1),
        (jnp.uint16, 2),
        (jnp.complex64, 8),
    ],
)
def test_dtypes_are_as_written(read, dtype, size):
    (move,) = read(gather, jnp.zeros((8, 4), dtype))
    assert move.payload == 4 * 32 * size


def test_a_scan_counts_every_trip(read):
    def local(x):
        def trip(x, _):
            return lax.psum(x, "data"), None

        return lax.scan(trip, x, None, length=5)[0]

    assert found(read(local, jnp.zeros(6))) == [
        ("all-reduce", ("data",), 4, 5 * 24, 5, True)
    ]


def test_loops_in_loops_multiply(read):
    def inner(_, x):
        return lax.fori_loop(3, 10, lambda _, x: lax.psum(x, "tensor"), x)

    (move,) = read(lambda x: lax.fori_loop(0, 2, inner, x), jnp.zeros(6))
    assert (move.trip_count, move.payload, move.bounded) == (14, 14 * 24, True)


def test_a_loop_of_unknown_length_counts_once_and_says_so(read):
    def local(x):
        return lax.while_loop(lambda x: x.sum() < 3, lambda x: lax.psum(x, "data"), x)

    assert found(read(local, jnp.zeros(6))) == [
        ("all-reduce", ("data",), 4, 24, 1, False)
    ]


def test_a_bound_that_is_an_argument_is_unknown(read):
    def local(x, n):
        return lax.fori_loop(0, n, lambda _, x: lax.psum(x, "data"), x)

    (move,) = read(local, jnp.zeros(6), jnp.int32(4))
    assert (move.trip_count, move.bounded) == (1, False)


def test_a_condition_of_two_parts_is_no_known_length(read):
    def local(x):
        def going(state):
            return (state[0] < 4) & (lax.psum(state[1], "data").sum() < 9)

        return lax.while_loop(going, lambda s: (s[0] + 1, s[1]), (0, x))

    (move,) = read(local, jnp.zeros(6))
    assert (move.trip_count, move.bounded) == (1, False)


def test_of_branches_the_one_that_moves_most_counts(read):
    def local(x):
        few, many = (lambda x: lax.psum(x[:1], "data") + x), (lambda x: gather(x)[:8])
        return lax.cond(x.sum() > 0, few, many, x)

    (move,) = read(local, jnp.zeros(8))
    assert move.kind == "all-gather"


def test_the_line_of_python_is_named(read):
    (move,) = read(gather, jnp.zeros((8, 4)))
    lines = Path(__file__).read_text().splitlines()
    line = lines.index('    return lax.all_gather(x, "data", tiled=True)') + 1
    assert move.source_location == f"{__file__}:{line}"


def test_one_device_moves_nothing():
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,), devices=jax.devices()[:1])
    step = jax.shard_map(
        lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=P(), out_specs=P()
    )
    low = jax.jit(step).lower(jnp.zeros(4))
    assert read_stablehlo(low.compiler_ir("stablehlo"), {"data": 1}) == ()
