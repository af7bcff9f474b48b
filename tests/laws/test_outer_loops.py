"""Replicas with an outer loop: the equations, the bytes, and nothing in between."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdist.core.plan.outer import OuterConfig
from jaxdist.models.config import ModelConfig
from jaxdist.train.diloco import replicate_state
from jaxdist.train.program import compile_program, initial_state
from jaxdist.train.state import named_leaves

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

WORDS = ModelConfig(name="llama", size="tiny")
EXPERTS = ModelConfig(name="mixtral", size="tiny", balance_weight=0.3)
IMAGES = ModelConfig(name="resnet8", width=4)
ADAM = optax.adamw(1e-2)
LOCAL = dict(learning_rate=1.0, momentum=0.0)
SPARSE = dict(compressor="chunked_top_k")
MESHES = {
    "replica 2": dict(replica=2),
    "replica 4": dict(replica=4),
    "replica 2 x data 2": dict(replica=2, data=2),
    "replica 2 x fsdp 2": dict(replica=2, fsdp=2),
    "replica 2 x fsdp 2, zero 1": dict(replica=2, fsdp=2, zero=1),
    "replica 2 x tensor 2": dict(replica=2, tensor=2),
    "replica 2 x data 2 x fsdp 2 x tensor 2": dict(replica=2, data=2, fsdp=2, tensor=2),
}
OUTERS = {
    "diloco": OuterConfig(sync_interval=3),
    "heavy ball": OuterConfig(sync_interval=3, nesterov=False, learning_rate=0.5),
    "local sgd": OuterConfig(sync_interval=3, **LOCAL),
    "fragments": OuterConfig(sync_interval=3, fragments=2),
    "sparseloco": OuterConfig(sync_interval=2, **LOCAL, **SPARSE),
    "sparseloco, fragments": OuterConfig(
        sync_interval=3, fragments=2, learning_rate=0.8, momentum=0.0, **SPARSE
    ),
    "whole numbers": OuterConfig(sync_interval=2, quantize=False, **LOCAL, **SPARSE),
}


def rarely(cases, *often):
    """Cases of the full matrix, but for those named."""
    return [
        pytest.param(case, id=name, marks=[] if name in often else pytest.mark.slow)
        for name, case in cases.items()
    ]


def batches_of(parts, config, dtype, steps, size=8):
    """A batch a step, all different."""
    one = parts.make_batch(config, dtype, size * steps)
    return [
        {k: x[size * i : size * (i + 1)] for k, x in one.items()} for i in range(steps)
    ]


def begun(parts, task, axes, batch):
    """A program and its first state, of random numbers."""
    where = parts.layout_of(task, axes, batch)
    program = compile_program(where)
    return program, placed(where, parts.make_state(task))


def placed(where, state):
    """A state of one device as all replicas begin with it."""
    spreading = functools.partial(replicate_state, where.plan)
    places = jax.tree.map(lambda x: x.sharding, where.state)
    return jax.jit(spreading, out_shardings=places)(state)


def trained(parts, task, axes, batches, state=None):
    program, first = begun(parts, task, axes, batches[0])
    state = first if state is None else state
    losses = []
    for number, batch in enumerate(batches, start=int(state.step) + 1):
        laid = jax.device_put(jax.tree.map(np.array, batch), program.batch_shardings)
        state, metrics = program.run(number, state, laid)
        losses.append(np.asarray(metrics.loss))
    parts.assert_copies_equal(state)
    return program, state, losses


def by_the_paper(parts, task, outer, replicas, batches, fragment_of):
    """Algorithm 1 in NumPy around the step of one device; a fragment at its own time."""
    step = jax.jit(functools.partial(parts.one_device, task))
    state = parts.make_state(task)
    theta = named(state.params)
    speed = {name: np.zeros_like(x) for name, x in theta.items()}
    own = [state] * replicas
    rest = [{name: np.zeros_like(x) for name, x in theta.items()} for _ in own]
    losses = []
    for t, batch in enumerate(batches, start=1):
        found = []
        for r in range(replicas):
            n = len(batch["id"]) // replicas
            share = {k: x[r * n : (r + 1) * n] for k, x in batch.items()}
            params, stats, opt, metrics = step(own[r], share)
            own[r] = dataclasses.replace(
                own[r], step=own[r].step + 1, params=params, stats=stats, opt=opt
            )
            found.append(float(metrics.loss))
        losses.append(found)
        for f in range(outer.fragments):
            if (
                t % outer.sync_interval
                != outer.sync_interval
                * (f + 1)
                // outer.fragments
                % outer.sync_interval
            ):
                continue
            held = [named(each.params) for each in own]
            for name in (n for n in theta if fragment_of(n) == f):
                deltas = [theta[name] - each[name] for each in held]
                if outer.has_feedback and theta[name].ndim > 1:
                    for r in range(replicas):
                        due = outer.feedback_decay * rest[r][name] + deltas[r]
                        deltas[r] = largest_of_chunks(due, outer)
                        rest[r][name] = due - deltas[r]
                delta = np.mean(deltas, 0)
                speed[name] = outer.momentum * speed[name] + delta
                ahead = delta + outer.momentum * speed[name]
                way = ahead if outer.nesterov else speed[name]
                theta[name] = theta[name] - outer.learning_rate * way
                for each in held:
                    each[name] = theta[name]
            own = [put(state, each) for state, each in zip(own, held)]
    return theta, speed, own, rest, losses


def largest_of_chunks(x, outer):
    """What SparseLoCo sends of an array: k of each chunk, with two levels of each sign.

    Chunks are tiles of 64 x 64, or equal parts of at most 4,096 elements.
    """
    matrix = x.reshape(-1, x.shape[-1])
    order = np.arange(x.size).reshape(matrix.shape)
    rows, cols = matrix.shape
    if rows % 64 == cols % 64 == 0:
        tiles = [
            order[i : i + 64, j : j + 64].reshape(-1)
            for i in range(0, rows, 64)
            for j in range(0, cols, 64)
        ]
    else:
        width = -(-x.size // -(-x.size // 4096))
        tiles = [order.reshape(-1)[i : i + width] for i in range(0, x.size, width)]
        width = len(tiles[0])
        assert all(len(tile) == width for tile in tiles), "no padding in this network"
    flat, picked = x.reshape(-1), []
    for tile in tiles:
        k = max(1, round(outer.density * len(tile)))
        picked.append(tile[np.argsort(-np.abs(flat[tile]), kind="stable")[:k]])
    picked = np.concatenate(picked)
    values, sent = flat[picked], np.zeros_like(flat)
    if outer.quantize:
        size = np.abs(values)
        high = size > size.mean()
        levels = [size[part].mean() if part.any() else 0 for part in (~high, high)]
        values = np.where(values < 0, -1, 1) * np.where(high, levels[1], levels[0])
    sent[picked] = values
    return sent.reshape(x.shape)


def fragment_places(sync):
    return *sync.exact_params, *itertools.chain(*sync.compressed_params)


def named(tree):
    return {name: np.asarray(x) for name, x in named_leaves(tree).items()}


def put(state, leaves):
    values = [jnp.asarray(leaves[name]) for name in named_leaves(state.params)]
    params = jax.tree.unflatten(jax.tree.structure(state.params), values)
    return dataclasses.replace(state, params=params)


def assert_near(got, want):
    assert set(got) == set(want)
    for name, x in want.items():
        assert np.abs(got[name] - x).max() <= 1e-9 * max(np.abs(x).max(), 1e-3), name


def fragment_at(program, name):
    names = [leaf.name for leaf in program.layout.param_shardings]
    (found,) = [
        f
        for f, sync in enumerate(program.layout.outer_syncs)
        if names.index(name) in fragment_places(sync)
    ]
    return found


def assert_equal_the_paper(parts, axes, outer, steps=7, config=WORDS):
    with jax.enable_x64():
        task = parts.make_task(config, jnp.float64, optimizer=ADAM)
        batches = batches_of(parts, config, jnp.float64, steps)
        program, state, losses = trained(parts, task, {**axes, "outer": outer}, batches)
        at = functools.partial(fragment_at, program)
        replicas = axes["replica"]
        want = by_the_paper(parts, task, outer, replicas, batches, at)
        theta, speed, own, rest, wanted = want
        assert_near(named(state.params), theta)
        if outer.momentum:
            assert_near(named(state.replicas.velocity), speed)
        for r in range(replicas):
            mine = jax.tree.map(lambda x, r=r: x[r], state.replicas)
            assert_near(named(mine.params), named(own[r].params))
            assert_near(named(mine.opt), named(own[r].opt))
            if outer.has_feedback:
                assert_near(named(mine.outer_feedback), rest[r])
        assert np.abs(np.array(losses) - wanted).max() <= 1e-9


@pytest.mark.parametrize("outer", rarely(OUTERS, "diloco", "sparseloco, fragments"))
def test_an_outer_loop_is_that_of_the_paper(parts, outer):
    assert_equal_the_paper(parts, {"replica": 2}, outer)


@pytest.mark.parametrize("mesh", rarely(MESHES, "replica 2 x fsdp 2"))
def test_over_every_split_of_a_replica(parts, mesh):
    assert_equal_the_paper(parts, mesh, OuterConfig(sync_interval=2), steps=5)


# Two levels are those of a device's part, as with fsdp and tensor.
INSIDE = {name: OUTERS[name] for name in ("local sgd", "fragments", "whole numbers")}


@pytest.mark.parametrize("outer", rarely(INSIDE, "local sgd"))
def test_experts_are_split_inside_of_a_replica(parts, outer):
    axes = {"replica": 2, "expert": 2}
    assert_equal_the_paper(parts, axes, outer, steps=3, config=EXPERTS)


@pytest.mark.parametrize(
    "mesh", rarely(MESHES, "replica 2 x data 2", "replica 2 x tensor 2")
)
def test_the_mean_after_each_step_of_plain_descent_is_data_parallel(parts, mesh):
    with jax.enable_x64():
        task = parts.make_task(WORDS, jnp.float64, optimizer=optax.sgd(0.1))
        batches = batches_of(parts, WORDS, jnp.float64, 3, size=16)
        axes = {**mesh, "outer": OuterConfig(sync_interval=1, **LOCAL)}
        _, state, losses = trained(parts, task, axes, batches)
        want, step = parts.make_state(task), functools.partial(parts.one_device, task)
        for batch, loss in zip(batches, losses, strict=True):
            params, _, opt, metrics = jax.jit(step)(want, batch)
            assert abs(float(loss.mean()) - float(metrics.loss)) <= 1e-9
            want = dataclasses.replace(want, step=want.step + 1, params=params, opt=opt)
        assert_near(named(state.params), named(want.params))


@pytest.mark.parametrize("mesh", rarely(MESHES, "replica 4", "replica 2 x data 2"))
@pytest.mark.parametrize("config", rarely({"words": WORDS, "images": IMAGES}, "words"))
def test_nothing_travels_between_replicas_in_a_step(parts, mesh, config):
    task = parts.make_task(config, jnp.float32)
    batch = parts.make_batch(config, jnp.float32, 16)
    where = parts.layout_of(
        task, {**mesh, "outer": OuterConfig(sync_interval=4)}, batch
    )
    program = compile_program(where)
    assert not [move for move in program.collectives if "replica" in move.axes]
    assert all(move.axes for move in program.collectives)  # and along known axes alone


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("mesh", rarely(MESHES, "replica 4", "replica 2 x fsdp 2"))
def test_a_period_moves_each_parameter_once(parts, mesh, fragments):
    task = parts.make_task(WORDS, jnp.float32)
    batch = parts.make_batch(WORDS, jnp.float32, 16)
    outer = OuterConfig(sync_interval=4, fragments=fragments)
    where = parts.layout_of(task, {**mesh, "outer": outer}, batch)
    program = compile_program(where)
    averaged = [p for s in where.outer_syncs for p in fragment_places(s)]
    assert sorted(averaged) == list(range(len(where.param_shardings)))
    assert len({sync.step_in_period for sync in where.outer_syncs}) == fragments
    held = sum(
        4 * int(np.prod(x.sharding.shard_shape(x.shape)))
        for x in jax.tree.leaves(where.state.params)
    )
    moved = [
        sum(move.payload for move in join.collectives) for join in program.outer_steps
    ]
    assert sum(moved) == held
    assert all(
        {move.axes for move in join.collectives} == {("replica",)}
        for join in program.outer_steps
    )


@pytest.mark.parametrize("axis", ["tensor", "expert"])
@pytest.mark.parametrize("via", ["int8", "int4"])
def test_copies_of_what_a_replica_does_not_split_stay_equal(parts, via, axis):
    """A router has as few bits as the experts, but no bits of theirs."""
    task = parts.make_task(EXPERTS, jnp.float32, optimizer=ADAM)
    batches = batches_of(parts, EXPERTS, jnp.float32, 2)
    axes = {"replica": 2, axis: 2}
    outer = OuterConfig(sync_interval=2, compressor=via)
    trained(parts, task, axes | {"outer": outer}, batches)


@pytest.mark.parametrize(
    "via", rarely({v: v for v in ("bf16", "int8", "int4")}, "int8")
)
def test_fewer_bits_keep_replicas_equal_and_near_the_exact_mean(parts, via):
    task = parts.make_task(WORDS, jnp.float32, optimizer=ADAM)
    batches = batches_of(parts, WORDS, jnp.float32, 2)
    outer = OuterConfig(sync_interval=2, compressor=via)
    _, near, _ = trained(parts, task, {"replica": 4, "outer": outer}, batches)
    exact = dataclasses.replace(outer, compressor="exact")
    _, far, _ = trained(parts, task, {"replica": 4, "outer": exact}, batches)
    for x in jax.tree.leaves(near.replicas.params):
        bits = np.asarray(x)
        assert all((bits[0] == bits[r]).all() for r in range(4))
    pairs = zip(*(jax.tree.leaves(s.replicas.velocity) for s in (near, far)))
    for a, b in pairs:
        assert jnp.linalg.norm(a - b) <= 0.15 * jnp.linalg.norm(b) + 1e-7


def test_statistics_are_averaged_at_the_end_of_a_period(parts):
    with jax.enable_x64():
        task = parts.make_task(IMAGES, jnp.float64)
        batches = batches_of(parts, IMAGES, jnp.float64, 2)
        axes = {"replica": 2, "outer": OuterConfig(sync_interval=2, fragments=2)}
        _, before, _ = trained(parts, task, axes, batches[:1])
        own = [np.asarray(x) for x in jax.tree.leaves(before.replicas.stats)]
        assert any((x[0] != x[1]).any() for x in own)
        began = jax.tree.leaves(parts.make_state(task).stats)
        for x, y in zip(jax.tree.leaves(before.stats), began, strict=True):
            assert (x == y).all()
        _, after, _ = trained(parts, task, axes, batches)
        for x, whole in zip(
            jax.tree.leaves(after.replicas.stats),
            jax.tree.leaves(after.stats),
            strict=True,
        ):
            assert (x[0] == x[1]).all()
            assert (x[0] == whole).all()


def test_the_first_state_is_the_same_for_all_replicas(parts):
    task = parts.make_task(WORDS, jnp.float32)
    batch = parts.make_batch(WORDS, jnp.float32, 8)
    where = parts.layout_of(
        task, {"replica": 2, "outer": OuterConfig(sync_interval=2)}, batch
    )
    state = initial_state(where)
    for mine, whole in zip(
        jax.tree.leaves(state.replicas.params),
        jax.tree.leaves(state.params),
        strict=True,
    ):
        assert (mine[0] == whole).all()
        assert (mine[1] == whole).all()


@pytest.mark.parametrize("mesh", rarely(MESHES, "replica 2 x fsdp 2"))
def test_with_all_numbers_sent_whole_it_is_local_sgd(parts, mesh):
    outer = OuterConfig(sync_interval=2, density=1.0, quantize=False, **LOCAL, **SPARSE)
    plain = OuterConfig(sync_interval=2, **LOCAL)
    with jax.enable_x64():
        task = parts.make_task(WORDS, jnp.float64, optimizer=ADAM)
        batches = batches_of(parts, WORDS, jnp.float64, 4)
        _, got, _ = trained(parts, task, {**mesh, "outer": outer}, batches)
        _, want, _ = trained(parts, task, {**mesh, "outer": plain}, batches)
        assert_near(named(got.params), named(want.params))
        assert all((x == 0).all() for x in named(got.replicas.outer_feedback).values())


@pytest.mark.parametrize(
    "quantize", rarely({"2 bits": True, "whole numbers": False}, "2 bits")
)
@pytest.mark.parametrize("mesh", rarely(MESHES, "replica 2 x tensor 2"))
def test_sparse_outer_steps_move_what_the_formula_says_and_all_copies_are_alike(
    parts, mesh, quantize
):
    task = parts.make_task(WORDS, jnp.float32)
    batch = parts.make_batch(WORDS, jnp.float32, 16)
    outer = OuterConfig(sync_interval=2, quantize=quantize, **LOCAL, **SPARSE)
    program, state, _ = trained(parts, task, {**mesh, "outer": outer}, [batch, batch])
    (join,) = program.outer_steps
    message = exact = 0
    for x in jax.tree.leaves(program.layout.state.params):
        shape = x.sharding.shard_shape(x.shape)
        size = int(np.prod(shape))
        if len(shape) < 2:
            exact += 4 * size
            continue
        chunks = -(-size // 4096)
        width = -(-size // chunks)
        sent = chunks * max(1, round(width / 64))
        # Bits of an index in the chunk, and 2 of the value with two levels a matrix.
        bits = int(np.ceil(np.log2(width))) + 2 * quantize
        ends = 2 * 4 if quantize else 4 * sent + 4
        message += -(-sent * bits // 8) + ends
    moved = {(move.kind, move.axes): 0 for move in join.collectives}
    for move in join.collectives:
        moved[move.kind, move.axes] += move.payload
    assert moved == {
        ("all-reduce", ("replica",)): exact,
        ("all-gather", ("replica",)): mesh["replica"] * message,
    }
    assert sum(row.payload for row in join.sync.rows) == sum(moved.values())
    # On every device that holds it a part of a parameter has the same bits.
    for whole, each in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(state.replicas.params)
    ):
        held = np.asarray(whole)
        for part in whole.addressable_shards:
            assert (np.asarray(part.data) == held[part.index]).all()
        for part in each.addressable_shards:
            assert (np.asarray(part.data[0]) == held[part.index[1:]]).all()
