"""Law 1 with parameters and variables as networks of one's own have them.

Complex, empty, integer, frozen, tied and unused parameters, one behind a stopped
gradient; counters, random streams and averages of one's own; intermediates that are
sown. A layout's step equals that of one device, written with flax and optax alone.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.plan.outer import OuterConfig
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.layers import Conv, GlobalMean, Linear
from jaxdist.models import Chain
from jaxdist.models.config import ModelConfig
from jaxdist.train.objective import Classification
from jaxdist.train.optimizers import OptimConfig, make_optimizer
from jaxdist.train.program import compile_program, initial_state
from jaxdist.train.state import named_leaves
from jaxdist.train.task import Task

pytestmark = [
    pytest.mark.laws,
    pytest.mark.timeout(600),
    # flax's own; sown arrays are still what many networks have.
    pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning"),
]

WIDTH = 8


class Counter(nnx.Variable):
    """Counts calls."""


class Average(nnx.Variable):
    """Moves towards the mean of what it sees."""


class Stem(nnx.Module):
    """A frozen convolution and one that is trained, and all that a step may change."""

    def __init__(self, rngs):
        self.base = Conv(1, WIDTH, (3, 3), rngs=rngs)
        self.conv = Conv(WIDTH, WIDTH, (3, 3), rngs=rngs)
        self.calls = Counter(jnp.zeros((), jnp.uint32))
        self.seen = Counter(jnp.zeros(2, bool))
        self.mean = Average(jnp.zeros(WIDTH))
        self.rngs = rngs.fork()
        self.none = nnx.Param(jnp.zeros((0, 4)))
        self.shift = nnx.Param(jnp.ones(WIDTH, jnp.int32))

    def __call__(self, x):
        x = nnx.relu(self.base(x)) + self.shift[...].astype(x.dtype)
        x = nnx.relu(self.conv(x))
        self.calls[...] += 1
        self.seen[...] = self.seen[...] | jnp.array([True, False])
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * x.mean((0, 1, 2))
        self.rngs.noise()
        self.sow(nnx.Intermediate, "features", x)
        return x


class Waves(nnx.Module):
    """Complex weights, a number, and some that no loss depends on."""

    def __init__(self, rngs):
        size = (WIDTH, WIDTH)
        parts = [jax.random.normal(rngs.params(), size) for _ in range(2)]
        self.matrix = nnx.Param(jax.lax.complex(*(0.3 * part for part in parts)))
        self.phase = nnx.Param(jnp.full(WIDTH, 1 + 0.5j))
        self.scale = nnx.Param(jnp.ones(()))
        self.unused = Linear(WIDTH, WIDTH, rngs=rngs)
        self.still = Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        y = (x.astype(self.phase.dtype) * self.phase[...]) @ self.matrix[...]
        x = self.scale[...] * (y.real + jnp.square(y.imag))
        return x + jax.lax.stop_gradient(self.still(x))


class Tied(nnx.Module):
    """One matrix there and back."""

    def __init__(self, rngs):
        self.there = nnx.Param(jax.random.normal(rngs.params(), (WIDTH, WIDTH)))
        self.back = self.there

    def __call__(self, x):
        return nnx.tanh(x @ self.there[...]) @ self.back[...].T


def network(*, rngs):
    return Chain(
        {
            "stem": Stem(rngs),
            "waves": Waves(rngs),
            "pool": GlobalMean(),
            "tied": Tied(rngs),
            "head": Linear(WIDTH, 10, rngs=rngs),
        }
    )


def make_task(optimizer, microbatches=1):
    return Task(
        model=network,
        optimizer=optimizer,
        objective=Classification(),
        frozen=("stem.base.*",),
        microbatches=microbatches,
        dtype=jnp.float64,
        param_dtype=jnp.float64,
    )


def make_batch(size=8):
    rng = np.random.default_rng(2)
    return {
        "image": jnp.asarray(rng.random((size, 8, 8, 1))),
        "label": jnp.asarray(rng.integers(0, 10, size), jnp.int32),
        "id": jnp.arange(size, dtype=jnp.int32),
    }


def one_device(task, state, batch):
    """The step as anyone would write it."""

    def loss(params):
        model = nnx.merge(task.graph, params, state.stats, copy=True)
        model.train()
        outputs = model(batch["image"])
        found = named_leaves(nnx.state(model, nnx.Not(nnx.Intermediate)))
        losses = task.objective.losses(outputs, batch)
        return losses.mean(), {k: found[k] for k in named_leaves(state.stats)}

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    grads = jax.tree.map(jnp.conj, grads)
    with jax.numpy_dtype_promotion("standard"):  # optax's own promotion
        updates, opt = task.optimizer.update(grads, state.opt, state.params)
    return optax.apply_updates(state.params, updates), stats, opt, value


IDLE = dict(tensor=2, replicated_axes=("tensor",))
LAYOUTS = {
    "data 4": dict(data=4),
    "data 2 x spatial_h 2": dict(data=2, spatial_h=2),
    "data 2 x tensor 2": dict(data=2, tensor=2),
    "fsdp 4": dict(fsdp=4),
    "fsdp 2, zero 1": dict(fsdp=2, zero=1),
    "data 2 x fsdp 2 x idle 2": dict(data=2, fsdp=2, **IDLE),
    "data 2, blocks remade": dict(data=2, remat=True),
    "data 2, first blocks remade": dict(data=2, remat=True, remat_end="pool"),
    "pipe 2": dict(pipe=2),
    "pipe 3 x data 2": dict(pipe=3, data=2),
    "pipe 2 x fsdp 2": dict(pipe=2, fsdp=2),
}
REST = ("data 2 x fsdp 2 x idle 2", "data 2, first blocks remade", "pipe 2")
"""Left to `make laws-all`: others hold the same."""
OPTIMIZERS = {
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adamw, clipped": make_optimizer(
        OptimConfig(name="adamw", weight_decay=0.1, clip=0.01), lambda step: 0.01
    ),
    "lamb": make_optimizer(
        OptimConfig(name="lamb", weight_decay=0.1), lambda step: 0.01
    ),
}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def step_of(parts, task, axes, batch, state):
    """A compiled step of a layout, from a state as a checkpoint has it."""
    where = parts.layout_of(task, axes, batch)
    program = compile_program(where)
    held = jax.jit(where.state_layout.to_device)(jax.tree.map(np.array, state))
    places = jax.tree.map(lambda x: x.sharding, where.state)
    own = jax.device_put(held, places)
    laid = jax.device_put(batch, program.batch_shardings)
    new, metrics = program.compiled_step(own, laid)
    parts.assert_copies_equal(new)
    return where, where.to_checkpoint(new), metrics.loss


def assert_equal(got, want):
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(want)]
    pairs = zip(names, jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    for name, a, b in pairs:
        assert a.dtype == b.dtype, name
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=pytest.mark.slow if name in REST else ())
        for name in LAYOUTS
    ],
)
def test_layout_equals_one_device(layout, parts):
    task, batch = make_task(OPTIMIZERS["momentum"]), make_batch(12)
    state = task.init()
    want = jax.jit(one_device, static_argnums=0)(task, state, batch)
    _, new, loss = step_of(parts, task, LAYOUTS[layout], batch, state)
    assert_equal((new.params, named_leaves(new.stats), new.opt, loss), want)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_equals_optax(optimizer, parts):
    task, batch = make_task(OPTIMIZERS[optimizer]), make_batch()
    state = task.init()
    want = jax.jit(one_device, static_argnums=0)(task, state, batch)
    _, new, loss = step_of(parts, task, dict(data=2, fsdp=2), batch, state)
    assert_equal((new.params, named_leaves(new.stats), new.opt, loss), want)


def test_nothing_moves_of_what_has_no_gradient(parts):
    """Frozen, unused and empty parameters: no optimizer state, no byte."""
    task, batch = make_task(OPTIMIZERS["momentum"]), make_batch()
    names = named_leaves(task.state.opt)
    assert not any("base" in name or "none" in name for name in names)
    where = parts.layout_of(task, dict(data=2, fsdp=2), batch)
    idle = {leaf.name for leaf in where.param_shardings if not leaf.has_gradient}
    assert idle == {
        f"waves/{layer}/{leaf}"
        for layer in ("unused", "still")
        for leaf in ("kernel", "bias")
    }
    updates = {x.name: x.update for x in where.state_layout.stat_shardings}
    assert updates == {
        "stem/base/bias": "constant",
        "stem/base/kernel": "constant",
        "stem/calls": "maximum",
        "stem/mean": "mean",
        "stem/none": "constant",
        "stem/rngs/default/count": "maximum",
        "stem/rngs/default/key": "constant",
        "stem/seen": "maximum",
        "stem/shift": "constant",
    }
    rows = [row for row in where.ledger.rows if row.what == "variables"]
    # A counter of the stream and one of calls; two booleans, as integers; the mean.
    assert sorted(row.payload for row in rows) == [2 * 4, 2 * 4, 8 * WIDTH]


class Noisy(nnx.Module):
    """Adds what it draws to what it keeps; the loss does not see it."""

    def __init__(self, *, rngs):
        self.rngs, self.drawn = rngs, Average(jnp.zeros(()))
        self.head = Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        self.drawn[...] = jax.random.normal(self.rngs(), ())
        return self.head(x.reshape(len(x), -1))


def test_shards_draw_noise_of_their_own_and_count_alike(parts):
    task = replace(make_task(OPTIMIZERS["momentum"]), model=Noisy, frozen=())
    batch, state = make_batch(), task.init()
    before = named_leaves(state.stats)
    key, count = (before[f"rngs/default/{name}"] for name in ("key", "count"))
    shards = [jax.random.fold_in(key, shard) for shard in range(2)]
    drawn = [jax.random.normal(jax.random.fold_in(k, count), ()) for k in shards]
    for axes in (dict(data=2), dict(data=2, **IDLE)):
        _, new, _ = step_of(parts, task, axes, batch, state)
        kept = named_leaves(new.stats)
        np.testing.assert_allclose(kept["drawn"], sum(drawn) / 2, rtol=1e-6)
        np.testing.assert_array_equal(kept["rngs/default/key"], key)
        assert kept["rngs/default/count"] == count + 1
    assert drawn[0] != drawn[1]


def test_frozen_layers_have_no_work_backward(parts):
    batch = make_batch()
    config = ModelConfig(width=4)
    task = parts.make_task(config, jnp.float64)
    axes, work = dict(data=2), {}
    for frozen in ((), ("stem.*",)):
        where = parts.layout_of(replace(task, frozen=frozen), axes, batch)
        work[frozen] = where.ledger.layer_flops
    stem = next(name for name in work[()] if name.startswith("stem"))
    # Forward and for the kernel, or forward alone; the bias has its share of each.
    assert work[()][stem] == 2 * work["stem.*",][stem]
    others = work[()].keys() - {stem}
    behind = [name for name in others if work["stem.*",][name] != work[()][name]]
    assert behind
    assert all(name.startswith("block1") for name in behind)


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream-2bw"])
def test_asynchronous_pipeline_runs(schedule, parts):
    used = ("stem.base.*", "waves.unused.*")
    task = replace(make_task(OPTIMIZERS["momentum"], 4), frozen=used)
    batch, order = make_batch(), PipelineConfig(schedule=schedule)
    axes = dict(pipe=2, data=2, order=order)
    _, new, loss = step_of(parts, task, axes, batch, task.init())
    assert np.isfinite(loss)
    assert named_leaves(new.stats)["stem/calls"] == 4


class Drawn(nnx.Module):
    """A block with some kinds of variables, and a head."""

    def __init__(self, kinds, rngs):
        self.kinds = kinds
        self.first = Linear(8, WIDTH, rngs=rngs)
        self.head = Linear(WIDTH, 10, rngs=rngs)
        makers = {
            "complex": lambda: nnx.Param(jnp.full((WIDTH, WIDTH), 0.1 + 0.2j)),
            "number": lambda: nnx.Param(jnp.ones(())),
            "integer": lambda: nnx.Param(jnp.ones(WIDTH, jnp.int16)),
            "empty": lambda: nnx.Param(jnp.zeros((3, 0))),
            "unused": lambda: nnx.Param(jnp.ones((WIDTH, 4))),
            "stopped": lambda: nnx.Param(jnp.ones((WIDTH, WIDTH))),
            "counter": lambda: Counter(jnp.zeros((), jnp.int8)),
            "average": lambda: Average(jnp.zeros(WIDTH)),
            "several": lambda: nnx.Variable((jnp.zeros(2), jnp.ones((), jnp.int32))),
            "stream": rngs.fork,
        }
        for kind in kinds:
            setattr(self, kind, makers[kind]())

    def __call__(self, x):
        x = self.first(x.reshape(len(x), -1)[:, :8])
        for kind in self.kinds:
            own = getattr(self, kind)
            if kind == "complex":
                x = (x.astype(own.dtype) @ own[...]).imag
            elif kind == "number":
                x = own[...] * x
            elif kind == "integer":
                x = x + own[...].astype(x.dtype)
            elif kind == "stopped":
                x = x @ jax.lax.stop_gradient(own[...])
            elif kind == "counter":
                own[...] += 1
            elif kind == "average":
                own[...] = x.mean(0)
            elif kind == "several":
                sums, count = own.get_value()
                own.set_value((sums + x.mean(), count + 2))
            elif kind == "stream":
                own.noise()
        return self.head(x)


KINDS = ("complex", "number", "integer", "empty", "unused", "stopped")
STATES = ("counter", "average", "several", "stream")


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    st.sets(st.sampled_from(KINDS + STATES), min_size=3),
    st.sampled_from([dict(data=2), dict(fsdp=2), dict(data=2, fsdp=2, zero=1)]),
)
def test_any_kinds_together(parts, kinds, axes):
    model = functools.partial(Drawn, tuple(sorted(kinds)))
    task = replace(make_task(OPTIMIZERS["momentum"]), model=model, frozen=())
    batch, state = make_batch(), task.init()
    want = jax.jit(one_device, static_argnums=0)(task, state, batch)
    _, new, loss = step_of(parts, task, axes, batch, state)
    assert_equal((new.params, named_leaves(new.stats), new.opt, loss), want)


@pytest.mark.parametrize(
    "axes",
    [
        dict(replica=2, data=2, outer=OuterConfig(sync_interval=1)),
        dict(data=2, reduce=ReductionConfig(algorithm="int8")),
        dict(fsdp=2, reduce=ReductionConfig(reduce_scatter="int8", all_gather="int8")),
        dict(fsdp=2, pipe=2),
    ],
    ids=str,
)
def test_layout_moves_what_its_ledger_says(axes, parts):
    """Outer loops and compression, whose steps are no step of one device."""
    task, batch = make_task(OPTIMIZERS["momentum"]), make_batch()
    program = compile_program(parts.layout_of(task, axes, batch))
    laid = jax.device_put(batch, program.batch_shardings)
    new, metrics = program.run(1, initial_state(program.layout), laid)
    assert np.isfinite(metrics.loss).all()
    kept = program.layout.to_checkpoint(new)
    assert named_leaves(kept.stats)["stem/calls"] == 1
    if kept.replicas is not None:  # the shape that the network itself sees
        assert named_leaves(kept.replicas.stats)["stem/none"].shape == (0, 4)


RESNET = ModelConfig(name="resnet50", size="tiny")
FROZEN = {
    "the first block, stages": (RESNET, ("stem.*",), dict(pipe=2, data=2)),
    "all but the head, rows": (RESNET, ("st*",), dict(data=2, spatial_h=2)),
    "kernels, filters": (ModelConfig(width=4), ("*.kernel",), dict(tensor=2)),
    "norms and biases, fsdp": (
        ModelConfig(name="gpt2_small", size="tiny"),
        ("*.bias", "*.scale"),
        dict(fsdp=2, remat=True),
    ),
}


@pytest.mark.parametrize("case", FROZEN)
def test_frozen_layers_move_what_their_ledger_says(case, parts):
    """No gradient of what is frozen, nor of what lies before all that is trained."""
    config, frozen, axes = FROZEN[case]
    task = replace(parts.make_task(config, jnp.float64), frozen=frozen)
    batch = parts.make_batch(config, jnp.float64, 8)
    compile_program(parts.layout_of(task, axes, batch))


def test_microbatches_count_each(parts):
    task, batch = make_task(OPTIMIZERS["momentum"], 2), make_batch()
    _, new, _ = step_of(parts, task, dict(data=2), batch, task.init())
    assert named_leaves(new.stats)["stem/calls"] == 2
