"""What a step list says is what devices do: the sum, its bits, and its bytes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.algorithms.non_power_of_two import floor_power_of_two
from jaxdist.collectives.algorithms.registry import SCHEDULES, make_schedule
from jaxdist.collectives.algorithms.replay import simulate_schedule
from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.schedule_executor import run_schedule
from jaxdist.collectives.schedule_traffic import chunk_size, schedule_payload_bytes
from jaxdist.core.errors import BadInput

POWERS_ONLY = {"swing", "striped_halving_doubling"}
CASES = [
    (name, ranks)
    for name in SCHEDULES
    for ranks in (2, 3, 6, 8)
    if name not in POWERS_ONLY or ranks == floor_power_of_two(ranks)
]
SIXTEEN = [("ring", 16), ("swing", 16), ("two_level_halving", 16)]
# A node of these trees adds what its children send in one step, in either order.
ORDERED = set(SCHEDULES) - {"double_binary_tree"}


def mesh_of(**sizes):
    names, shape = tuple(sizes), tuple(sizes.values())
    devices = jax.devices()[: int(np.prod(shape))]
    kinds = (AxisType.Auto,) * len(names)
    return jax.make_mesh(shape, names, devices=devices, axis_types=kinds)


def mapped(function, mesh, check_vma=False):
    """Call a function of this device's row with rows for all devices."""
    rows = P(mesh.axis_names)
    each = jax.shard_map(
        lambda x: function(x[0])[None],
        mesh=mesh,
        in_specs=rows,
        out_specs=rows,
        check_vma=check_vma,
    )
    return jax.jit(each)


def compiled(steps, x, mesh):
    axes = mesh.axis_names
    return mapped(lambda v: run_schedule(steps, v, axes), mesh).lower(x).compile()


def normal(ranks, *shape, dtype=np.float32):
    return np.random.default_rng(ranks).normal(size=(ranks, *shape)).astype(dtype)


def replayed(steps, x):
    each = chunk_size(steps, x.shape[1])
    padded = np.zeros((steps.ranks, steps.chunks * each), x.dtype)
    padded[:, : x.shape[1]] = x
    end = simulate_schedule(steps, padded.reshape(steps.ranks, steps.chunks, each))
    return end.reshape(steps.ranks, -1)[:, : x.shape[1]]


@pytest.mark.parametrize(("name", "ranks"), CASES + SIXTEEN)
def test_devices_do_what_the_list_says(name, ranks):
    steps, mesh, x = make_schedule(name, ranks), mesh_of(data=ranks), normal(ranks, 37)
    program = compiled(steps, x, mesh)
    y = np.asarray(program(x))
    assert (y == y[0]).all()
    np.testing.assert_allclose(y[0], x.astype(float).sum(0), rtol=1e-5, atol=1e-5)
    if name in ORDERED:
        assert (y == replayed(steps, x)).all()
    moves = read_collectives(program.as_text(), mesh.shape)
    assert {(m.kind, m.axes) for m in moves} == {("collective-permute", ("data",))}
    assert all(m.bounded for m in moves)
    assert sum(m.payload for m in moves) == schedule_payload_bytes(steps, 37, 4)


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "halving_doubling"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_narrow_floats_travel_as_they_are_and_are_added_in_float32(name, dtype):
    steps, mesh = make_schedule(name, 4), mesh_of(data=4)
    x = jnp.asarray(normal(4, 9), dtype)
    program = compiled(steps, x, mesh)
    y = program(x)
    assert y.dtype == dtype
    assert (y == y[0]).all()
    each = float(jnp.finfo(dtype).eps)
    exact = np.asarray(x, np.float64)
    # Three additions in a row, each rounded.
    bound = 3 * each * np.abs(exact).sum(0)
    assert (np.abs(np.asarray(y[0], np.float64) - exact.sum(0)) <= bound).all()
    moves = read_collectives(program.as_text(), mesh.shape)
    assert sum(m.payload for m in moves) == schedule_payload_bytes(
        steps, 9, x.dtype.itemsize
    )


@pytest.mark.parametrize("dtype", ["int32", "uint8", "complex64"])
def test_other_numbers_are_summed(dtype):
    x = np.arange(4 * 5).reshape(4, 5).astype(dtype)
    y = compiled(make_schedule("ring", 4), x, mesh_of(data=4))(x)
    assert (y == x.sum(0, dtype=dtype)).all()


def test_float64_is_summed_in_float64():
    with jax.enable_x64(True):
        x = normal(4, 5, dtype=np.float64)
        y = compiled(make_schedule("halving_doubling", 4), x, mesh_of(data=4))(x)
        assert y.dtype == np.float64
        np.testing.assert_allclose(y[0], x.sum(0), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (), (1,), (2, 3)])
