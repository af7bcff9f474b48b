"""Compressed gradients: exact where all is sent, and nothing is lost where it is not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.models.config import ModelConfig
from jaxdist.partition import audit
from jaxdist.partition.gradient_buckets import without_compression
from jaxdist.train.nonfinite import skip_nonfinite
from jaxdist.train.program import compile_program, initial_state, trace_train_step

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

NETWORK = ModelConfig(name="resnet8", width=4, dropout=0.2)
ALL = {
    "random_k": ReductionConfig(
        algorithm="random_k", density=1.0, min_compressed_elements=0
    ),
    "top_k": ReductionConfig(algorithm="top_k", density=1.0, min_compressed_elements=0),
    "sparse": ReductionConfig(
        algorithm="sparse", density=1.0, min_compressed_elements=0
    ),
    "aligned": ReductionConfig(
        algorithm="aligned", density=1.0, min_compressed_elements=0
    ),
    "small buckets": ReductionConfig(
        algorithm="top_k", density=1.0, min_compressed_elements=0, bucket_mib=0.001
    ),
}
MESHES = {
    "data x spatial_h x idle": {
        "data": 2,
        "spatial_h": 2,
        "replica": 2,
        "replicated_axes": ("replica",),
    },
    "data x fsdp": {"data": 2, "fsdp": 2},
    "data x fsdp, zero 1": {"data": 2, "fsdp": 2, "zero": 1},
    "data x tensor": {"data": 2, "tensor": 2},
}
LOSSY = (
    "bf16",
    "fp8",
    "int8",
    "int4",
    "random_k",
    "top_k",
    "sparse",
    "aligned",
    "power",
)

RANKS = "power, ranks of parts"


def rarely(cases, *often):
    """Cases of the full matrix, but for those named."""
    return [
        pytest.param(case, id=name, marks=[] if name in often else pytest.mark.slow)
        for name, case in cases.items()
    ]


@pytest.mark.parametrize("reduce", rarely(ALL, "sparse"))
def test_with_all_numbers_sent_a_step_is_that_of_one_device(
    assert_equal_one_device, reduce
):
    assert_equal_one_device(NETWORK, {"data": 4, "reduce": reduce})


@pytest.mark.parametrize("mesh", rarely(MESHES, "data x tensor"))
def test_in_every_mesh(assert_equal_one_device, mesh):
    assert_equal_one_device(NETWORK, {**mesh, "reduce": ALL["sparse"]})


def test_over_two_levels(assert_equal_one_device):
    reduce = ReductionConfig(
        algorithm="hierarchical", density=1.0, min_compressed_elements=0
    )
    assert_equal_one_device(NETWORK, {"data": 2, "spatial_h": 2, "reduce": reduce})


@pytest.mark.parametrize(
    "via", rarely({via: via for via in (*LOSSY, RANKS)}, "int8", "power")
)
@pytest.mark.parametrize("mesh", rarely({"data": {"data": 4}, **MESHES}, "data"))
def test_what_is_sent_and_what_is_left_are_the_gradient(parts, via, mesh):
    """One step of momentum leaves the sum that was used in the optimizer's state."""
    config = dataclasses.replace(NETWORK, width=8)
    ranks = ("block2:1", "head:3") if via == RANKS else ()
    via = via.partition(",")[0]
    reduce = ReductionConfig(
        algorithm=via, density=0.05, rank=2, ranks=ranks, min_compressed_elements=0
    )
    with jax.enable_x64():
        task = parts.make_task(config, jnp.float64)
        batch, state = parts.make_batch(config, jnp.float64, 16), parts.make_state(task)
        exact = jax.jit(lambda s, b: parts.one_device(task, s, b))(state, batch)[2]
        new = step(parts, task, {**mesh, "reduce": reduce}, state, batch)
        used, wanted = (jax.tree.leaves(x[0].trace) for x in (new.opt, exact))
        names = [
            leaf.name for leaf in parts.layout_of(task, mesh, batch).param_shardings
        ]
        assert new.feedback.residual
        for name, got, want in zip(names, used, wanted, strict=True):
            left = new.feedback.residual.get(name, jnp.zeros((1, *want.shape)))
            assert (
                np.abs(got + left.sum(0) - want).max() <= 1e-6 * np.abs(want).max()
            ), name


