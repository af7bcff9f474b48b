"""Law 5: a step whose network is cut into stages equals the step without, leaf by leaf.

The step without stages is of the same layout but for the pipe axis, which law 1 holds
against one device, with the same microbatches: batch statistics are those of one.
"""

import functools
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covers import covering
from jax.sharding import PartitionSpec as P

from jaxdist.core.dtypes import MAX_VECTOR_ELEMENTS
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.models.config import ModelConfig
from jaxdist.pipeline import sync_executor
from jaxdist.pipeline.sync_schedule import make_sync_schedule
from jaxdist.profile.flops import walk_jaxpr
from jaxdist.profile.trace import prune_jaxpr
from jaxdist.train.optimizers import OptimConfig, make_optimizer
from jaxdist.train.pipeline.sync_gradients import make_training_pipeline
from jaxdist.train.program import compile_program, trace_train_step
from jaxdist.train.state import named_leaves

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

MODELS = {
    "vgg16": ModelConfig(name="vgg16", size="tiny", dropout=0.3),
    "resnet50": ModelConfig(name="resnet50", size="tiny", dropout=0.3),
    "googlenet": ModelConfig(name="googlenet", size="tiny", aux=True),
    "s2vt": ModelConfig(name="s2vt", size="tiny", dropout=0.3),
    "gpt2_small": ModelConfig(name="gpt2_small", size="tiny", depth=3, dropout=0.3),
    "cosmoflow": ModelConfig(name="cosmoflow", size="tiny", dropout=0.3),
}
BESIDE = {
    "alone": {},
    "data": {"data": 2},
    "tensor": {"tensor": 2},
    "spatial": {"spatial_h": 2},
    "data x tensor": {"data": 2, "tensor": 2},
    "fsdp": {"fsdp": 2},
}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "eager-1f1b", "zb-h1")
BLOCKS = {"vgg16": 9, "googlenet": 8, "cosmoflow": 6, "s2vt": 4}
"""Blocks of a network, 5 of the others; more stages are refused."""
WHOLE = [
    (model, pipe, beside, schedule)
    for model in MODELS
    for pipe in (2, 3, 4)
    for beside in BESIDE
    for schedule in SCHEDULES
    if not (model == "gpt2_small" and beside == "spatial")
    and pipe * (1 + (schedule == "interleaved")) <= BLOCKS.get(model, 5)
]


def parts(cell):
    """Return what a cell holds: a schedule with each factor, and the layout's axes.

    Stages change the order in which blocks run, which is the schedule's doing: it meets
    every number of stages and axis. Networks meet what is done to their blocks: one
    chunk of them a stage or two, backward passes whole or in halves; they meet axes in
    law 1's matrix, and every other pair in `make laws-all`.
    """
    model, pipe, beside, schedule = cell
    how = {"interleaved": "two chunks", "zb-h1": "halves"}.get(schedule, "whole")
    factors = {("pipe", pipe), *(("axis", axis) for axis in BESIDE[beside])}
    return {beside, (model, how)} | {(schedule, *factor) for factor in factors}


SECONDS = {"googlenet": 7, "gpt2_small": 5, "resnet50": 5, "vgg16": 4, "s2vt": 4}
"""What a cell with a network takes, 3 of the others, with each stage a third more."""


def cost(cell):
    """Return the seconds that a cell takes, about."""
    model, pipe, beside, schedule = cell
    devices = 1 + 0.1 * len(BESIDE[beside])
    chunks = 1.3 if schedule == "interleaved" else 1
    return SECONDS.get(model, 3) * (1 + pipe / 3) * devices * chunks


COVER = covering(WHOLE, parts, cost)
REST = [cell for cell in WHOLE if cell not in COVER]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def title(cell):
    model, pipe, beside, schedule = cell
    return f"{model}, {pipe} stages, {beside}, {schedule}"


def run(parts, task, axes, state, batch):
    """Compile a layout's step, audit included; return the network's own leaves."""
    layout = parts.layout_of(task, axes, batch)
    program = compile_program(layout)
    places = jax.tree.map(lambda x: x.sharding, layout.state)
    held = jax.jit(layout.state_layout.to_device, out_shardings=places)(state)
    done = program.compiled_step(
        held, jax.device_put(parts.padded(batch, layout), program.batch_shardings)
    )
    parts.assert_copies_equal(done)
    after, metrics = jax.tree.map(np.asarray, done)
    held = layout.state_layout.to_checkpoint(after)
    return jax.tree.map(np.asarray, (held, metrics))


