"""Law 1 for language models: a split step equals one device's, leaf by leaf."""

from dataclasses import replace

import optax
import pytest

from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig, make_optimizer

pytestmark = pytest.mark.laws

LAYOUTS = {
    "data 4 x idle 2": dict(data=4, tensor=2, replicated_axes=("tensor",)),
    "tensor 2": dict(tensor=2),
    "data 2 x fsdp 2 x tensor 2": dict(data=2, fsdp=2, tensor=2),
    "fsdp 2 x tensor 2, filter": dict(fsdp=2, tensor=2, tensor_strategy="filter"),
    "data 2 x tensor 2, sequence": dict(data=2, tensor=2, tensor_strategy="sequence"),
    "fsdp 2 x tensor 2, sequence, blocks remade": dict(
        fsdp=2, tensor=2, tensor_strategy="sequence", remat=True
    ),
    "tensor 2, sequence": dict(tensor=2, tensor_strategy="sequence"),
    "data 2 x fsdp 2 x tensor 2, sequence, zero 1": dict(
        data=2, fsdp=2, tensor=2, zero=1, tensor_strategy="sequence"
    ),
    "fsdp 2 x tensor 2, sequence": dict(fsdp=2, tensor=2, tensor_strategy="sequence"),
    "data 2 x tensor 4, channel": dict(data=2, tensor=4, tensor_strategy="channel"),
}


PARTS = ("tensor 2", "tensor 2, sequence", "fsdp 2 x tensor 2, sequence")
"""Layouts of which another one has the axes and the way, and more."""


def tiny(name):
    return ModelConfig(name=name, size="tiny", depth=2, dropout=0.3)


def in_turn():
    """Every network in every layout; by default each whole layout with one of the two."""
    for number, layout in enumerate(LAYOUTS):
        for turn, name in enumerate(("gpt2_small", "llama")):
            often = number % 2 == turn and layout not in PARTS
            marks = [] if often else [pytest.mark.slow]
            yield pytest.param(name, layout, marks=marks, id=f"{name}-{layout}")


@pytest.mark.parametrize(("name", "layout"), list(in_turn()))
def test_one_step(name, layout, assert_equal_one_device):
    assert_equal_one_device(tiny(name), LAYOUTS[layout], size=8)


@pytest.mark.parametrize(
    "layout",
    [
        "data 2 x tensor 2, sequence",
        *(
            pytest.param(layout, marks=pytest.mark.slow)
            for layout in LAYOUTS
            if layout not in (*PARTS, "data 2 x tensor 2, sequence")
        ),
    ],
)
def test_a_head_of_its_own_and_biases(layout, assert_equal_one_device):
    """As Qwen2 and Llama 3 have them: untied logits, biases of queries, keys, values."""
    config = replace(
        tiny("llama"),
        tied_head=False,
        qkv_bias=True,
        head_size=16,
        norm_epsilon=1e-6,
        rope_scaling="llama3",
        rope_factor=4.0,
        rope_context=8,
    )
    assert_equal_one_device(config, LAYOUTS[layout], size=8)


def test_a_clipped_step_of_adamw(assert_equal_one_device):
    """The length that is clipped is that of the whole batch's gradient."""
    config = OptimConfig(name="adamw", clip=0.5, weight_decay=0.1, beta2=0.99)
    moves = make_optimizer(config, optax.constant_schedule(0.01))
    assert_equal_one_device(
        tiny("llama"), LAYOUTS["data 4 x idle 2"], size=8, optimizer=moves
    )
