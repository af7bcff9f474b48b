"""Leaves have one name each, the path a person would give."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.train.state import TrainState, leaf_names, named_leaves, replace_leaves


class Net(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)


def make_state():
    _, params, stats = nnx.split(Net(nnx.Rngs(0)), nnx.Param, nnx.BatchStat)
    opt = optax.sgd(0.1, momentum=0.9).init(params)
    return TrainState(step=jnp.int32(0), params=params, stats=stats, opt=opt)


def test_names_are_paths_without_the_wrapping_of_variables():
    names = leaf_names(make_state())
    assert {"step", "params/stem/kernel", "stats/norm/mean"} <= set(names)
    assert "opt/0/trace/stem/kernel" in names
    assert not any("value" in name for name in names)


def test_names_follow_the_order_of_the_leaves():
    state = make_state()
    for named, leaf in zip(
        named_leaves(state).values(), jax.tree.leaves(state), strict=True
    ):
        assert named is leaf


def test_an_abstract_state_has_the_same_names():
    assert leaf_names(jax.eval_shape(make_state)) == leaf_names(make_state())


def test_leaves_put_back_by_name_give_the_same_tree():
    state = make_state()
    again = replace_leaves(state, named_leaves(state))
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert isinstance(again.params, nnx.State)


def test_a_state_passes_through_jit():
    state = jax.jit(lambda s: s)(make_state())
    assert isinstance(state, TrainState)


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(ValueError, match="same name"):
        leaf_names({"a": {"b": 1}, "a/b": 2})