@pytest.fixture(scope="module")
def without_stages(parts):
    """Return a task, a state, a batch and the step without stages; compiled once."""

    @functools.cache
    def made(model, beside, micro, optimizer, average):
        how = {"microbatches": micro, "average": average}
        task = replace(parts.make_task(MODELS[model], jnp.float64), **how)
        task = replace(task, optimizer=optimizer) if optimizer else task
        batch = parts.make_batch(MODELS[model], jnp.float64, 2 * micro)
        given = jax.tree.map(np.asarray, (parts.make_state(task), batch))
        return task, *given, run(parts, task, BESIDE[beside], *given)

    return made


@pytest.fixture
def hold(parts, without_stages):
    """Hold the step of a cell against the one without stages."""

    def check(cell, optimizer=None, average=0.0, chunks=None, **how):
        model, pipe, beside, schedule = cell
        made = without_stages(model, beside, 2 * pipe, optimizer, average)
        task, state, batch, want = made
        chunks = chunks or (2 if schedule == "interleaved" else 1)
        order = PipelineConfig(schedule=schedule, chunks=chunks)
        axes = {"pipe": pipe, "order": order, **BESIDE[beside], **how}
        assert_leaves_equal(want, run(parts, task, axes, state, batch))

    return check


def assert_leaves_equal(want, got):
    want, got = named_leaves(want), named_leaves(got)
    assert want.keys() == got.keys()
    floor = 1e-6 * max(np.abs(np.float64(x)).max() for x in want.values())
    for name, leaf in want.items():
        most = max(np.abs(np.float64(leaf)).max(), floor)
        off = np.abs(np.float64(leaf) - np.float64(got[name])).max()
        assert off <= 1e-9 * most, name


