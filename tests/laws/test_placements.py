"""A step does not change with where the axes of its mesh lie on devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.models.config import ModelConfig
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.program import compile_program
from jaxdist.train.state import named_leaves

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

CASES = {
    "images and weights": (
        ModelConfig(width=4, dropout=0.3),
        dict(fsdp=2, spatial_h=2, tensor=2, microbatches=1),
        ("spatial_h", "fsdp"),
    ),
    "stages": (
        ModelConfig(name="gpt2_small", size="tiny", depth=1),
        dict(pipe=2, fsdp=2, order=PipelineConfig(schedule="1f1b"), microbatches=2),
        ("pipe",),
    ),
}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=CASES)
def case(parts, request):
    """A task, its layout without and with a placement, a state, and a batch."""
    config, axes, placement = CASES[request.param]
    task = parts.make_task(config, jnp.float64).in_parts(axes["microbatches"])
    batch = parts.make_batch(config, jnp.float64, 16)
    layouts = [
        parts.layout_of(task, {**axes, "placement": inside}, batch)
        for inside in ((), placement)
    ]
    return layouts, jax.tree.map(np.asarray, (parts.make_state(task), batch))


def step(parts, layout, state, batch):
    """Compile a step, audit included; return what a checkpoint would have, and loss."""
    program = compile_program(layout)
    places = jax.tree.map(lambda x: x.sharding, layout.state)
    held = jax.jit(layout.state_layout.to_device, out_shardings=places)(state)
    laid = jax.device_put(parts.padded(batch, layout), program.batch_shardings)
    after, metrics = program.compiled_step(held, laid)
    parts.assert_copies_equal(after)
    return layout.state_layout.to_checkpoint(after), float(metrics.loss)


def test_a_placement_changes_no_number(parts, case, tmp_path):
    (plain, placed), (state, batch) = case
    where = [layout.mesh.device_ids for layout in (plain, placed)]
    assert (where[0] != where[1]).any()
    (want, loss), (got, same) = (step(parts, x, state, batch) for x in (plain, placed))
    assert same == pytest.approx(loss, rel=1e-12)
    whole = jax.tree.map(np.asarray, (got, want))
    parts.assert_leaves_equal(*((x.params, x.stats, x.opt) for x in whole), 1e-9)
    comes_back(got, plain, Checkpoints(tmp_path))


def comes_back(state, layout, checkpoints):
    """Save a state, and restore it to where another layout has it, bit for bit."""
    checkpoints.save(state)
    back = checkpoints.restore_newest(layout.stored).state
    checkpoints.close()
    saved, wanted = named_leaves(state), named_leaves(layout.stored)
    for name, leaf in named_leaves(back).items():
        assert leaf.sharding.is_equivalent_to(wanted[name].sharding, leaf.ndim), name
        assert np.array_equal(leaf, saved[name]), name
