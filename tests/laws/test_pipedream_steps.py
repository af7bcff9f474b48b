"""Law 5, asynchronous: a step is what the publications say, written down plainly.

The reference has no schedule: it goes through the microbatches in their order, with a
list of versions for each stage, and takes of it what the equations name.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.layers import Linear, bind
from jaxdist.models.config import ModelConfig
from jaxdist.models.conv_blocks import Chain
from jaxdist.train.program import compile_program
from jaxdist.train.state import named_leaves

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

RATE, MOMENTUM = 0.001, 0.9
VGG16 = ModelConfig(name="vgg16", size="tiny")
RESNET = ModelConfig(name="resnet50", size="tiny")
UNET = ModelConfig(name="unet2d", size="tiny")


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


class Plain:
    """Versions of each stage's weights and the steps from one to the next."""

    def __init__(self, state, stage_of, replicas, rounds):
        self.stage_of, self.replicas, self.rounds = stage_of, replicas, rounds
        first, stats = named_leaves(state.params), named_leaves(state.stats)
        self.weights = [[self.of(stage, first)] for stage in range(len(replicas))]
        self.traces = [
            {k: np.zeros_like(x) for k, x in now[0].items()} for now in self.weights
        ]
        self.stats = {
            (stage, r): self.of(stage, stats)
            for stage, count in enumerate(replicas)
            for r in range(count)
        }
        self.sums = [{} for _ in replicas]

    def of(self, stage, leaves):
        own = leaves.items()
        return {k: np.asarray(x) for k, x in own if self.stage_of(k) == stage}

    def seen(self, versions):
        """Weights as a microbatch sees them, each stage in its version."""
        return {k: x for w, v in zip(self.weights, versions) for k, x in w[v].items()}

    def statistics(self, micro):
        owners = [(s, micro % count) for s, count in enumerate(self.replicas)]
        return {k: x for owner in owners for k, x in self.stats[owner].items()}

    def keep(self, micro, stats):
        for stage, count in enumerate(self.replicas):
            self.stats[stage, micro % count] = self.of(stage, stats)

    def learn(self, micro, grads):
        """Add a microbatch's gradient; at the end of a round, make a new version."""
        for stage, size in enumerate(self.rounds):
            for k, g in self.of(stage, grads).items():
                self.sums[stage][k] = self.sums[stage].get(k, 0) + g / size
            if micro % size == size - 1:
                self.step(stage)

    def step(self, stage):
        trace = self.traces[stage]
        for k, g in self.sums[stage].items():
            trace[k] = g + MOMENTUM * trace[k]
        newest = self.weights[stage][-1]
        self.weights[stage].append({k: w - RATE * trace[k] for k, w in newest.items()})
        self.sums[stage] = {}

    def end(self):
        """Newest weights, and the mean of the statistics of replicas."""
        stats = {}
        for stage, count in enumerate(self.replicas):
            for k in self.stats[stage, 0]:
                own = [self.stats[stage, r][k] for r in range(count)]
                stats[k] = np.mean(own, axis=0)
        return self.seen([-1] * len(self.weights)), stats


