"""Attention against its formula, in every precision, and with every kernel."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxdist.core.array_tags import FUSED_ATTENTION
from jaxdist.layers import causal_attention
from jaxdist.layers.attention import attention_kernel
from jaxdist.layers.fused_attention import (
    attention_forward,
    splash_attention,
    splash_attention_gradient,
)
from jaxdist.profile.flops import fused_kernel_flops, program_flops, walk_jaxpr
from jaxdist.profile.trace import trace_pruned


def drawn(kv_heads=4, dtype="float64"):
    rng = np.random.default_rng(0)
    shapes = ((2, 5, 4, 6), (2, 5, kv_heads, 6), (2, 5, kv_heads, 6))
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def spelt_out(query, key, value):
    """Token by token and head by head."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    share = query.shape[2] // key.shape[2]
    out = np.zeros(query.shape)
    for b, t, h in np.ndindex(query.shape[:3]):
        scores = key[b, : t + 1, h // share] @ query[b, t, h] / np.sqrt(6)
        weights = np.exp(scores) / np.exp(scores).sum()
        out[b, t, h] = weights @ value[b, : t + 1, h // share]
    return out


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_it_is_the_formula_to_the_last_digits_of_float64(kv_heads):
    with jax.enable_x64(True):
        parts = drawn(kv_heads)
        found = np.asarray(jax.jit(causal_attention)(*parts))
    np.testing.assert_allclose(found, spelt_out(*parts), rtol=1e-13, atol=1e-14)


def test_it_is_jax_s_own_in_float32():
    parts = drawn(dtype="float32")
    want = jax.nn.dot_product_attention(*parts, is_causal=True)
    np.testing.assert_allclose(causal_attention(*parts), want, atol=1e-6)


def test_narrow_inputs_keep_their_dtype():
    parts = drawn(dtype="bfloat16")
    found = causal_attention(*parts)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, "f8"), spelt_out(*parts), atol=0.05)


def sampled(tokens, kv_heads, features, dtype="float32"):
    """Queries of 4 heads, keys and values, and a cotangent."""
    rng = np.random.default_rng(1)
    heads = (4, kv_heads, kv_heads, 4)
    shapes = ((2, tokens, count, features) for count in heads)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def with_gradients(attend, query, key, value, cotangent):
    out, back = jax.vjp(attend, query, key, value)
    return [out, *back(cotangent)]


def on(platform, segments=None):
    return partial(causal_attention, platform=platform, segments=segments)


