"""Fused attention: a primitive that keeps no array of tokens x tokens.

    out, lse            = fused_attention(query, key, value)
    query', key', value' = fused_attention_gradient(query, key, value, out, lse, out')

lse is the logarithm of the sum of the exponentials of a query's scores, from which the
backward pass computes its softmax again (Dao et al. 2022, arXiv:2205.14135, section 3).
Each platform has the kernel of its maker: a TPU jax's splash attention in Pallas, a GPU
of NVIDIA that of cuDNN. On others the same sums are written out.

It is causal, or of tokens that all see all keys, as a block of a longer causal one is.

It is one operation of a traced program, whatever the platform: its FLOPs are counted
from its shapes, and its results are all that it keeps.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxdist.core.array_tags import FUSED_ATTENTION, FUSED_ATTENTION_GRADIENT
from jaxdist.core.dtypes import accumulation_dtype

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

TILE: Final = 128
"""Tokens of a tile of splash attention: other numbers are padded to a multiple."""
CUDNN_FEATURES: Final = 8
"""cuDNN takes multiples of it as the features of a head; others are padded."""
_LARGEST_TILE: Final = 512
"""Tokens of a tile where a window is a multiple of them: fewer, larger products."""


@jax.custom_vjp
def fused_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array | None = None,
) -> jax.Array:
    """Attend causally, with the kernel of the platform that the program is lowered for.

    Args:
        query: [B, T, heads, D].
        key: [B, T, kv_heads, D]; heads are a multiple of kv_heads.
        value: as `key`.
        segments: int32 [B, T], the document of each token; None: one document.

    Returns:
        [B, T, heads, D].
    """
    return attention_forward(query, key, value, *_given(segments))[0]


def _given(segments: jax.Array | None) -> tuple[jax.Array, ...]:
    """Return the operands of a primitive that a window of one document does without."""
    return () if segments is None else (segments,)


def _keep(
    query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array | None
) -> tuple[jax.Array, Any]:
    out, lse = attention_forward(query, key, value, *_given(segments))
    return out, (query, key, value, out, lse, segments)


def _pull_back(kept: Any, cotangent: jax.Array) -> tuple[jax.Array | None, ...]:
    *arrays, segments = kept
    return (*attention_gradient(*arrays, cotangent, *_given(segments)), None)


fused_attention.defvjp(_keep, _pull_back)


def attention_forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *segments: jax.Array,
    causal: bool = True,
    fused: bool = True,
) -> list[jax.Array]:
    """Return the result and lse [B, heads, T].

    Args:
        query: [B, T, heads, D].
        key: [B, T, kv_heads, D].
        value: as `key`.
        *segments: none; or int32 [B, T], the document of each token; or that of each
            query and that of each key, where tokens see those of their own document.
        causal: whether a token sees those up to itself alone, and not all.
        fused: whether by the kernel of the platform, and not written out.
    """
    if not fused:
        return _written(query, key, value, *segments, causal=causal)
    found: list[jax.Array] = _forward.bind(query, key, value, *segments, causal=causal)
    return found


def attention_gradient(
    *kept: jax.Array, causal: bool = True, fused: bool = True
) -> list[jax.Array]:
    """Return the gradients of query, key and value.

    Of a block of longer attention they are its part of the whole ones, where result and
    lse are those of all keys.

    Args:
        *kept: query, key, value, result, lse, the cotangent of the result, and
            segments where there are any, as of `attention_forward`.
        causal: as of `attention_forward`.
        fused: as there.
    """
    if not fused:
        return _written_gradient(*kept, causal=causal)
    found: list[jax.Array] = _backward.bind(*kept, causal=causal)
    return found


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *segments: jax.Array,
    causal: bool = True,
    interpret: bool = False,
) -> list[jax.Array]:
    """Return the result and lse [B, heads, T], by splash attention.

    Args:
        query: [B, T, heads, D].
        key: [B, T, kv_heads, D].
        value: as `key`.
        *segments: as of `attention_forward`.
        causal: as of `attention_forward`; else tokens are a multiple of `TILE`.
        interpret: whether to run the kernel as a program of any platform.
    """
    count = query.shape[1]
    given = _splash_inputs(query, key, value)
    # With x64 the kernel's indices would be of two dtypes.
    with jax.enable_x64(False):
        attend = _splash(given[0].shape, segments, causal, interpret)
        out, back = jax.vjp(attend, *given)
    # jax's function returns the result alone. Its backward pass keeps lse.
    lse = next(x for x in jax.tree.leaves(back) if _is_lse(x, out))
    return [out.swapaxes(1, 2)[:, :count], lse[..., :count]]


def splash_attention_gradient(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    lse: jax.Array,
    cotangent: jax.Array,
    *segments: jax.Array,
    causal: bool = True,
    interpret: bool = False,
) -> list[jax.Array]:
    """Return the gradients of query, key and value, by splash attention.

    Args:
        query: [B, T, heads, D].
        key: [B, T, kv_heads, D].
        value: as `key`.
        out: the result.
        lse: as `splash_attention` returns it.
        cotangent: of the result.
        *segments: as of `attention_forward`.
        causal: as there.
        interpret: as there.
    """
    count = query.shape[1]
    pad = -count % TILE
    # Differentiated as well, so that gradients come out scaled and without the padding.
    given, pull_back = jax.vjp(_splash_inputs, query, key, value)
    # Queries of the padding have cotangents of zero: any finite lse does for them.
    own = _heads_first(out), jnp.pad(lse, ((0, 0), (0, 0), (0, pad)))
    asked = _heads_first(cotangent)
    with jax.enable_x64(False):
        attend = _splash(given[0].shape, segments, causal, interpret)
        made, back = jax.vjp(attend, *given)
        pulled = _with_results(back, made, *own)(asked)
    gradients: list[jax.Array] = list(pull_back(pulled))
    return gradients


def _splash_inputs(
    query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, ...]:
    # The kernel takes scores as they are.
    scaled = query / math.sqrt(query.shape[-1])
    return _heads_first(scaled), _heads_first(key), _heads_first(value)


def _heads_first(x: jax.Array) -> jax.Array:
    """Return `[B, heads, T, D]` of `[B, T, heads, D]`, T padded to whole tiles.

    No token sees one behind it, so that those of the padding change none; where all
    see all there is none.
    """
    return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, -x.shape[1] % TILE), (0, 0)))


def _splash(
    shape: tuple[int, ...],
    segments: tuple[jax.Array, ...],
    causal: bool,
    interpret: bool,
) -> Attend:
    """Return splash attention for queries of a shape `[B, heads, T, D]`."""
    # Imported where it is used: Pallas takes half a second.
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernels,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_mask as masks,
    )

    _, heads, count, _ = shape
    # The count is padded to whole tiles of TILE, so that this is never smaller.
    tile = math.gcd(count, _LARGEST_TILE)
    tiles = kernels.BlockSizes(
        block_q=tile,
        block_kv=tile,
        block_q_dkv=tile,
        block_kv_dkv=tile,
        block_q_dq=tile,
        block_kv_dq=tile,
    )
    mask = masks.CausalMask if causal else masks.FullMask
    kernel = kernels.make_splash_mha(
        mask=masks.MultiHeadMask([mask((count, count))] * heads),
        block_sizes=tiles,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    # Grouped queries: the kernel reads the keys of a group where they are.
    mapped: Attend = jax.vmap(kernel)
    if not segments:
        return mapped
    # The padding is a document of its own; queries and keys may have the same segments.
    pad = ((0, 0), (0, count - segments[0].shape[1]))
    ids = [jnp.pad(x, pad, constant_values=-1) for x in (segments[0], segments[-1])]
    each: Any = jax.vmap(
        lambda q, k, v, *own: kernel(q, k, v, kernels.SegmentIds(*own))
    )
    return lambda query, key, value: each(query, key, value, *ids)


def _cudnn_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool
) -> list[jax.Array]:
    # Of several documents in a window nothing gets here: see `attention_kernel`.
    count, features = query.shape[1], query.shape[-1]
    out, back = jax.vjp(_cudnn(features, causal), *map(_pad, (query, key, value)))
    lse = next(x for x in jax.tree.leaves(back) if _is_lse(x, out))
    return [out[:, :count, :, :features], lse[..., :count]]


def _cudnn_gradient(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    lse: jax.Array,
    cotangent: jax.Array,
    *,
    causal: bool,
) -> list[jax.Array]:
    count, features = query.shape[1], query.shape[-1]
    made, back = jax.vjp(_cudnn(features, causal), *map(_pad, (query, key, value)))
    # As with splash attention: cotangents of the padding are zero, so any lse does for
    # it.
    own = _pad(out), jnp.pad(lse, ((0, 0), (0, 0), (0, count % 2)))
    # cuDNN adds in no fixed order here: two runs may differ in the last digits.
    pulled = _with_results(back, made, *own)(_pad(cotangent))
    return [x[:, :count, :, :features] for x in pulled]


def _pad(x: jax.Array) -> jax.Array:
    """Return `[B, T, heads, D]` as cuDNN takes it: T even, D a multiple of 8.

    Zeros behind the features change no sum, and no token sees one behind it; where all
    see all, T is even.
    """
    tokens, features = x.shape[1] % 2, -x.shape[-1] % CUDNN_FEATURES
    return jnp.pad(x, ((0, 0), (0, tokens), (0, 0), (0, features)))


def _cudnn(features: int, causal: bool) -> Attend:
    return partial(
        jax.nn.dot_product_attention,
        # Of the features before padding: jax itself takes those that it is given.
        scale=1 / math.sqrt(features),
        is_causal=causal,
        implementation="cudnn",
    )


def _is_lse(kept: jax.Array, out: jax.Array) -> bool:
    """Tell which array that a kernel keeps is the logarithm of its sums."""
    return kept.ndim == out.ndim - 1 and kept.dtype == jnp.float32


def _with_results(back: Any, made: jax.Array, out: jax.Array, lse: jax.Array) -> Any:
    """Return a kernel's backward pass that reads results which were computed before.

    Those of its own forward pass are then read by nobody, and no compiler makes them.

    Args:
        back: the backward pass, a tree of what the forward pass keeps.
        made: its result.
        out: the result from before.
        lse: the logarithms from before.
    """

    def replaced(kept: jax.Array) -> jax.Array:
        if kept is made:
            return out
        return lse if _is_lse(kept, made) else kept

    return jax.tree.map(replaced, back)


def _written(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array | None = None,
    key_segments: jax.Array | None = None,
    *,
    causal: bool,
) -> list[jax.Array]:
    """Compute both results as a formula says, for platforms without a kernel."""
    scores = attention_scores(query, key, segments, key_segments, causal=causal)
    lse = jax.nn.logsumexp(scores, axis=-1)
    shift = lse
    if key_segments is not None:
        # A query that sees none of these keys has a sum of 0, and weights of 0.
        shift = jnp.where(jnp.isneginf(lse), jnp.zeros_like(lse), lse)
    weights = jnp.exp(scores - shift[..., None]).astype(value.dtype)
    out = jnp.einsum("bkgts,bskd->btkgd", weights, value)
    samples, count, heads, _ = query.shape
    return [out.reshape(query.shape), lse.reshape(samples, heads, count)]


def _written_gradient(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    lse: jax.Array,
    cotangent: jax.Array,
    segments: jax.Array | None = None,
    key_segments: jax.Array | None = None,
    *,
    causal: bool,
) -> list[jax.Array]:
    samples, count, _, features = query.shape
    full = accumulation_dtype(query.dtype)
    # [B, T, kv_heads, group, D]
    grouped = (samples, count, key.shape[2], -1, features)
    asked, pulled, own = (
        x.astype(full).reshape(grouped) for x in (query, cotangent, out)
    )
    scores = attention_scores(query, key, segments, key_segments, causal=causal)
    weights = jnp.exp(scores - lse.reshape(scores.shape[:-1])[..., None])
    reads = jnp.einsum("btkgd,bskd->bkgts", pulled, value.astype(full))
    # The sum over keys of weights x reads is the product of cotangent and result
    # (Dao et al. 2022, appendix B.2).
    mean = jnp.einsum("btkgd,btkgd->bkgt", pulled, own)
    slopes = weights * (reads - mean[..., None]) / math.sqrt(features)
    gradients = (
        jnp.einsum("bkgts,bskd->btkgd", slopes, key.astype(full)).reshape(query.shape),
        jnp.einsum("bkgts,btkgd->bskd", slopes, asked),
        jnp.einsum("bkgts,btkgd->bskd", weights, pulled),
    )
    each = zip(gradients, (query, key, value), strict=True)
    return [gradient.astype(x.dtype) for gradient, x in each]


def attention_scores(
    query: jax.Array,
    key: jax.Array,
    segments: jax.Array | None = None,
    key_segments: jax.Array | None = None,
    *,
    causal: bool = True,
) -> jax.Array:
    """Return the scores [B, kv_heads, group, T, T], -inf where a token is not seen.

    Heads that share keys are a dim of their own, so that no key is repeated in memory.

    Args:
        query: [B, T, heads, D].
        key: [B, T, kv_heads, D]; heads are a multiple of kv_heads.
        segments: int32 [B, T], the document of each token; None: one document.
        key_segments: that of each key, where queries are of other tokens.
        causal: whether a token sees those up to itself alone, and not all.
    """
    samples, count, _, features = query.shape
    grouped = query.reshape(samples, count, key.shape[2], -1, features)
    full = accumulation_dtype(query.dtype)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key, preferred_element_type=full)
    scores = scores / math.sqrt(features)
    seen = jnp.tril(jnp.ones((count, count), bool)) if causal else jnp.bool_(True)
    if segments is not None:
        keys = segments if key_segments is None else key_segments
        seen = (seen & (segments[:, :, None] == keys[:, None, :]))[:, None, None]
    elif not causal:
        return scores
    # -inf, so that its exponential is exactly 0. Of causal scores no row is all of it:
    # a token sees itself.
    return jnp.where(seen, scores, -jnp.inf)


def _primitive(
    name: str,
    types: Callable[..., list[Any]],
    written: Callable[..., list[jax.Array]],
    kernels: dict[str, Callable[..., list[jax.Array]]],
) -> Primitive:
    # Not `lax.platform_dependent`, which keeps for the backward pass what any of its
    # branches reads: the scores of the written one as well.
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(types)
    # Outside of a program it is a program of its own, for the platform at hand.
    primitive.def_impl(jax.jit(primitive.bind, static_argnames="causal"))
    # A rule without a platform serves all that have none of their own.
    for platform, run in {"": written, **kernels}.items():
        mlir.register_lowering(
            primitive,
            mlir.lower_fun(run, multiple_results=True),
            platform=platform or None,
        )
    batching.primitive_batchers[primitive] = partial(_batched, primitive)
    return primitive


def _batched(primitive: Primitive, arrays: Any, dims: Any, *, causal: bool) -> Any:
    """Put the samples of a mapped dim beside the others: they do not see each other."""
    size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
    front = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(arrays, dims, strict=True)
    ]
    merged = (x.reshape(-1, *x.shape[2:]) for x in front)
    outs = primitive.bind(*merged, causal=causal)
    return [x.reshape(size, -1, *x.shape[1:]) for x in outs], [0] * len(outs)


def _forward_types(
    query: Any, key: Any, value: Any, *_: Any, causal: bool
) -> list[Any]:
    del key, value, causal
    samples, count, heads, _ = query.shape
    full = accumulation_dtype(query.dtype)
    # lse is float32 or wider, whatever the dtype: the backward pass takes its
    # exponential.
    return [query, query.update(shape=(samples, heads, count), dtype=full)]


def _backward_types(
    query: Any, key: Any, value: Any, *_: Any, causal: bool
) -> list[Any]:
    del causal
    return [query, key, value]


_forward: Final = _primitive(
    FUSED_ATTENTION,
    _forward_types,
    _written,
    {"tpu": splash_attention, "cuda": _cudnn_attention},
)
_backward: Final = _primitive(
    FUSED_ATTENTION_GRADIENT,
    _backward_types,
    _written_gradient,
    {"tpu": splash_attention_gradient, "cuda": _cudnn_gradient},
)
