"""Blocks that are computed again keep what lies between them, and nothing inside."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import image_shape, model_factory
from jaxdist.train import remake
from jaxdist.train.task import Task

CONFIG = ModelConfig(name="vgg16", size="tiny")


def kept_bytes(marked):
    """Bytes that the forward pass hands to the backward pass, parameters apart."""
    task = Task(model=model_factory(CONFIG), optimizer=optax.identity())
    found = []

    def run(params, image):
        def loss(params):
            model = nnx.merge(task.graph, params, task.state.stats, copy=True)
            model.eval()
            if marked:
                remake.mark(model)
            return jnp.square(model(image)).sum()

        _, back = jax.vjp(remake.remade(loss) if marked else loss, params)
        found.extend(x.nbytes for x in jax.tree.leaves(back.opaque_residuals))

    image = jax.ShapeDtypeStruct((4, *image_shape(CONFIG)), jnp.float32)
    jax.eval_shape(run, task.state.params, image)
    return sum(found)


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
    kept = kept_bytes(marked=True)
    assert kept <= between_bytes()
    assert kept < 0.7 * kept_bytes(marked=False)


class Plain(nnx.Module):
    """A network without blocks."""


def test_a_network_without_blocks_is_refused():
    with pytest.raises(BadInput, match="Plain has no blocks") as caught:
        remake.check(Plain())
    assert caught.value.remedy == ("plan.remat=false",)
