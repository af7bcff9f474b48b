"""Law 1 and the ledger of factored moments: rows and columns of whole matrices."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from optax import chain

from jaxdist.core.errors import BadInput
from jaxdist.models.config import ModelConfig
from jaxdist.train.adafactor import FactoredMoments, adafactor
from jaxdist.train.optimizers import weight_decay_mask
from jaxdist.train.sharded_norms import clip_by_global_norm

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

LLAMA = ModelConfig(name="llama", size="tiny", depth=2)
IMAGES = ModelConfig(width=8)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def moves():
    factored = adafactor(
        lambda step: 0.05, weight_decay=0.1, mask=weight_decay_mask, min_factored=8
    )
    return chain(clip_by_global_norm(0.5), factored)


@pytest.mark.parametrize(
    ("config", "axes"),
    [
        (LLAMA, dict(data=2, fsdp=2, tensor=2)),
        pytest.param(LLAMA, dict(fsdp=4, scan="on"), marks=pytest.mark.slow),
        pytest.param(LLAMA, dict(fsdp=2, tensor=2, zero=1), marks=pytest.mark.slow),
        pytest.param(
            IMAGES,
            dict(fsdp=2, tensor=2, tensor_strategy="channel"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_rows_and_columns_are_of_whole_matrices(config, axes, parts):
    task = replace(parts.make_task(config, jnp.float64), optimizer=moves())
    state, batch = parts.make_state(task), parts.make_batch(config, jnp.float64, 8)
    want = jax.jit(partial(parts.one_device, task))(state, batch)
    where = parts.layout_of(task, axes, batch)
    params, stats, *rest = parts.run_layout(where, state, batch)
    same = want[1] if config is LLAMA else stats
    parts.assert_leaves_equal((params, same, *rest), want, 1e-9)


def test_moments_lie_as_their_leaves_and_move_little(parts):
    task = replace(parts.make_task(LLAMA, jnp.float64), optimizer=moves())
    batch = parts.make_batch(LLAMA, jnp.float64, 8)
    where = parts.layout_of(task, dict(fsdp=2, tensor=2), batch)

    def is_own(node):
        return isinstance(node, FactoredMoments)

    (own,) = filter(is_own, jax.tree.leaves(where.specs.opt, is_leaf=is_own))
    name = ("block0", "mlp", "up", "kernel")
    row, col, param = (
        part[name[0]][name[1]][name[2]][name[3]].get_value()
        for part in (own.row, own.col, where.specs.params)
    )
    assert (row[0], row[1], col[0], col[1]) == (param[0], None, None, param[1])
    sums = sum(x.payload for x in where.ledger.rows if x.what == "lengths")
    gathers = sum(x.payload for x in where.ledger.rows if x.what == "parameters")
    assert 0 < sums < 0.2 * gathers


def test_a_pipeline_has_no_rows(parts):
    task = replace(parts.make_task(LLAMA, jnp.float64), optimizer=moves())
    batch = parts.make_batch(LLAMA, jnp.float64, 8)
    with pytest.raises(BadInput, match="factored moments") as caught:
        parts.layout_of(task, dict(pipe=2), batch)
    assert caught.value.remedy[0] == "optim.name=adamw"