def documents(count):
    """Two samples: three documents in a window, and one."""
    starts = np.zeros((2, count), np.int32)
    starts[0, 3:], starts[0, count // 2 :] = 3, count // 2
    return jnp.asarray(starts)


# Whole tiles and parts of them; heads that share keys; features that no tile divides.
SHAPES = {"whole": (256, 4, 8), "padded": (130, 2, 16), "one key": (128, 1, 24)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_splash_attention_is_the_written_one(shape):
    """The Pallas kernel as it is, run as a program of this platform."""
    parts = sampled(*shape)
    *given, cotangent = parts
    out, lse = jax.jit(partial(splash_attention, interpret=True))(*given)
    slopes = jax.jit(partial(splash_attention_gradient, interpret=True))(
        *given, out, lse, cotangent
    )
    for got, want in zip(
        (out, *slopes), with_gradients(on("cpu"), *parts), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("shape", ["padded", "one key"])
def test_splash_attention_keeps_documents_apart(shape):
    parts = sampled(*SHAPES[shape])
    *given, cotangent = parts
    own = documents(given[0].shape[1])
    out, lse = jax.jit(partial(splash_attention, interpret=True))(*given, own)
    slopes = jax.jit(partial(splash_attention_gradient, interpret=True))(
        *given, out, lse, cotangent, own
    )
    want = with_gradients(on("cpu", own), *parts)
    for got, right in zip((out, *slopes), want, strict=True):
        np.testing.assert_allclose(got, right, atol=1e-5)


def test_a_block_of_splash_attention_keeps_documents_apart():
    """Queries that see none of the keys have the weight 0 beside other blocks."""
    *given, _ = sampled(128, 2, 8)
    asked, read = documents(128), documents(128)[::-1] + 3
    block = partial(attention_forward, causal=False, fused=False)
    want, sums = jax.jit(block)(*given, asked, read)
    seen = np.isfinite(sums)
    assert seen.any()
    assert not seen.all()
    run = partial(splash_attention, causal=False, interpret=True)
    out, lse = jax.jit(run)(*given, asked, read)
    np.testing.assert_allclose(np.where(seen, lse, 0), np.where(seen, sums, 0), 1e-5)
    assert (np.asarray(lse)[~seen] < -1e30).all()
    assert np.isfinite(out).all()
    by_token = seen.swapaxes(1, 2)[..., None]
    np.testing.assert_allclose(
        np.where(by_token, out, 0), np.where(by_token, want, 0), atol=1e-5
    )
    assert not np.asarray(want)[~np.broadcast_to(by_token, want.shape)].any()


def test_documents_in_a_window_attend_as_if_alone():
    *given, _ = sampled(128, 2, 8)
    own = documents(128)
    for platform in ("cpu", "tpu"):
        found = on(platform, own)(*given)
        for a, b in ((0, 3), (3, 64), (64, 128)):
            alone = on("cpu")(*(x[:1, a:b] for x in given))
            np.testing.assert_allclose(found[:1, a:b], alone, atol=1e-6)


def test_the_primitive_with_documents_is_the_written_one():
    parts = sampled(*SHAPES["padded"])
    own = documents(130)
    found = jax.jit(partial(with_gradients, on("tpu", own)))(*parts)
    for got, want in zip(found, with_gradients(on("cpu", own), *parts), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_backward_pass_runs_no_forward_kernel():
    *given, cotangent = sampled(128, 2, 16)
    out, lse = jax.eval_shape(partial(splash_attention, interpret=True), *given)
    program = trace_pruned(splash_attention_gradient, *given, out, lse, cotangent)
    # One for the gradient of queries, one for those of keys and values.
    assert str(program).count("pallas_call[") == 2


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_primitive_is_the_written_one_where_there_is_no_kernel(shape):
    parts = sampled(*shape)
    found = jax.jit(partial(with_gradients, on("tpu")))(*parts)
    for got, want in zip(found, with_gradients(on("cpu"), *parts), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_samples_of_a_mapped_dim_are_samples():
    parts = [jnp.stack([x, 2 * x]) for x in sampled(128, 2, 8)[:3]]
    found = jax.vmap(on("tpu"), in_axes=1, out_axes=1)(
        *(x.swapaxes(0, 1) for x in parts)
    )
    want = jnp.stack([on("cpu")(*(x[i] for x in parts)) for i in range(2)], 1)
    np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fused_one_has_the_flops_of_the_written_one_and_keeps_no_scores(dtype):
    *given, cotangent = sampled(130, 2, 16, dtype)
    flops, kept = {}, {}
    for platform in ("cpu", "tpu"):
        forward = trace_pruned(on(platform), *given)
        both = trace_pruned(partial(with_gradients, on(platform)), *given, cotangent)
        flops[platform] = program_flops(forward), program_flops(both)
        kept[platform] = sum(op.inner_bytes for op in walk_jaxpr(forward))
    # But for numbers alone, such as a scale that is cast.
    assert flops["tpu"] == pytest.approx(flops["cpu"], abs=2)
    wide = 4 if dtype == "float32" else 2
    # The result, and a float32 for each query.
    assert kept["tpu"] == 2 * 130 * 4 * (16 * wide + 4)
    assert kept["cpu"] >= 2 * 4 * 130**2 * 4


def test_a_kernel_multiplies_what_is_seen_alone():
    *given, cotangent = sampled(130, 2, 16)
    both = trace_pruned(partial(with_gradients, on("tpu")), *given, cotangent)
    flops = [n for op in walk_jaxpr(both) if (n := fused_kernel_flops(op.eqn))]
    pairs = sum(range(1, 131))  # each of 130 tokens with itself and those before it
    each = 2 * 16 * 2 * 4 * pairs  # a product of 16 features, 2 samples of 4 heads
    assert flops == [2 * each, 7 * each]


@pytest.mark.parametrize(
    ("platform", "dtype", "tokens", "features", "kernel"),
    [
        ("cpu", "bfloat16", 4096, 128, "einsum"),
        ("tpu", "bfloat16", 4096, 128, "splash"),
        ("tpu", "float32", 130, 64, "splash"),
        ("tpu", "float64", 4096, 128, "einsum"),
        ("tpu", "bfloat16", 64, 128, "einsum"),
        ("gpu", "bfloat16", 4096, 128, "cudnn"),
        ("gpu", "float16", 4096, 64, "cudnn"),
        ("gpu", "float32", 4096, 64, "einsum"),
        ("gpu", "bfloat16", 4096, 256, "einsum"),
    ],
)
def test_each_platform_has_its_kernel(platform, dtype, tokens, features, kernel):
    assert attention_kernel(platform, dtype, tokens, features) == kernel


def test_without_a_layout_gpus_have_their_kernel_inside_of_a_shard_map_alone(
    monkeypatch,
):
    """Elsewhere jax could not lay it out: a network that was loaded is called so."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    given = sampled(128, 2, 8, "bfloat16")[:3]
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    inside = jax.shard_map(
        causal_attention, mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )
    for function, fused in ((causal_attention, 0), (inside, 1)):
        ops = walk_jaxpr(jax.make_jaxpr(function)(*given).jaxpr)
        found = [op.eqn.primitive.name for op in ops]
        assert found.count(FUSED_ATTENTION) == fused