@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "parameter_server"])
def test_arrays_of_any_shape_are_summed(name, shape):
    x = np.ones((4, *shape), np.float32)
    y = compiled(make_schedule(name, 4), x, mesh_of(data=4))(x)
    assert y.shape == x.shape
    assert (y == 4).all()


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_not_finite_surfaces_on_every_rank(name):
    x = np.ones((4, 7), np.float32)
    x[1, 0], x[2, 3], x[0, 6], x[3, 6] = np.nan, np.inf, np.inf, -np.inf
    y = compiled(make_schedule(name, 4), x, mesh_of(data=4))(x)
    expected = [np.nan, 4, 4, np.inf, 4, 4, np.nan]
    np.testing.assert_array_equal(y, [expected] * 4)


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "two_level_ring"])
def test_several_axes_are_one_line_of_ranks(name):
    steps, mesh, x = make_schedule(name, 8), mesh_of(data=2, fsdp=4), normal(8, 11)
    program = compiled(steps, x, mesh)
    assert (np.asarray(program(x)) == replayed(steps, x)).all()
    moves = read_collectives(program.as_text(), mesh.shape)
    assert sum(m.payload for m in moves) == schedule_payload_bytes(steps, 11, 4)


def test_one_axis_of_a_mesh_is_summed_and_others_are_not():
    mesh, x = mesh_of(data=2, fsdp=3), normal(6, 4)
    y = mapped(lambda v: run_schedule(make_schedule("ring", 3), v, "fsdp"), mesh)(x)
    sums = x.reshape(2, 3, 4).sum(1, keepdims=True).repeat(3, 1).reshape(6, 4)
    np.testing.assert_allclose(y, sums, rtol=1e-6, atol=1e-6)


def test_a_rank_alone_has_the_sum():
    x = normal(1, 5)
    for name in SCHEDULES:
        assert (compiled(make_schedule(name, 1), x, mesh_of(data=1))(x) == x).all()


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("name", ["ring", "halving_doubling"])
def test_gradients_are_those_of_psum(name, check_vma):
    steps, mesh, x = make_schedule(name, 4), mesh_of(data=4), normal(4, 5)
    weights = jnp.asarray(normal(7, 5)[:4])

    def gradient(total, v):
        mine = weights[lax.axis_index("data")]
        return jax.grad(lambda v: jnp.vdot(mine, total(v)))(v)

    ours = partial(gradient, lambda v: run_schedule(steps, v, "data"))
    theirs = partial(gradient, lambda v: lax.psum(v, "data"))
    got = np.asarray(mapped(ours, mesh, check_vma)(x))
    assert (got == got[0]).all()
    np.testing.assert_allclose(got, mapped(theirs, mesh, check_vma)(x), rtol=1e-5)


@pytest.mark.parametrize("check_vma", [False, True])
def test_what_is_equal_on_all_ranks_can_be_summed(check_vma):
    mesh, steps = mesh_of(data=4), make_schedule("ring", 4)
    each = jax.shard_map(
        lambda x: run_schedule(steps, x, "data"),
        mesh=mesh,
        in_specs=P(),
        out_specs=P("data"),
        check_vma=check_vma,
    )
    assert (jax.jit(each)(jnp.arange(3.0)) == jnp.tile(4 * jnp.arange(3.0), 4)).all()


def test_batches_and_loops_and_recomputation_are_taken():
    steps, mesh, x = (
        make_schedule("two_level_ring", 4),
        mesh_of(data=4),
        normal(4, 3, 5),
    )
    total = jax.checkpoint(lambda v: run_schedule(steps, v, "data"))

    def looped(v):
        again = lax.scan(lambda _, row: (None, total(row)), None, v)[1]
        return jnp.stack([jax.vmap(total)(v), again])

    y = mapped(looped, mesh)(x)
    np.testing.assert_allclose(y, [[x.sum(0)] * 2] * 4, rtol=1e-5, atol=1e-5)


def test_large_arrays_are_summed_in_place():
    steps, size = make_schedule("ring", 4), 1 << 16
    program = compiled(steps, np.ones((4, size), np.float32), mesh_of(data=4))
    # A message, and the input, which the program may not overwrite.
    assert program.memory_analysis().temp_size_in_bytes <= 1.5 * 4 * size


def test_a_ring_has_as_many_permutes_for_eight_ranks_as_for_two():
    def permutes(ranks):
        x = normal(ranks, 16)
        text = compiled(make_schedule("ring", ranks), x, mesh_of(data=ranks)).as_text()
        return text.count(" collective-permute(")

    assert permutes(8) == permutes(2) == 2


@pytest.mark.parametrize(
    ("ranks", "dtype", "axis", "remedy"),
    [
        (8, "float32", "data", "ring(4)"),
        (4, "float32", "fsdp", "a mesh with this axis"),
        (4, "int4", "data", "int32"),
        (4, "bool", "data", "int32"),
        (4, "float4_e2m1fn", "data", "int32"),
    ],
)
def test_what_cannot_be_summed_is_refused(ranks, dtype, axis, remedy):
    steps, x = make_schedule("ring", ranks), jnp.zeros((4, 8), dtype)
    with pytest.raises(BadInput) as refused:
        mapped(lambda v: run_schedule(steps, v, axis), mesh_of(data=4)).lower(x)
    assert remedy in str(refused.value)
