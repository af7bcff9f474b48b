"""Law 1: a layout's step equals the step on one device, as anyone would write it."""

import copy
import functools
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdist.core.axes import AXES
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.special_tokens import BOS_ID, EOS_ID, PAD_ID
from jaxdist.layers import bind
from jaxdist.meshes.build import build_mesh
from jaxdist.models.registry import (
    clip_shapes,
    image_shape,
    model_factory,
    objective_for,
    output_size,
    takes_clips,
    takes_tokens,
)
from jaxdist.train.build_layout import build_layout
from jaxdist.train.expert_metrics import BUSIEST_SHARE, DROPPED_SHARE
from jaxdist.train.program import compile_program, initial_state
from jaxdist.train.state import named_leaves
from jaxdist.train.step_metrics import GRADIENT_NORM, StepMetrics
from jaxdist.train.task import Task

# One step of momentum leaves the gradient itself in the optimizer's state.
MOMENTUM = optax.sgd(0.1, momentum=0.9)


@pytest.fixture(scope="session")
def job(job):
    """Commands whose programs are compiled as people's are, not as the laws' own."""
    mine = copy.copy(job)
    mine.env = {k: text for k, text in job.env.items() if k != "XLA_FLAGS"}
    return mine


def make_task(config, dtype, network=None, optimizer=MOMENTUM):
    return Task(
        model=functools.partial(network, config) if network else model_factory(config),
        optimizer=optimizer,
        objective=objective_for(config),
        dtype=dtype,
        param_dtype=dtype,
        gradient_norm=True,
    )


def make_state(task):
    """Random numbers throughout: zeros and ones would hide what they multiply."""
    rng = np.random.default_rng(1)

    def draw(path, x):
        if "opt" in path or x.ndim == 0:
            return np.zeros(x.shape, x.dtype)
        scale = 0.3 if x.ndim == 1 else (2 / np.prod(x.shape[:-1])) ** 0.5
        drawn = rng.normal(size=x.shape) * scale + (x.ndim == 1)
        return (np.abs(drawn) if "stats" in path else drawn).astype(x.dtype)

    named = jax.tree_util.tree_map_with_path
    keys = jax.tree_util.keystr
    return named(lambda path, x: draw(keys(path[:1]), x), task.state)


def make_batch(config, dtype, size, image=None):
    """Arrays of the host: of those of a device jax compiles a slice for each other."""
    rng = np.random.default_rng(2)
    ids = np.asarray(rng.permutation(1000)[:size], np.int32)
    if takes_tokens(config):
        windows = np.asarray(rng.integers(0, 64, (size, 13)), np.int32)
        return {"tokens": windows[:, :-1], "target": windows[:, 1:], "id": ids}
    if takes_clips(config):
        return {**make_captions(config, dtype, size), "id": ids}
    image = np.asarray(rng.random((size, *(image or image_shape(config)))), dtype)
    if "target" in objective_for(config).dtypes:
        is_dense = objective_for(config).is_dense
        places = image.shape[:-1] if is_dense else (size,)
        target = rng.normal(size=(*places, output_size(config)))
        if is_dense:  # of one sample many numbers are missing, so that counts differ
            target[0][rng.random(target[0].shape) < 0.7] = np.nan
        return {"image": image, "target": np.asarray(target, dtype), "id": ids}
    if "mask" in objective_for(config).dtypes:
        mask = rng.integers(0, output_size(config), image.shape[:-1])
        # One sample has many pixels that do not count, so that counts differ.
        mask[0][rng.random(mask[0].shape) < 0.7] = -100
        return {"image": image, "mask": np.asarray(mask, np.int32), "id": ids}
    label = np.asarray(rng.integers(0, 10, size), np.int32)
    return {"image": image, "label": label, "id": ids}


def make_captions(config, dtype, size):
    """Captions of all lengths, so that the devices' samples have unequal ones."""
    rng = np.random.default_rng(3)
    clip, (words,) = clip_shapes(config)
    target = rng.integers(EOS_ID + 1, 20, (size, words))
    for row, length in zip(target, rng.permutation(size) % words + 1):
        row[length - 1], row[length:] = EOS_ID, PAD_ID
    before = np.concatenate([np.full((size, 1), BOS_ID), target[:, :-1]], 1)
    return {
        "clip": np.asarray(rng.random((size, *clip)), dtype),
        "words": np.asarray(before, np.int32),
        "target": np.asarray(target, np.int32),
    }


def one_device(task, state, batch):
    """The step as anyone would write it: no mesh, no shard_map."""
    graph = task.graph
    key = jax.random.fold_in(jax.random.key(task.seed), state.step)

    def mean_loss(params):
        model = nnx.merge(graph, params, state.stats, copy=True)
        model.train()
        bind(model, key, batch["id"])
        outputs = model(*task.objective.model_inputs(batch))
        loss = task.objective.losses(outputs, batch).mean()
        return loss, nnx.state(model, nnx.BatchStat)

    (loss, stats), grads = jax.value_and_grad(mean_loss, has_aux=True)(state.params)
    with jax.numpy_dtype_promotion("standard"):  # optax's own promotion
        updates, opt = task.optimizer.update(grads, state.opt, state.params)
    scalars = {GRADIENT_NORM: optax.tree.norm(grads)} if task.gradient_norm else {}
    kept = named_leaves(stats).items()
    if shares := [x for name, x in kept if name.endswith("/choice_shares")]:
        scalars[DROPPED_SHARE] = sum(x[-1] for x in shares) / len(shares)
        scalars[BUSIEST_SHARE] = jnp.stack([x[:-1] for x in shares]).max()
    metrics = StepMetrics(loss=loss, scalars=scalars)
    return optax.apply_updates(state.params, updates), stats, opt, metrics


