"""FLOPs that MFU counts: those of the network, and none of padding."""

import jax
import jax.numpy as jnp
import pytest

from jaxdist.core.profile import Profile
from jaxdist.models.config import ModelConfig
from jaxdist.models.transformer import Llama
from jaxdist.profile.abstract import build_abstract_network
from jaxdist.profile.network_profile import profile_network

TOKENS = jax.ShapeDtypeStruct((4, 16), jnp.int32)


def profile(capacity):
    config = ModelConfig(
        name="llama", size="tiny", depth=3, experts=8, capacity_factor=capacity
    )
    made = build_abstract_network(
        lambda dtype, rngs: Llama(config, dtype=dtype, rngs=rngs)
    )
    return profile_network(made, [TOKENS])


# Eight experts of which a token chooses two: more than four times the slots are never.
@pytest.mark.parametrize("capacity", [1.25, 4.0, 9.0])
def test_empty_slots_of_experts_are_no_work_of_the_model(capacity):
    padded, dropless = profile(capacity), profile(None)
    assert dropless.model_flops == dropless.flops
    # Beside products, which are equal, slots are moved in another way than rows.
    assert padded.model_flops == pytest.approx(dropless.flops, rel=0.02)
    assert padded.flops > 1.1 * dropless.flops
    assert Profile.from_json(padded.to_json()) == padded
    ideal = padded.ideal_seconds(4, 1e9)
    assert ideal == pytest.approx(padded.model_flops / 4e9)


def test_experts_that_drop_choices_have_no_padding():
    assert profile(0.5).padding_flops == 0
