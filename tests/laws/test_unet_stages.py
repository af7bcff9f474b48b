"""Law 5 for U-Nets: stages hand on the skips that later stages read."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.models.config import ModelConfig
from jaxdist.pipeline.plan_schedule import plan_schedule
from jaxdist.pipeline.sync_executor import ScheduleRunner
from jaxdist.train.pipeline.sync_gradients import make_training_pipeline

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

UNET = ModelConfig(name="unet2d", size="tiny", dropout=0.3)
SOLID = ModelConfig(name="unet3d", size="tiny", dropout=0.3)
RESENC = ModelConfig(name="resenc_unet3d", size="tiny")
IMAGES = {"unet2d": (16, 8, 1), "unet3d": (8, 4, 4, 2), "resenc_unet3d": (8, 8, 8, 2)}
MICROBATCHES, SAMPLES = 4, 2
"""Of a step, and of each on all devices."""


def cell(config, schedule, *cuts, chunks=1, slow=True, **axes):
    order = PipelineConfig(schedule=schedule, chunks=chunks, cuts=cuts)
    words = (f"{key} {value}" for key, value in axes.items())
    title = ", ".join((config.name, schedule, *words))
    marks = pytest.mark.slow if slow else ()
    return pytest.param(config, order, axes, id=title, marks=marks)


CELLS = [
    # The stage between the two others hands on what it does not read.
    cell(UNET, "gpipe", "down2", "up0", pipe=3, slow=False),
    cell(UNET, "interleaved", chunks=2, pipe=2, data=2, remat=True, slow=False),
    # Levels of one column a device, which is the edge to both sides.
    cell(UNET, "zb-h1", pipe=2, spatial_w=2, slow=False),
    cell(SOLID, "1f1b", pipe=2, data=2, slow=False),
    # Cut within a scale, and where a scale's last features begin to be a skip.
    cell(RESENC, "1f1b", "down1_block0", "up0", pipe=3, spatial_d=2, slow=False),
    cell(UNET, "1f1b", pipe=2, data=2, spatial_h=2),
    cell(UNET, "1f1b", "down1", "up1", "up0", pipe=4),
    cell(UNET, "1f1b", pipe=2, tensor=2),
    cell(UNET, "1f1b", pipe=2, remat=True, remat_end="up1"),
    cell(UNET, "eager-1f1b", pipe=2, fsdp=2),
    cell(UNET, "eager-1f1b", chunks=2, pipe=2, spatial_h=4),
    cell(UNET, "zb-h1", pipe=3, remat=True),
    cell(SOLID, "gpipe", pipe=2, spatial_d=2),
    cell(SOLID, "interleaved", chunks=2, pipe=2),
    cell(SOLID, "eager-1f1b", pipe=3),
    cell(SOLID, "zb-h1", pipe=2, tensor=2, tensor_strategy="filter"),
    cell(RESENC, "interleaved", chunks=2, pipe=2, data=2, remat=True),
    cell(RESENC, "zb-h1", pipe=4, tensor=2),
    cell(RESENC, "gpipe", pipe=2, fsdp=2),
]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def reference(parts):
    """Return a task, a state, a batch, and the step without stages; compiled once.

    Of one device; or where there are batch norms, whose statistics are those of a
    microbatch, of the same layout without stages, which law 1 holds against that.
    """

    @functools.cache
    def made(config, rows, beside):
        image = (rows, *IMAGES[config.name][1:])
        task = parts.make_task(config, jnp.float64).in_parts(MICROBATCHES)
        batch = parts.make_batch(config, jnp.float64, SAMPLES * MICROBATCHES, image)
        state, batch = jax.tree.map(np.asarray, (parts.make_state(task), batch))
        if config is not SOLID:
            want = jax.jit(functools.partial(parts.one_device, task))(state, batch)
        else:
            layout = parts.layout_of(task, dict(beside), batch)
            want = parts.run_layout(layout, state, parts.padded(batch, layout))
        return task, state, batch, jax.tree.map(np.asarray, want)

    return made


@pytest.fixture
def hold(parts, reference):
    """Hold a step in stages against the one without; the audit is part of it."""

    def check(config, order, axes, rows=0):
        without = ("pipe", "remat", "remat_end")
        beside = {k: v for k, v in axes.items() if k not in without}
        rows = rows or IMAGES[config.name][0]
        beside = tuple(sorted(beside.items())) if config is SOLID else ()
        task, state, batch, want = reference(config, rows, beside)
        layout = parts.layout_of(task, {"order": order} | axes, batch)
        got = parts.run_layout(layout, state, parts.padded(batch, layout))
        parts.assert_leaves_equal(got, want, 1e-9)

    return check


@pytest.mark.parametrize(("config", "order", "axes"), CELLS)
def test_stages(config, order, axes, hold):
    hold(config, order, axes)


@pytest.mark.slow
def test_uneven_rows(hold):
    """Blocks of 12 rows on 2 devices are padded; skips as well."""
    hold(UNET, PipelineConfig(), dict(pipe=2, spatial_h=2), rows=12)


FEATURES = {"down0": 16 * 16 * 4, "down1": 8 * 8 * 8, "down2": 4 * 4 * 16}
FEATURES |= {"up1": 8 * 8 * 8, "up0": 16 * 16 * 4, "head": 16 * 16 * 4}
"""Numbers that each block makes of an image of 16 x 16."""
HANDED = {
    "down1": ("down0",),
    "down2": ("down0", "down1"),
    "up1": ("down0", "down1", "down2"),
    "up0": ("down0", "up1"),
    "head": ("up0",),
}
"""What is handed to each level: skips, and what the level before it made."""


def laid_out(parts, order, **axes):
    task = parts.make_task(UNET, jnp.float32).in_parts(MICROBATCHES)
    batch = parts.make_batch(UNET, jnp.float32, SAMPLES * MICROBATCHES)
    return parts.layout_of(task, {"order": order} | axes, batch)


@pytest.mark.parametrize(
    ("schedule", "cuts"),
    [
        *(("1f1b", (cut,)) for cut in HANDED),
        ("gpipe", ("down1", "up0")),
        ("zb-h1", ("down2", "up1", "head")),
    ],
)
def test_a_boundary_moves_what_later_stages_read_and_no_more(schedule, cuts, parts):
    order = PipelineConfig(schedule=schedule, cuts=cuts)
    layout = laid_out(parts, order, pipe=len(cuts) + 1, data=2)
    # Messages of all boundaries have the length of the longest.
    longest = max(sum(FEATURES[level] for level in HANDED[cut]) for cut in cuts)
    exchanges = plan_schedule(layout.plan, MICROBATCHES).exchanges
    for ledger in layout.ledgers:
        rows = {row.what: row for row in ledger.rows if row.layer == "between_stages"}
        for row in (rows["activations"], rows["gradients"]):
            assert row.arrays == exchanges
            assert row.payload == exchanges * longest * 4 * SAMPLES // 2


def test_only_the_last_stage_sums_over_pixels(parts):
    order = PipelineConfig(schedule="interleaved", chunks=2)
    layout = laid_out(parts, order, pipe=2, spatial_h=2)
    found = [[x for x in one.rows if x.what == "loss"] for one in layout.ledgers]
    assert [len(rows) for rows in found] == [0, 1]
    # Two numbers a sample, forward and backward.
    assert found[1][0].payload == 2 * MICROBATCHES * SAMPLES * 2 * 4


@pytest.mark.parametrize("cut", ["down2", "up0"])
def test_features_are_kept_once_where_blocks_are_computed_again(cut, parts):
    """By the stage that made them, and by stages that are handed them."""
    layout = laid_out(parts, PipelineConfig(cuts=(cut,)), pipe=2, remat=True)
    found = []

    def local(state, batch):
        pipe, micro = make_training_pipeline(layout, state, batch)
        found.append(
            ScheduleRunner(pipe, state.params, state.stats, micro, graded=True)
        )
        return jnp.zeros(1)

    specs = jax.tree.map(lambda x: x.sharding.spec, layout.state)
    run = layout.shard_map(local, specs, layout.batch_shapes, P("pipe"))
    jax.eval_shape(run, layout.state, dict(layout.batch_shapes))
    handed = SAMPLES * sum(FEATURES[x] for x in HANDED[cut])
    assert found[0].input_lengths == {"float32": handed}
    blocks = [*FEATURES]
    place = blocks.index(cut)
    # What a stage sends it does not keep.
    for trace, own in zip(found[0].traces, (blocks[: place - 1], blocks[place:])):
        # Images have one channel, masks none.
        shapes = [x for x in trace.residual_spec.shapes if len(x) == 4 and x[-1] > 1]
        kept = sorted(math.prod(x[1:]) for x in shapes)
        assert kept == sorted(FEATURES[x] for x in own)