@pytest.mark.parametrize(
    "codec", rarely({c: c for c in ("int8", "bf16", "int4")}, "int8")
)
def test_shared_parameters_in_fewer_bits_are_those_that_were_packed(parts, codec):
    """As on one device with the parameters that the messages say."""
    with jax.enable_x64():
        task = parts.make_task(NETWORK, jnp.float64)
        batch, state = (
            parts.make_batch(NETWORK, jnp.float64, 16),
            parts.make_state(task),
        )
        axes = {"fsdp": 4, "reduce": ReductionConfig(all_gather=codec)}
        new = step(parts, task, axes, state, batch)
        layout = parts.layout_of(task, axes, batch)
        leaves, tree = jax.tree.flatten(state.params)
        said = [
            packed(x, dim, layout.reduction.gather_compressor)
            if x.ndim > 1 and dim is not None
            else x
            for x, dim in zip(leaves, layout.fsdp_dims, strict=True)
        ]
        there = dataclasses.replace(state, params=jax.tree.unflatten(tree, said))
        want = jax.jit(lambda s, b: parts.one_device(task, s, b))(there, batch)[2]
        traces = ((), (), new.opt[0].trace), ((), (), want[0].trace)
        parts.assert_leaves_equal(*traces, 1e-9)


def packed(x, dim, codec):
    """A parameter of four shards along a dim, as its messages say it."""
    front = jnp.moveaxis(x, dim, 0)
    rows = front.reshape(4, -1)
    read = codec.decode(codec.encode(rows), rows.shape[1], rows.dtype)
    return jnp.moveaxis(read.reshape(front.shape), 0, dim)


@pytest.mark.parametrize("via", rarely({v: v for v in ("int8", "bf16")}, "int8"))
def test_shared_gradients_in_fewer_bits_are_near(parts, via):
    task = parts.make_task(NETWORK, jnp.float32)
    batch, state = parts.make_batch(NETWORK, jnp.float32, 16), parts.make_state(task)
    axes = {"data": 2, "fsdp": 4, "zero": 1}
    near = step(
        parts,
        task,
        {**axes, "reduce": ReductionConfig(reduce_scatter=via)},
        state,
        batch,
    )
    exact = step(parts, task, axes, state, batch)
    for a, b in zip(
        *(jax.tree.leaves(s.opt[0].trace) for s in (near, exact)), strict=True
    ):
        assert jnp.linalg.norm(a - b) <= 0.1 * jnp.linalg.norm(b)


def step(parts, task, axes, state, batch, times=1):
    where = parts.layout_of(task, axes, batch)
    program = compile_program(where)
    begun = initial_state(where)
    places = jax.tree.map(lambda x: x.sharding, where.state)
    given = dataclasses.replace(jax.tree.map(np.array, state), feedback=begun.feedback)
    laid = jax.device_put(jax.tree.map(np.array, batch), program.batch_shardings)
    now = jax.device_put(given, places)
    for number in range(1, times + 1):
        now, _ = program.run(number, now, laid)
    parts.assert_copies_equal(now)
    return now


@pytest.mark.parametrize(
    "via", rarely({name: name for name in ("ring", "double_binary_tree")}, "ring")
)
def test_by_a_step_list(assert_equal_one_device, via):
    reduce = ReductionConfig(algorithm=via, min_compressed_elements=0)
    assert_equal_one_device(NETWORK, {"data": 4, "reduce": reduce})


