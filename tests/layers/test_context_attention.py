"""Attention to tokens of other devices, form by form; laws hold its numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.layers import causal_attention

FORMS = ("all_gather", "ring", "all_to_all")


def split_attention(form):
    mesh = Mesh(np.array(jax.devices()[:2]), ("context",))
    spec = P(None, "context")
    return jax.shard_map(
        partial(causal_attention, context=form),
        mesh=mesh,
        in_specs=(spec,) * 3,
        out_specs=spec,
        check_vma=False,
    )


@pytest.mark.parametrize("form", FORMS)
def test_narrow_floats_stay_narrow(form):
    """Also where nothing is promoted by itself."""
    query = jax.ShapeDtypeStruct((2, 16, 4, 8), jnp.bfloat16)
    key = jax.ShapeDtypeStruct((2, 16, 2, 8), jnp.bfloat16)
    attend = split_attention(form)

    def gradients(*given):
        out, back = jax.vjp(attend, *given)
        return out, back(out)

    with jax.numpy_dtype_promotion("strict"):
        out, grads = jax.eval_shape(gradients, query, key, key)
    assert (out.shape, out.dtype) == (query.shape, query.dtype)
    assert [x.shape for x in grads] == [query.shape, key.shape, key.shape]
    assert {x.dtype for x in grads} == {query.dtype}


@pytest.mark.parametrize("form", FORMS)
def test_scores_of_all_tokens_are_never_made_blockwise(form):
    """The largest array is of a device's tokens with a device's, but by heads."""
    tokens = 64
    whole = jax.ShapeDtypeStruct((1, tokens, 2, 8), jnp.float32)
    text = str(jax.make_jaxpr(split_attention(form))(whole, whole, whole))
    assert (f"{tokens},{tokens}]" in text) == (form == "all_to_all")
