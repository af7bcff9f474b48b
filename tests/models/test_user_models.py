"""A network of one's own is made from its name, with what it takes."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import (
    is_user_model,
    make_model,
    model_factory,
    objective_for,
)
from jaxdist.train.objective import Classification, Regression

FILE = """
from flax import nnx
from jaxdist.train.objective import Regression

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.dense = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.dense(x)

class Estimate(nnx.Module):
    objective = Regression(tolerance=0.5)

    def __init__(self, config, *, dtype=None, rngs):
        self.classes, self.dtype = config.classes, dtype
        self.dense = nnx.Linear(3, 2, dtype=dtype, rngs=rngs)

def made(rngs):
    return Net(rngs=rngs)

def bare():
    return 3

def nothing(rngs):
    return None
"""


@pytest.fixture
def named(tmp_path):
    (tmp_path / "nets.py").write_text(FILE)

    def config(name, **how):
        return ModelConfig(name=f"{tmp_path}/nets.py:{name}", **how)

    return config


def make(config, **how):
    return model_factory(config)(rngs=nnx.Rngs(0), **how)


@pytest.mark.parametrize("name", ["Net", "made"])
def test_a_class_or_a_function_makes_it(named, name):
    assert is_user_model(named(name))
    network = make(named(name), dtype=None)
    assert network(jnp.ones((5, 3))).shape == (5, 2)
    assert isinstance(objective_for(named(name)), Classification)


def test_it_gets_what_it_takes(named):
    network = make(named("Estimate", classes=7), dtype="bfloat16")
    assert (network.classes, network.dtype) == (7, "bfloat16")
    assert objective_for(named("Estimate")) == Regression(tolerance=0.5)


def test_plain_settings_make_it_again(named):
    settings = {"name": named("Net").name, "classes": None}
    again = make_model(settings, dtype=None, rngs=nnx.Rngs(0))
    first = make(named("Net"))
    equal = jax.tree.map(
        lambda a, b: bool((a == b).all()),
        nnx.to_pure_dict(nnx.state(first)),
        nnx.to_pure_dict(nnx.state(again)),
    )
    assert all(jax.tree.leaves(equal))


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("bare", {}, "takes no rngs"),
        ("nothing", {}, "it gives NoneType"),
        ("Net", {"dtype": "bfloat16"}, "precision=float32"),
        ("Nett", {}, "did you mean .*nets.py:Net?"),
    ],
)
def test_what_makes_no_network_is_refused(named, name, how, said):
    with pytest.raises(BadInput, match=said):
        make(named(name), **how)
