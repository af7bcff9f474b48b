"""Blocks that are computed again keep what lies between them, and nothing inside."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import image_shape, model_factory
from jaxdist.train import remat
from jaxdist.train.task import Task

CONFIG = ModelConfig(name="vgg16", size="tiny")


def kept_bytes(plan):
    """Bytes that the forward pass hands to the backward pass, parameters apart."""
    task = Task(model=model_factory(CONFIG), optimizer=optax.identity())
    found = []

    def run(params, image):
        def make(params, stats):
            model = nnx.merge(task.graph, params, stats, copy=True)
            model.eval()
            remat.tag_activations(plan, model)
            return model

        def loss(params):
            out, _ = remat.call_model(plan, make, params, task.state.stats, (image,))
            return jnp.square(out).sum()

        _, back = jax.vjp(remat.maybe_checkpoint(plan, loss), params)
        found.extend(x.nbytes for x in jax.tree.leaves(back.opaque_residuals))

    image = jax.ShapeDtypeStruct((4, *image_shape(CONFIG)), jnp.float32)
    jax.eval_shape(run, task.state.params, image)
    return sum(found)


def made():
    """A network on shapes alone."""
    task = Task(model=model_factory(CONFIG), optimizer=optax.identity())
    return nnx.merge(task.graph, task.state.params, task.state.stats)


def between_bytes():
    """Bytes that the blocks are called on."""
    task = Task(model=model_factory(CONFIG), optimizer=optax.identity())
    found = []

    def run(params, x):
        model = nnx.merge(task.graph, params, task.state.stats, copy=True)
        model.eval()
        for _, block in model.chain():
            found.append(x.nbytes)
            x = block(x)

    image = jax.ShapeDtypeStruct((4, *image_shape(CONFIG)), jnp.float32)
    jax.eval_shape(run, task.state.params, image)
    return sum(found)


def test_what_lies_between_blocks_is_kept_and_nothing_else():
    kept = kept_bytes(Plan(remat=True))
    assert kept <= between_bytes()
    assert kept < 0.7 * kept_bytes(Plan())


def test_the_later_blocks_begin_that_are_kept_the_less_is_kept():
    # Ends at convolutions: a pool that is kept may keep less than its input.
    plans = [Plan(remat=True, remat_end=f"conv2_{number}") for number in (1, 2)]
    found = [kept_bytes(plan) for plan in (Plan(), *plans, Plan(remat=True))]
    assert found == sorted(found, reverse=True)
    assert len({*found}) == len(found)


@pytest.mark.parametrize(
    ("until", "remedy"),
    [
        ("pool2x", "did you mean plan.remat_end=pool2?"),
        ("conv1_1", "plan.remat=false keeps the insides of all blocks"),
    ],
)
def test_an_end_that_is_no_block_is_refused(until, remedy):
    model = made()
    assert next(name for name, _ in model.chain()) == "conv1_1"
    with pytest.raises(BadInput, match=f"until {until}") as caught:
        remat.check_remat(Plan(remat=True, remat_end=until), model)
    assert caught.value.remedy[0] == remedy


class Plain(nnx.Module):
    """A network without blocks."""


def test_a_network_without_blocks_is_refused():
    with pytest.raises(BadInput, match="Plain has no blocks") as caught:
        remat.check_remat(Plan(remat=True), Plain())
    assert caught.value.remedy == ("plan.remat=false",)