@pytest.mark.parametrize("cell", COVER, ids=title)
def test_cover(cell, hold):
    hold(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", REST, ids=title)
def test_rest(cell, hold):
    hold(cell)


@pytest.mark.parametrize("kind", ["lars", "sgd"])
def test_norms_are_of_all_stages(kind, hold):
    """Clipping, trust ratios, skips and the average see leaves, not slots."""
    config = OptimConfig(name=kind, weight_decay=0.1, clip=0.5, skip_nonfinite=3)
    move = make_optimizer(config, lambda step: 0.1)
    hold(("gpt2_small", 2, "alone", "1f1b"), optimizer=move, average=0.9)


def test_eager_1f1b_with_chunks(hold):
    hold(("gpt2_small", 2, "data", "eager-1f1b"), chunks=2)


@pytest.mark.parametrize(
    "schedule", [pytest.param("1f1b", marks=pytest.mark.slow), "zb-h1"]
)
def test_blocks_are_computed_again(schedule, hold):
    hold(("vgg16", 2, "data", schedule), remat=True)


@pytest.mark.parametrize(
    ("cell", "block"),
    [
        (("resnet50", 2, "data", "1f1b"), "stage1_block2"),
        pytest.param(
            ("googlenet", 2, "fsdp", "eager-1f1b"), "pool4", marks=pytest.mark.slow
        ),
        pytest.param(
            ("gpt2_small", 2, "tensor", "interleaved"), "block1", marks=pytest.mark.slow
        ),
        pytest.param(
            ("gpt2_small", 2, "tensor", "zb-h1"), "block1", marks=pytest.mark.slow
        ),
    ],
)
def test_blocks_are_computed_again_until_one(cell, block, hold):
    hold(cell, remat=True, remat_end=block)


@pytest.mark.parametrize(
    "then", ["samples", pytest.param("repeat", marks=pytest.mark.slow)]
)
def test_images_may_be_whole_from_a_block_on(then, hold):
    """They are gathered in the stage of that block."""
    until = {"spatial_end": "pool1", "spatial_end_mode": then}
    hold(("vgg16", 2, "spatial", "1f1b"), **until)


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("name", ["vgg16", "gpt2_small", "s2vt"])
def test_zero_bubble_computes_what_1f1b_does_and_nothing_twice(name, remat, parts):
    """Products exactly, and all that the compiler counts but for what it fuses."""
    model = MODELS[name]
    task = replace(parts.make_task(model, jnp.float64), microbatches=4)
    batch = parts.make_batch(model, jnp.float64, 8)
    counted, compiled = {}, {}
    for schedule in ("1f1b", "zb-h1"):
        order = PipelineConfig(schedule=schedule)
        axes = {"pipe": 3, "order": order, "remat": remat}
        layout = parts.layout_of(task, axes, batch)
        # A trace has a stage's work in every beat.
        beats = make_sync_schedule(schedule, devices=3, microbatches=4).exchanges
        traced = prune_jaxpr(trace_train_step(layout).jaxpr.jaxpr)
        counted[schedule] = Counter()
        for use in walk_jaxpr(traced):
            counted[schedule][use.eqn.primitive.name] += use.flops // beats
        # Compiled with the audit: the step moves what the ledger says.
        step = compile_program(layout).compiled_step
        compiled[schedule] = step.cost_analysis()["flops"]
    for product in ("dot_general", "conv_general_dilated"):
        assert counted["zb-h1"][product] == counted["1f1b"][product]
    assert compiled["zb-h1"] == pytest.approx(compiled["1f1b"], rel=0.02)


def test_rings_of_zero_bubble_have_the_rows_that_its_table_counts(parts):
    model = MODELS["vgg16"]
    task = replace(parts.make_task(model, jnp.float64), microbatches=5)
    batch = parts.make_batch(model, jnp.float64, 10)
    axes = {"pipe": 3, "order": PipelineConfig(schedule="zb-h1")}
    layout, state = parts.layout_of(task, axes, batch), parts.make_state(task)
    found = []

    def local(state, batch):
        pipe, micro = make_training_pipeline(layout, state, batch)
        carry = sync_executor.ScheduleRunner(
            pipe, state.params, state.stats, micro, graded=True
        ).initial_carry()
        rings = carry.inputs, carry.kept, carry.weight_kept
        found.append([{x.shape[0] for x in jax.tree.leaves(ring)} for ring in rings])
        return carry.total[None]

    specs = jax.tree.map(lambda x: x.sharding.spec, layout.state)
    jax.eval_shape(
        layout.shard_map(local, specs, batch, P("pipe")),
        layout.state_layout.to_device(state),
        batch,
    )
    table = make_sync_schedule("zb-h1", devices=3, microbatches=5)
    held = max(map(table.live_inputs, range(3)))
    late = max(map(table.pending_weights, range(3)))
    # Each device receives what it holds, but for the first, which has samples.
    assert found == [[{held}, {held}, {late}]]
    assert held == late == 3


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_messages_and_residuals_may_lie_in_several_vectors(parts, schedule):
    """As those of stages do that keep more than int32 offsets can address."""
    model = MODELS["vgg16"]
    task = replace(parts.make_task(model, jnp.float64), microbatches=4)
    batch = parts.make_batch(model, jnp.float64, 8)
    axes = {"pipe": 2, "order": PipelineConfig(schedule=schedule)}
    layout, state = parts.layout_of(task, axes, batch), parts.make_state(task)
    held = layout.state_layout.to_device(state)
    lengths = []

    def gradients(most):
        def local(state, batch):
            pipe, micro = make_training_pipeline(layout, state, batch)
            pipe = replace(pipe, max_vector_elements=most)
            runner = sync_executor.ScheduleRunner(
                pipe, state.params, state.stats, micro, graded=True
            )
            carry = runner.initial_carry()
            rings = carry.inputs, carry.gradients, carry.kept, carry.weight_kept
            found = [x.get("float64", ()) for x in rings]
            lengths.append([[x.shape[-1] for x in ring] for ring in found])
            found = sync_executor.run(pipe, state.params, state.stats, micro)
            return jax.tree.map(lambda x: x[None], found)

        specs = jax.tree.map(lambda x: x.sharding.spec, layout.state)
        run = layout.shard_map(local, specs, batch, P("pipe"))
        return jax.jit(run)(held, batch)

    whole = gradients(MAX_VECTOR_ELEMENTS)
    (inputs,), (slopes,), *kept = lengths[0]
    # Backward passes in two parts keep something between them as well.
    assert [len(x) for x in kept] == [1, int(schedule == "zb-h1")]
    # Messages are split as well.
    most = min(inputs, slopes) - 5
    split = gradients(most)
    assert lengths[1][:2] == [[most, inputs - most], [most, slopes - most]]
    for before, after in zip(kept, lengths[1][2:], strict=True):
        assert sum(after) == sum(before)
        assert set(after[:-1]) <= {most}
        assert not before or len(after) > 2
    for want, got in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_step_that_keeps_more_than_int32_can_count_is_lowered(parts, schedule):
    """By shapes alone: a device keeps the logits of 42 windows in two vectors."""
    windows, positions, words = 42, 1024, 52256
    model = ModelConfig(name="gpt2_small", depth=2, embed=64, heads=4, vocabulary=words)
    shape = (2 * windows, positions)
    batch = {
        key: jax.ShapeDtypeStruct(shape, jnp.int32) for key in ("tokens", "target")
    }
    batch["id"] = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    with jax.enable_x64(False):
        task = replace(parts.make_task(model, jnp.bfloat16), microbatches=2)
        axes = {"pipe": 2, "order": PipelineConfig(schedule=schedule)}
        layout = parts.layout_of(task, axes, batch)
        text = trace_train_step(layout).lower().as_text()
    assert windows * positions * words > MAX_VECTOR_ELEMENTS
    # Losses are float32: a full vector, in a ring with a row for each microbatch held.
    assert f"x{MAX_VECTOR_ELEMENTS}xf32>" in text
