"""Attention to tokens of other devices, form by form; laws hold its numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.core.errors import BadInput
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


TOKENS = 24
ORDER = [0, 1, 2, 3, 20, 21, 22, 23, 4, 5, 6, 7, 16, 17, 18, 19, *range(8, 16)]
"""Tokens of three devices, one device after the other."""


def packed_attention(form):
    """Attention of three devices that takes and returns tokens in order."""
    mesh = Mesh(np.array(jax.devices()[:3]), ("context",))
    spec = P(None, "context")
    split = jax.shard_map(
        lambda *given: causal_attention(*given[:3], context=form, segments=given[3]),
        mesh=mesh,
        in_specs=(spec, spec, spec, P()),
        out_specs=spec,
        check_vma=False,
    )
    back = np.argsort(ORDER)

    def attend(query, key, value, segments):
        dealt = (x[:, np.array(ORDER)] for x in (query, key, value))
        return split(*dealt, segments)[:, back]

    return attend


def packed_window():
    """Two windows: documents that begin at 0, 3 and 13, and one."""
    rng = np.random.default_rng(0)
    heads = (6, 3, 3, 6)
    drawn = [rng.normal(size=(2, TOKENS, n, 8)).astype(np.float32) for n in heads]
    segments = np.zeros((2, TOKENS), np.int32)
    segments[0, 3:], segments[0, 13:] = 3, 13
    return drawn, segments


@pytest.mark.parametrize("form", FORMS)
def test_documents_of_a_window_stay_apart_on_several_devices(form):
    (*given, pulled), segments = packed_window()

    def run(attend):
        out, back = jax.vjp(lambda *x: attend(*x, segments), *given)
        return [out, *back(pulled)]

    want = jax.jit(partial(run, lambda *x: causal_attention(*x[:3], segments=x[3])))()
    for got, right in zip(
        jax.jit(partial(run, packed_attention(form)))(), want, strict=True
    ):
        np.testing.assert_allclose(got, right, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_no_gradient_goes_from_a_document_to_another(form):
    given, segments = packed_window()
    *given, pulled = given
    attend = packed_attention(form)

    @jax.jit
    def slopes(asked):
        _, back = jax.vjp(lambda *x: attend(*x, segments), *given)
        return back(pulled * asked[None, :, None, None])

    for start, end in ((0, 3), (3, 13), (13, 24)):
        asked = np.zeros(TOKENS, np.float32)
        asked[start:end] = 1
        for gradient in slopes(asked):
            own = np.asarray(gradient)[0]
            assert own[start:end].any()
            assert not own[:start].any()
            assert not own[end:].any()


def test_segments_of_a_part_of_the_window_are_refused():
    given, segments = packed_window()
    with pytest.raises(BadInput, match="segments are not of all tokens"):
        packed_attention("ring")(*given[:3], segments[:, :8])