@functools.cache
def reference(config, dtype, size, network, optimizer, image):
    """Task, state, batch and what one device makes of them; compiled once."""
    task = make_task(config, dtype, network, optimizer)
    batch = make_batch(config, dtype, size, image)
    state = make_state(task)
    want = jax.jit(functools.partial(one_device, task))(state, batch)
    # In host memory: the compiled step may take arrays of a device for its own.
    return task, *jax.tree.map(np.asarray, (state, batch, want))


def layout_of(task, axes, batch):
    """Lay a task out on a mesh; `idle` names axes that repeat work on purpose."""
    how = {key: value for key, value in axes.items() if key not in AXES}
    if "order" in how:  # a plan's `pipe`, as its mesh has an axis of this name
        how["pipe"] = how.pop("order")
    if "context_form" in how:  # likewise its `context`
        how["context"] = how.pop("context_form")
    mesh = MeshShape(**{key: value for key, value in axes.items() if key in AXES})
    plan = Plan(mesh=mesh, **how)
    if plan.microbatches:
        task = task.in_parts(plan.microbatches)
    on = build_mesh(plan, jax.devices()[: plan.mesh.devices])
    return build_layout(task, plan, on, shapes_of(batch))


def padded(batch, layout):
    """A batch as it lies on the devices; the padding holds what a feed never would."""
    rng, shapes = np.random.default_rng(3), layout.padded_shapes(shapes_of(batch))

    def lie(x, shape):
        noise = rng.normal(size=shape) if x.ndim > 2 else np.zeros(shape)
        whole = noise.astype(x.dtype)
        whole[tuple(slice(n) for n in x.shape)] = x
        return whole

    return {key: lie(x, shapes[key].shape) for key, x in batch.items()}


def shapes_of(batch):
    return {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in batch.items()}


def assert_leaves_equal(got, want, tolerance):
    got, want = jax.tree.map(np.asarray, (got, want))
    squares = (x**2 for x in jax.tree.leaves(want[2]) if x.dtype.kind == "f")
    norm = float(sum(x.sum() for x in squares)) ** 0.5
    names = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(want)]
    pairs = zip(names, jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    for name, *both in pairs:
        a, b = (np.asarray(x, np.float64) for x in both)
        limit = tolerance * max(np.abs(b).max(), 1e-6 * norm)
        assert np.abs(a - b).max() <= limit, name


def assert_copies_equal(tree):
    """Hold every copy that a device has of a leaf against the first, bit by bit.

    NumPy reads one copy of what several devices have; another could have drifted.
    """
    for path, leaf in jax.tree.leaves_with_path(tree):
        first = {}
        for shard in leaf.addressable_shards:
            bits = np.asarray(shard.data)
            np.testing.assert_array_equal(
                bits,
                first.setdefault(str(shard.index), bits),
                err_msg=f"{jax.tree_util.keystr(path)} on {shard.device}",
            )


@pytest.fixture(scope="session")
def assert_equal_one_device():
    """Compile a layout's step, audit included, run it, and compare every leaf."""

    def compare(
        config,
        axes,
        dtype=jnp.float64,
        size=16,
        tolerance=1e-9,
        network=None,
        optimizer=MOMENTUM,
        image=None,
    ):
        with jax.enable_x64(dtype == jnp.float64):
            found = reference(config, dtype, size, network, optimizer, image)
            task, state, batch, want = found
            where = layout_of(task, axes, batch)
            program = compile_program(where)
            # The step donates its state, and the one of the reference is kept.
            places = jax.tree.map(lambda x: x.sharding, where.state)
            own = jax.tree.map(np.array, state)
            if where.state.feedback is not None:  # made for the devices
                own = replace(own, feedback=initial_state(where).feedback)
            own = jax.device_put(own, places)
            laid = jax.device_put(padded(batch, where), program.batch_shardings)
            new, metrics = program.compiled_step(own, laid)
            assert int(new.step) == 1
            assert_copies_equal(new)
            got = new.params, new.stats, new.opt, metrics
            assert_leaves_equal(got, want, tolerance)

    return compare


def run_layout(layout, state, batch):
    """Compile the step of a layout, with or without stages, and run it.

    Returns parameters, statistics, optimizer state and metrics, as of one device.
    """
    program = compile_program(layout)
    places = jax.tree.map(lambda x: x.sharding, layout.state)
    held = jax.jit(layout.state_layout.to_device, out_shardings=places)(state)
    laid = jax.device_put(batch, program.batch_shardings)
    after, metrics = program.compiled_step(held, laid)
    assert_copies_equal(after)
    # On the host: jax compiles a slice for each leaf of a device.
    new = layout.state_layout.to_checkpoint(jax.tree.map(np.asarray, after))
    return new.params, new.stats, new.opt, metrics


@pytest.fixture(scope="session")
def parts():
    """The parts of a comparison, for laws that exchange one of them."""
    return SimpleNamespace(
        make_task=make_task,
        make_state=make_state,
        make_batch=make_batch,
        one_device=one_device,
        layout_of=layout_of,
        run_layout=run_layout,
        padded=padded,
        shapes_of=shapes_of,
        assert_leaves_equal=assert_leaves_equal,
        assert_copies_equal=assert_copies_equal,
    )


@pytest.fixture(scope="session")
def check_layout():
    """Hold a layout against a network's rules, without compiling."""

    def hold(config, axes, size=16):
        task = make_task(config, jnp.float32)
        batch = jax.eval_shape(lambda: make_batch(config, jnp.float32, size))
        return layout_of(task, axes, batch)

    return hold