def test_a_warm_up_sums_exactly_and_leaves_nothing(parts):
    task = parts.make_task(NETWORK, jnp.float32)
    batch, state = parts.make_batch(NETWORK, jnp.float32, 16), parts.make_state(task)
    asked = ReductionConfig(algorithm="int4", min_compressed_elements=0, warmup_steps=1)
    warm = step(parts, task, {"data": 4, "reduce": asked}, state, batch)
    exact = step(parts, task, {"data": 4}, state, batch)
    for one, other in zip(jax.tree.leaves(warm.params), jax.tree.leaves(exact.params)):
        assert (one == other).all()
    assert not any(x.any() for x in jax.tree.leaves(warm.feedback))


@pytest.mark.parametrize(
    "via", rarely({via: via for via in ("int4", "power", "sparse")}, "power")
)
def test_the_program_of_a_warm_up_is_held_against_the_plan(parts, via):
    task = parts.make_task(NETWORK, jnp.float32)
    batch = parts.make_batch(NETWORK, jnp.float32, 16)
    asked = ReductionConfig(
        algorithm=via,
        rank=2,
        min_compressed_elements=0,
        warmup_steps=1,
        bucket_mib=0.004,
    )
    layout = parts.layout_of(task, {"data": 4, "reduce": asked}, batch)
    assert len(layout.reduction.buckets) > 1
    assert compile_program(layout).differences == ()
    wrong = without_compression(layout.reduction)
    wrong = dataclasses.replace(wrong, buckets=wrong.buckets[1:])
    ledger = layout.ledger.with_reduction(wrong, layout.param_shardings)
    program = (
        trace_train_step(layout, without_compression(layout.reduction))
        .lower()
        .compile()
    )
    moves = read_collectives(program.as_text(), dict(layout.mesh.shape))
    assert list(audit.find_differences(moves, ledger))


MOVING = {
    "warm-up of top_k": ReductionConfig(
        algorithm="top_k", momentum=0.9, warmup_steps=3
    ),
    "warm-up of power": ReductionConfig(
        algorithm="power", rank=1, momentum=0.9, warmup_steps=3
    ),
    "ring": ReductionConfig(algorithm="ring", momentum=0.9),
    "exact": ReductionConfig(momentum=0.9),
}


@pytest.mark.parametrize("reduce", rarely(MOVING, "warm-up of top_k", "ring"))
def test_where_all_is_sent_momentum_is_that_of_an_optimizer(parts, reduce):
    """Also of the vectors and short arrays, which are never packed."""
    with jax.enable_x64():
        task = parts.make_task(NETWORK, jnp.float64)
        batch, first = (
            parts.make_batch(NETWORK, jnp.float64, 16),
            parts.make_state(task),
        )
        moved = []
        for momentum, asked in ((0.9, ReductionConfig()), (None, reduce)):
            sgd = optax.sgd(0.1, momentum=momentum, nesterov=True)
            mine = dataclasses.replace(task, optimizer=sgd)
            start = dataclasses.replace(first, opt=sgd.init(first.params))
            axes = {"data": 4, "reduce": asked}
            moved.append(step(parts, mine, axes, start, batch, times=3).params)
        for one, other in zip(*map(jax.tree.leaves, moved), strict=True):
            assert jnp.abs(one - other).max() <= 1e-9 * jnp.abs(other).max()


def test_what_is_not_finite_is_skipped_and_leaves_the_residual(parts):
    task = dataclasses.replace(
        parts.make_task(NETWORK, jnp.float32), optimizer=skip_nonfinite(optax.sgd(0.1))
    )
    batch = parts.make_batch(NETWORK, jnp.float32, 16)
    batch["image"][3] = np.nan
    state = parts.make_state(task)
    new = step(
        parts,
        task,
        {
            "data": 4,
            "reduce": ReductionConfig(algorithm="top_k", min_compressed_elements=0),
        },
        state,
        batch,
    )
    for left in jax.tree.leaves(new.feedback):
        assert not left.any()
    assert int(new.opt.total) == 1