def delayed(replicas):
    """PipeDream: NOAM = ceil(devices / devices of stage 0), and so on down."""
    late = [
        math.ceil(sum(replicas[s:]) / replicas[s]) - 1 for s in range(len(replicas))
    ]
    return lambda stage, micro: max(0, micro // replicas[stage] - late[stage])


def in_sync(replicas):
    """PipeDream: the weights that have seen what the first stage's had."""
    first = delayed(replicas)
    return lambda stage, micro: first(0, micro) * replicas[0] // replicas[stage]


def doubled(group):
    """PipeDream-2BW: W(t + 1) = W(t) - rate g(W(t - 1))."""
    return lambda stage, micro: max(0, micro // group - 1)


def taken(batch, micros, micro, shards=1):
    """Return a microbatch: of each shard of the batch, its samples that come then."""

    def rows(x):
        dealt = x.reshape(shards, micros, -1, *x.shape[1:])
        return dealt[:, micro].reshape(-1, *x.shape[1:])

    return {k: rows(x) for k, x in batch.items()}


def reference(task, state, batch, plain, version, micros, shards):
    """Train on microbatches in their order, as the equations say."""
    key = jax.random.fold_in(jax.random.key(task.seed), 0)

    @jax.jit
    def graded(params, stats, part):
        def loss(params):
            model = nnx.merge(task.graph, params, stats, copy=True)
            model.train()
            bind(model, key, part["id"])
            outputs = model(*task.objective.model_inputs(part))
            mean = task.objective.losses(outputs, part).mean()
            return mean, nnx.state(model, nnx.BatchStat)

        return jax.value_and_grad(loss, has_aux=True)(params)

    losses = []
    for micro in range(micros):
        part = taken(batch, micros, micro, shards)
        versions = [version(stage, micro) for stage in range(len(plain.replicas))]
        params = renamed(state.params, plain.seen(versions))
        stats = renamed(state.stats, plain.statistics(micro))
        (loss, stats), grads = graded(params, stats, part)
        losses.append(float(loss))
        plain.keep(micro, named_leaves(stats))
        plain.learn(micro, named_leaves(grads))
    return np.mean(losses), *plain.end()


def renamed(tree, leaves):
    """Fill a tree with leaves by name."""
    names = named_leaves(tree)
    order = {id(x): name for name, x in names.items()}
    return jax.tree.map(lambda x: jnp.asarray(leaves[order[id(x)]]), tree)


@pytest.fixture
def hold(parts):
    """Hold a step of a plan against the reference."""

    def check(config, micros, version, rounds=None, beside=None, **pipe):
        order = PipelineConfig(**pipe)
        replicas = order.replicas
        if not replicas:
            replicas = (1,) * beside.pop("pipe")
        move = optax.sgd(lambda step: RATE, momentum=MOMENTUM)
        task = parts.make_task(config, jnp.float64, optimizer=move)
        task = replace(task, microbatches=micros)
        batch = parts.make_batch(config, jnp.float64, 2 * micros)
        state, batch = jax.tree.map(np.asarray, (parts.make_state(task), batch))
        shards = (beside or {}).get("data", 1)
        axes = {"pipe": sum(replicas), "order": order, **(beside or {})}
        layout = parts.layout_of(task, axes, batch)
        stages = layout.slot_layout.stages

        def stage_of(name):
            return stages.stage_of(name.split("/")[0])

        plain = Plain(state, stage_of, replicas, rounds or replicas)
        want = reference(task, state, batch, plain, version(replicas), micros, shards)
        got, counts = stepped(parts, layout, state, batch)
        assert_equal(want, got)
        assert counts == [micros // min(plain.rounds)]

    return check


def stepped(parts, layout, state, batch):
    program = compile_program(layout)
    places = jax.tree.map(lambda x: x.sharding, layout.state)
    held = jax.jit(layout.state_layout.to_device, out_shardings=places)(state)
    given = jax.device_put(parts.padded(batch, layout), program.batch_shardings)
    after, metrics = program.compiled_step(held, given)
    parts.assert_copies_equal(after)
    after = layout.state_layout.to_checkpoint(jax.tree.map(np.asarray, after))
    found = float(metrics.loss), named_leaves(after.params), named_leaves(after.stats)
    counts = [int(x) for x in jax.tree.leaves(after.opt) if x.dtype == jnp.int32]
    return found, counts


def assert_equal(want, got):
    assert math.isclose(want[0], got[0], rel_tol=1e-9)
    for ours, theirs in zip(want[1:], got[1:], strict=True):
        assert ours.keys() == theirs.keys()
        for name, leaf in ours.items():
            most = max(np.abs(leaf).max(), 1e-6)
            assert np.abs(leaf - np.asarray(theirs[name])).max() <= 1e-9 * most, name


def versions():
    """Every split with either way to choose versions, some of them rarely."""
    for sync in (False, True):
        for *replicas, micros in (
            (1, 1, 1, 1, 24),
            (2, 1, 1, 24),
            (3, 2, 1, 24),
            (7, 1, 28),
        ):
            often = ([1, 1, 1, 1], [3, 2, 1]) if sync else ([2, 1, 1], [7, 1])
            split = "-".join(map(str, replicas))
            yield pytest.param(
                tuple(replicas),
                micros,
                sync,
                id=f"{'vertical sync' if sync else 'newest'}-{split}-{micros}",
                marks=() if replicas in often else pytest.mark.slow,
            )


@pytest.mark.parametrize(("replicas", "micros", "sync"), list(versions()))
def test_pipedream(replicas, micros, sync, hold):
    hold(
        VGG16,
        micros,
        in_sync if sync else delayed,
        schedule="pipedream",
        replicas=replicas,
        vertical_sync=sync,
    )


@pytest.mark.parametrize(
    "group", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 6))]
)
def test_2bw(group, hold):
    hold(
        VGG16,
        24,
        lambda replicas: doubled(group),
        rounds=(group,) * 3,
        beside={"pipe": 3},
        schedule="pipedream-2bw",
        microbatches_per_update=group,
    )


