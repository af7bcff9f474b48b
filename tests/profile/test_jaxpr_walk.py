"""Profiles of networks: every FLOP, parameter and byte in the row of its layer."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdist import Profile
from jaxdist.profile.abstract import build_abstract_network
from jaxdist.profile.flops import walk_jaxpr
from jaxdist.profile.network_profile import (
    NO_CHAIN_NOTE,
    NO_MODULES_NOTE,
    profile_network,
)
from jaxdist.profile.trace import as_function, trace_pruned, with_gradient


class Block(nnx.Module):
    """A dense layer whose scope nobody opens, and a sum of its own."""

    def __init__(self, rngs):
        self.dense = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        return x + self.dense(x)


class Pair(nnx.Module):
    """Two blocks, and one weight that is never used."""

    def __init__(self, *, dtype=None, rngs):
        self.first, self.second = Block(rngs), Block(rngs)
        self.spare = nnx.Linear(8, 3, rngs=rngs)

    def chain(self):
        yield "first", self.first
        yield "second", self.second

    def __call__(self, x):
        return self.second(self.first(x))


class Rolled(nnx.Module):
    """One block that a scan runs four times, each checkpointed."""

    def __init__(self, *, dtype=None, rngs):
        self.block = Block(rngs)

    def __call__(self, x):
        once = nnx.remat(lambda block, x: block(x))
        again = nnx.scan(once, in_axes=(None, nnx.Carry), out_axes=nnx.Carry, length=4)
        return again(self.block, x)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def rows(profile):
    return {row.name: row for row in profile.layers}


@pytest.fixture(scope="module")
def pair():
    return profile_network(build_abstract_network(Pair), [f32(4, 8)])


def test_layers_carry_their_path_and_their_own_work(pair):
    found = rows(pair)
    assert list(found) == [
        *("first.dense", "first", "second.dense", "second", "spare"),
    ]
    dense = found["first.dense"]
    assert (dense.kind, dense.block, dense.parameters) == ("Linear", "first", 72)
    assert dense.flops_forward == 2 * 4 * 8 * 8 + 4 * 8  # the bias is added
    assert dense.output_bytes == 4 * 8 * 4
    own = found["first"]
    assert (own.kind, own.parameters, own.flops_forward) == ("Block", 0, 4 * 8)


def test_the_first_layer_has_no_gradient_of_its_input(pair):
    found = rows(pair)
    product, bias = 2 * 4 * 8 * 8, 3 * 8
    assert found["first.dense"].flops_backward == product + bias
    # The gradients of the sum's two sides meet where the second block begins.
    assert found["second.dense"].flops_backward == 2 * product + bias + 4 * 8


def test_an_unused_layer_keeps_its_parameters_and_does_nothing(pair):
    spare = rows(pair)["spare"]
    assert (spare.parameters, spare.flops, spare.block) == (27, 0, "")


def test_blocks_are_the_sums_of_their_layers_and_may_be_cut_between(pair):
    assert pair.cuts == ("first",)
    for block in pair.blocks:
        inside = [row for row in pair.layers if row.block == block.name]
        for name in ("parameters", "flops_forward", "flops_backward", "state_bytes"):
            assert getattr(block, name) == sum(getattr(row, name) for row in inside)
        assert block.output_bytes == 4 * 8 * 4


def test_an_array_handed_on_is_made_once(pair):
    # Four activations: of each dense layer, and of each sum.
    assert pair.output_bytes == 4 * (4 * 8 * 4)


def test_a_profile_comes_back_from_json(pair):
    assert Profile.from_json(pair.to_json()) == pair


def test_a_scan_gives_its_layer_all_its_trips():
    once = rows(profile_network(build_abstract_network(Pair), [f32(4, 8)]))[
        "second.dense"
    ]
    rolled = rows(profile_network(build_abstract_network(Rolled), [f32(4, 8)]))[
        "block.dense"
    ]
    assert rolled.flops_forward == 4 * once.flops_forward
    assert rolled.output_bytes == 4 * once.output_bytes
    assert rolled.flops_backward == 4 * once.flops_backward


def test_a_network_without_a_chain_says_so():
    profile = profile_network(build_abstract_network(Rolled), [f32(4, 8)])
    assert (profile.blocks, profile.cuts, profile.note) == ((), (), NO_CHAIN_NOTE)
    assert profile.flops > 0


def test_a_chain_of_functions_is_not_cut():
    class Plain(Pair):
        def chain(self):
            yield "first", self.first
            yield "second", jnp.tanh

    assert (
        profile_network(build_abstract_network(Plain), [f32(4, 8)]).note
        == NO_MODULES_NOTE
    )


def test_the_network_itself_stays_as_it_is():
    network = Pair(rngs=nnx.Rngs(0))
    before = nnx.state(network)
    profile_network(network, [f32(4, 8)])
    assert type(network.first) is Block
    jax.tree.map(
        lambda a, b: a is b or pytest.fail("changed"), before, nnx.state(network)
    )


def test_statistics_are_state():
    class Normed(nnx.Module):
        def __init__(self, *, dtype=None, rngs):
            self.norm = nnx.BatchNorm(8, rngs=rngs)

        def __call__(self, x):
            return self.norm(x)

    (row,) = profile_network(build_abstract_network(Normed), [f32(4, 8)]).layers
    assert (row.state_bytes, row.parameter_bytes, row.parameters) == (64, 64, 16)


def test_an_input_without_positions_is_an_error():
    class Shrinking(nnx.Module):
        def __init__(self, *, dtype=None, rngs):
            self.conv = nnx.Conv(1, 2, (3, 3), padding="VALID", rngs=rngs)

        def __call__(self, x):
            return self.conv(x)

    with pytest.raises(ValueError, match="conv returns nothing"):
        profile_network(build_abstract_network(Shrinking), [f32(1, 2, 2, 1)])


def test_the_precision_of_activations_does_not_change_that_of_parameters():
    def make(*, dtype, rngs):
        return nnx.Linear(8, 8, dtype=dtype, rngs=rngs)

    narrow = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    (row,) = profile_network(build_abstract_network(make, "bfloat16"), [narrow]).layers
    assert row.parameter_bytes == 72 * 4


def test_scopes_do_not_change_the_program():
    network = build_abstract_network(Pair)
    run, state = as_function(network)
    plain = with_gradient(run)
    xla = jax.jit(plain).lower(*state, f32(4, 8)).cost_analysis()["flops"]
    assert (
        sum(use.flops for use in walk_jaxpr(trace_pruned(plain, *state, f32(4, 8))))
        == xla
    )
    assert profile_network(network, [f32(4, 8)]).flops == xla
