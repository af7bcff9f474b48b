"""Law 2: every way to sum is exact where it can be, keeps what it does not send, and
lets nothing that is not finite pass for a number."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.compress.hierarchical import HierarchicalAllReduce
from jaxdist.collectives.compress.powersgd import PowerSGD
from jaxdist.collectives.compress.random_k import RandomK
from jaxdist.collectives.compress.shared_top_k import SharedTopK
from jaxdist.collectives.compress.sparse import OkTopK
from jaxdist.collectives.compress.top_k_allgather import TopKAllGather
from jaxdist.collectives.compress.top_k_codec import TopKCodec
from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.primitives import all_reduce, psum, psum_scatter
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS

pytestmark = pytest.mark.laws

WAYS = [name for name in ALL_REDUCE_ALGORITHMS if name not in SCHEDULES]
FLAT = [name for name in WAYS if name != "hierarchical"]
SCATTER = ["exact", "bf16", "fp8", "int8", "int4", "sign", "random_k", "sparse"]
OFTEN = ("int8", "sign", "sparse", "power", "ring")


def rarely(names):
    """Ways of which a law is held in the full matrix alone, but for a few."""
    return [
        pytest.param(name, marks=[] if name in OFTEN else pytest.mark.slow)
        for name in names
    ]


LOSSLESS = {
    "random_k": RandomK(density=1.0),
    "top_k": TopKAllGather(codec=TopKCodec(density=1.0)),
    "sparse": OkTopK(codec=TopKCodec(density=1.0)),
    "aligned": SharedTopK(density=1.0),
    "hierarchical": HierarchicalAllReduce(
        inter_host=TopKAllGather(codec=TopKCodec(density=1.0))
    ),
}
# Relative to the largest number that is summed, a device.
ROUNDING = {"bf16": 2**-8, "fp8": 2**-4, "int8": 1 / 127, "int4": 1 / 7}


def mesh_of(devices, names=("data",)):
    shape = (devices,) if len(names) == 1 else (devices // 2, 2)
    few = jax.devices()[:devices]
    return jax.make_mesh(
        shape, names, devices=few, axis_types=(AxisType.Auto,) * len(names)
    )


def on(mesh, run, x, outs=None, check=False):
    """Run on one row of x a device; by default everything comes back, a row a device."""
    names = mesh.axis_names
    mapped = jax.shard_map(
        lambda rows: (
            jax.tree.map(lambda y: y[None], run(rows[0]))
            if outs is None
            else run(rows[0])
        ),
        mesh=mesh,
        in_specs=P(names),
        out_specs=P(names) if outs is None else outs,
        check_vma=check,
    )
    return jax.jit(mapped)(x)


def parts(mesh, via, x, step=0):
    """Return total and sent of every device, in float64."""

    def run(row):
        found = all_reduce([row], mesh.axis_names, via, step=step)
        return found.total[0], found.contributions[0]

    return tuple(np.asarray(y, np.float64) for y in on(mesh, run, x))


def values(devices, shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((devices, *shape)).astype(dtype)


def names_for(via):
    return ("data", "fsdp") if via == "hierarchical" else ("data",)


@pytest.mark.parametrize("via", LOSSLESS)
@pytest.mark.parametrize("size", [1, 300])
def test_with_all_numbers_sent_a_sum_is_psum(via, size):
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype is np.float64):
            x = values(4, (size,), dtype)
            total, sent = parts(mesh_of(4, names_for(via)), LOSSLESS[via], x)
            near = 8 * np.finfo(dtype).eps * np.abs(x).sum(0)
            assert (np.abs(total - x.astype(np.float64).sum(0)) <= near).all()
            assert np.abs(sent.sum(0) - total[0]).max() <= near.max()


def test_at_full_rank_power_is_psum():
    x = values(4, (12, 5))
    total, _ = parts(mesh_of(4), PowerSGD(rank=5), x)
    assert np.abs(total - x.astype(np.float64).sum(0)).max() < 1e-5


@pytest.mark.parametrize("via", ["bf16", "int8"])
def test_numbers_that_fit_are_summed_exactly(via):
    x = np.random.default_rng(0).integers(-127, 128, (2, 512)).astype(np.float32)
    x[:, ::256] = 127  # the scale of every block is 1
    x = np.where(np.abs(x.sum(0)) <= 127, x, [x[0], -x[0]])
    total, sent = parts(mesh_of(2), via, x)
    assert (total[0] == x.sum(0))[x.sum(0) % 2 == 0].all() or via == "int8"
    assert (sent.sum(0) == total[0]).all()


@settings(max_examples=6)
@given(data=st.data())
@pytest.mark.parametrize("via", FLAT)
def test_totals_are_alike_and_what_all_sent_is_the_total(via, data):
    devices = data.draw(st.sampled_from([2, 3, 8]))
    shape = data.draw(st.sampled_from([(1,), (7,), (64, 9), (1031,)]))
    dtype = data.draw(st.sampled_from([np.float32, np.float16]))
    if via == "power" and len(shape) > 1 and min(shape) < 4:
        shape = (64, 9)
    x = values(devices, shape, dtype, data.draw(st.integers(0, 99)))
    total, sent = parts(mesh_of(devices), via, x, step=data.draw(st.integers(0, 9)))
    assert (total == total[0]).all()
    scale = np.abs(x.astype(np.float64)).sum(0).max()
    if via != "sign":  # a vote is not a sum: what is not sent stays with each device
        near = 8 * devices * np.finfo(dtype).eps * scale
        assert np.abs(sent.sum(0) - total[0]).max() <= near
    if via in ROUNDING:
        exact = x.astype(np.float64).sum(0)
        assert np.abs(total[0] - exact).max() <= (devices + 1) * scale * ROUNDING[via]


@pytest.mark.parametrize("devices", [2, 3, 5])
@pytest.mark.parametrize("step", [0, 1])
def test_sign_is_the_exact_majority(devices, step):
    x = values(devices, (100,))
    total, _ = parts(mesh_of(devices), "sign", x, step)
    votes = np.where(x >= 0, 1, -1).sum(0)
    # Ties go to even places and odd places in turn, of the row that is summed.
    row = -(-100 // devices)
    turn = (np.arange(100) % row + step) % 2
    assert (
        np.sign(total[0]) == np.where(votes == 0, 1 - 2 * turn, np.sign(votes))
    ).all()


@pytest.mark.parametrize(
    "bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow), -np.inf]
)
@pytest.mark.parametrize("via", [name for name in WAYS if name != "exact"])
def test_what_is_not_finite_surfaces_on_every_device(via, bad):
    x = values(4, (60, 9))
    x[2, 17, 3] = bad
    total, _ = parts(mesh_of(4, names_for(via)), via, x)
    assert not np.isfinite(total[:, 17, 3]).any()
    assert (np.isnan(total) == np.isnan(total[0])).all()


@pytest.mark.parametrize("via", [*WAYS, "ring"])
def test_nothing_is_summed_of_nothing(via):
    total, sent = parts(mesh_of(4, names_for(via)), via, values(4, (0,)))
    assert total.shape == sent.shape == (4, 0)


@pytest.mark.parametrize("check", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("via", [*WAYS, "ring"])
def test_a_sum_is_the_same_everywhere_and_its_gradient_is_that_of_psum(via, check):
    mesh, x = mesh_of(4, names_for(via)), values(4, (40, 8))
    axes = mesh.axis_names

    def through(sum_of):
        def loss(row, weight):
            return (sum_of(jnp.sin(row)) * weight).sum()

        weight = jnp.asarray(values(1, (40, 8), seed=1)[0])
        return on(mesh, jax.grad(lambda row: loss(row, weight)), x, P(axes), check)

    # Declared the same along the axes, or this would be refused where it is checked.
    assert on(mesh, lambda row: psum(row, axes, via), x, P(), check).shape == (40, 8)
    ours, exact = (
        through(lambda y: psum(y, axes, via)),
        through(lambda y: lax.psum(y, axes)),
    )
    assert np.abs(np.asarray(ours - exact)).max() < 1e-5


@pytest.mark.parametrize("check", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("via", rarely([*WAYS, "ring"]))
def test_a_sum_can_be_mapped_scanned_and_computed_again(via, check):
    mesh, x = mesh_of(4, names_for(via)), values(4, (2, 40, 8))
    axes = mesh.axis_names
    each = [
        on(mesh, lambda row, i=i: psum(row[i], axes, via), x, P(), check)
        for i in range(2)
    ]
    mapped = on(mesh, jax.vmap(lambda row: psum(row, axes, via)), x, P(), check)

    def scanned(row):
        return lax.scan(lambda c, y: (c, psum(y, axes, via)), 0.0, row)[1]

    looped = on(mesh, scanned, x, P(), check)
    again = on(mesh, jax.checkpoint(lambda row: psum(row[0], axes, via)), x, P(), check)
    for i in range(2):
        assert np.abs(np.asarray(mapped[i] - each[i])).max() < 1e-5
        assert np.abs(np.asarray(looped[i] - each[i])).max() < 1e-5
    assert np.abs(np.asarray(again - each[0])).max() < 1e-5


@pytest.mark.parametrize("via", SCATTER)
def test_the_parts_of_a_scattered_sum_are_those_of_the_sum(via):
    x = values(4, (40, 3))
    part = on(mesh_of(4), lambda row: psum_scatter(row, "data", via), x, P("data"))
    exact = x.sum(0)
    if via in ("exact", *ROUNDING):
        near = 5 * np.abs(x).sum(0).max() * ROUNDING.get(via, 1e-6)
        assert np.abs(np.asarray(part) - exact).max() <= near
    turned = on(
        mesh_of(4),
        lambda row: psum_scatter(row.T, "data", via, dim=1),
        x,
        P(None, "data"),
    )
    assert turned.shape == (3, 40)


@pytest.mark.parametrize(
    ("via", "devices"),
    [
        pytest.param(via, n, marks=[pytest.mark.slow] if slow else [])
        for names, slow in ((WAYS, False), (SCHEDULES, True))
        for via in names
        for n in (2, 8)
        if (via, n) != ("hierarchical", 2)
    ],
)
def test_bytes_by_formula_are_those_of_the_program(via, devices):
    mesh = mesh_of(devices, names_for(via))
    assert_formula(mesh, via, [(130, 6), (11,), (400,)], "float32")
    with jax.enable_x64():
        assert_formula(mesh, via, [(5,)], "float64")


def assert_formula(mesh, via, shapes, dtype):
    axes = mesh.axis_names
    rows = [jax.ShapeDtypeStruct((mesh.size, *shape), dtype) for shape in shapes]

    def run(rows):
        return psum([row[0] for row in rows], axes, via)

    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=(P(axes),), out_specs=P(), check_vma=False
    )
    text = jax.jit(mapped).lower(rows).compile().as_text()
    found, said = Counter(), Counter()
    for move in read_collectives(text, dict(mesh.shape)):
        found[move.kind, move.axes] += move.payload
    for payload in ALL_REDUCE_ALGORITHMS[via].payloads(
        shapes, jnp.dtype(dtype), dict(mesh.shape)
    ):
        said[payload.kind, payload.axes] += payload.payload_bytes
    assert found == said


def test_bytes_of_sparse_sums_over_sixteen_devices_are_those_of_the_program():
    assert_formula(mesh_of(16), "sparse", [(1 << 16,)], "float32")
    assert_formula(mesh_of(16), "top_k", [(1 << 16,)], "float32")


@pytest.mark.parametrize("via", FLAT)
def test_after_a_thousand_steps_replicas_are_bitwise_equal(via):
    """Devices with gradients of their own move their own weights by the sums."""

    def run(row):
        def step(carry, i):
            weights, left, memory = carry
            grads = jnp.sin(row * (1 + i.astype(row.dtype))) - 0.1 * weights
            found = all_reduce([grads + left], "data", via, memory, i)
            left = grads + left - found.contributions[0]
            return (weights + 0.01 * found.total[0], left, found.state), None

        zero = jnp.zeros_like(row)
        begun = ALL_REDUCE_ALGORITHMS[via].init_state([row.shape])
        return lax.scan(step, (zero, zero, begun), jnp.arange(1000))[0][0]

    weights = np.asarray(on(mesh_of(4), run, values(4, (24, 8))))
    assert np.isfinite(weights).all()
    assert (weights == weights[0]).all()


@pytest.mark.parametrize("via", SCATTER[1:])
def test_bytes_of_a_scattered_sum_are_those_of_the_program(via):
    mesh, x = mesh_of(4), jax.ShapeDtypeStruct((4, 404), "float32")
    mapped = jax.shard_map(
        lambda row: psum_scatter(row[0], "data", via),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
    )
    text = jax.jit(mapped).lower(x).compile().as_text()
    found = [
        (m.kind, m.axes, m.payload) for m in read_collectives(text, dict(mesh.shape))
    ]
    said = [
        (p.kind, p.axes, p.payload_bytes)
        for p in ALL_REDUCE_ALGORITHMS[via].reduce_scatter_payloads(101, 4, {"data": 4})
    ]
    assert found == said


def test_a_sparse_sum_stays_below_six_k_words_while_gathering_grows():
    numbers, k = 1 << 24, (1 << 24) // 100
    for devices in (8, 16, 64, 256, 1024):
        sizes = {"data": devices}
        sparse = sum(
            p.payload_bytes
            for p in ALL_REDUCE_ALGORITHMS["sparse"].payloads(
                [(numbers,)], jnp.float32, sizes
            )
        )
        gathered = sum(
            p.payload_bytes
            for p in ALL_REDUCE_ALGORITHMS["top_k"].payloads(
                [(numbers,)], jnp.float32, sizes
            )
        )
        assert sparse * (devices - 1) / devices <= 1.05 * 6 * k * 4
        assert gathered >= devices * 8 * k