@pytest.mark.parametrize(
    "replicas",
    [
        pytest.param((1, 1), id="1-1", marks=pytest.mark.slow),
        pytest.param((2, 1), id="2-1"),
    ],
)
def test_statistics_are_those_of_a_stage_or_the_mean_of_its_replicas(replicas, hold):
    hold(RESNET, 24, delayed, schedule="pipedream", replicas=replicas)


@pytest.mark.parametrize(
    "beside", [{"data": 2}, {"tensor": 2}, {"spatial_h": 2}], ids=str
)
def test_beside_other_axes(beside, hold):
    hold(VGG16, 24, delayed, schedule="pipedream", replicas=(2, 1), beside=beside)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "beside"),
    [((1, 1, 1), {}), ((2, 1, 1), {}), ((2, 1), {"spatial_h": 2})],
    ids=str,
)
def test_skips_across_stages(replicas, beside, hold):
    """Masks are scored by the replicas of the last stage."""
    hold(UNET, 24, delayed, schedule="pipedream", replicas=replicas, beside=beside)


class Layer(nnx.Module):
    """A layer of a perceptron: a block of its own."""

    def __init__(self, inputs, outputs, rngs, last):
        self.linear, self.last = Linear(inputs, outputs, rngs=rngs), last

    def __call__(self, x):
        y = self.linear(x.reshape(len(x), -1))
        return y if self.last else jax.nn.relu(y)


def perceptron(config, rngs):
    sizes = (64, 24, 20, 12, 10)
    layers = zip("abcd", sizes, sizes[1:])
    return Chain({name: Layer(i, o, rngs, name == "d") for name, i, o in layers})


def unstashed(state, batch, micros):
    """Backpropagation by hand through the newest weights, behind stale forwards."""
    leaves = {k: np.asarray(x) for k, x in named_leaves(state.params).items()}
    weights = [[leaves[f"{b}/linear/kernel"]] for b in "abcd"]
    biases = [[leaves[f"{b}/linear/bias"]] for b in "abcd"]
    traces = [[0.0, 0.0] for _ in "abcd"]
    losses = []
    for micro in range(micros):
        part = taken(batch, micros, micro)
        label, seen = part["label"], [part["image"].reshape(len(part["label"]), -1)]
        for stage in range(4):
            version = max(0, micro - (3 - stage))
            y = seen[-1] @ weights[stage][version] + biases[stage][version]
            seen.append(np.maximum(y, 0) if stage < 3 else y)
        odds = np.exp(seen[-1] - seen[-1].max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        rows = np.arange(len(label))
        losses.append(-np.log(odds[rows, label]).mean())
        odds[rows, label] -= 1
        slope = odds / len(label)
        for stage in reversed(range(4)):
            if stage < 3:
                slope = slope * (seen[stage + 1] > 0)
            newest, trace = weights[stage][-1], traces[stage]
            trace[0] = seen[stage].T @ slope + MOMENTUM * trace[0]
            trace[1] = slope.sum(0) + MOMENTUM * trace[1]
            slope = slope @ newest.T
            weights[stage].append(newest - RATE * trace[0])
            biases[stage].append(biases[stage][-1] - RATE * trace[1])
    end = {f"{b}/linear/kernel": weights[k][-1] for k, b in enumerate("abcd")}
    end |= {f"{b}/linear/bias": biases[k][-1] for k, b in enumerate("abcd")}
    return np.mean(losses), end, {}


def test_without_stashing_a_backward_reads_the_newest_weights(parts):
    micros, move = 24, optax.sgd(RATE, momentum=MOMENTUM)
    config = ModelConfig(name="resnet50", size="tiny")
    task = parts.make_task(config, jnp.float64, perceptron, move)
    task = replace(task, microbatches=micros)
    batch = parts.make_batch(config, jnp.float64, 2 * micros, image=(8, 8, 1))
    state, batch = jax.tree.map(np.asarray, (parts.make_state(task), batch))
    order = PipelineConfig(schedule="pipedream", weight_stashing=False)
    layout = parts.layout_of(task, {"pipe": 4, "order": order}, batch)
    got, _ = stepped(parts, layout, state, batch)
    assert_equal(unstashed(state, batch, micros), got)
