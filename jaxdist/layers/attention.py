"""Causal attention: each token reads itself and the tokens before it."""

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxdist.core.array_tags import INNER_ACTIVATION
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import ContextForm
from jaxdist.layers.context_attention import blockwise_attention, headwise_attention
from jaxdist.layers.fused_attention import TILE, attention_scores, fused_attention
from jaxdist.layers.token_order import context_devices

AttentionKernel = Literal["splash", "cudnn", "einsum"]
"""Splash attention of TPUs, that of cuDNN, or attention written out as products."""

FUSED_KERNELS: Final[Mapping[str, AttentionKernel]] = MappingProxyType(
    {"tpu": "splash", "gpu": "cudnn"}
)
"""The fused kernel of each platform that has one."""
KERNEL_DTYPES: Final[Mapping[AttentionKernel, tuple[str, ...]]] = MappingProxyType(
    {"splash": ("bfloat16", "float32"), "cudnn": ("bfloat16", "float16")}
)
"""The dtypes that a fused kernel takes."""
_CUDNN_MAX_FEATURES: Final = 128
"""Features of a head that cuDNN takes on every card."""


def attention_kernel(
    platform: str, dtype: Any, tokens: int, features: int, packed: bool = False
) -> AttentionKernel:
    """Return the kernel of causal attention.

    The written one keeps arrays of tokens x tokens. Fused ones keep none, and are for
    windows of at least one tile: shorter ones would be padding for the most part.

    Args:
        platform: of the devices: `cpu`, `gpu` or `tpu`.
        dtype: of queries, keys and values.
        tokens: of a sample.
        features: of a head.
        packed: whether windows hold several documents. jax's function of cuDNN takes
            no segments.

    >>> attention_kernel("tpu", "float32", 1024, 64)
    'splash'
    >>> [attention_kernel("gpu", x, 1024, 64) for x in ("bfloat16", "float32")]
    ['cudnn', 'einsum']
    >>> [attention_kernel(x, "bfloat16", 1024, 64, True) for x in ("tpu", "gpu")]
    ['splash', 'einsum']
    """
    kernel = FUSED_KERNELS.get(platform, "einsum")
    if tokens < TILE or np.dtype(dtype).name not in KERNEL_DTYPES.get(kernel, ()):
        return "einsum"
    wide = features > _CUDNN_MAX_FEATURES
    return "einsum" if kernel == "cudnn" and (wide or packed) else kernel


def cached_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
) -> jax.Array:
    """Attend from some tokens to all that are kept up to each; the same softmax.

    Args:
        query: [B, n, heads, D], of n tokens.
        key: [B, T, kv_heads, D], at the position of each token.
        value: as `key`.
        positions: int32 [B, n], of the queries; no key behind one's own is read.

    Returns:
        [B, n, heads, D], in the dtype of `value`.
    """
    samples, count, heads, features = query.shape
    grouped = query.reshape(samples, count, key.shape[2], -1, features)
    full = accumulation_dtype(query.dtype)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key, preferred_element_type=full)
    seen = jnp.arange(key.shape[1], dtype=positions.dtype) <= positions[..., None]
    scores = jnp.where(
        seen[:, None, None], scores / math.sqrt(features), jnp.array(-jnp.inf, full)
    )
    weights = jax.nn.softmax(scores).astype(value.dtype)
    read = jnp.einsum("bkgts,bskd->btkgd", weights, value)
    return read.reshape(samples, count, heads, features)


def causal_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    platform: str = "",
    context: ContextForm = "all_gather",
    segments: jax.Array | None = None,
) -> jax.Array:
    """Attend: average values by the softmax of the products of queries and keys.

        out = softmax(query key^T / sqrt(D) over the tokens up to the query's own) value

    Scores and their softmax are at least float32, and float64 for float64:
    `jax.nn.dot_product_attention` rounds them to float32 always, so that no float64
    step could be told from another to more than 7 digits.

    Args:
        query: [B, T, heads, D].
        key: [B, T, kv_heads, D]; heads are a multiple of kv_heads, and neighbouring
            heads share one.
        value: as `key`.
        platform: of the devices that the program is for, which has a kernel of its own
            (`attention_kernel`); empty: those of this process, on GPUs inside of
            `jax.shard_map` alone.
        context: how tokens of other devices are read, where the context axis is manual.
        segments: int32 [B, T], one number for each document of a window: no token reads
            one of another document. None: a window is one document. Where the context
            axis is manual they are those of whole windows, in order.

    Raises:
        BadInput: segments of another number of tokens.

    Returns:
        [B, T, heads, D], in the dtype of `value`.
    """
    _, count, _, features = query.shape
    if segments is not None and segments.shape[1] != count * context_devices():
        raise BadInput(
            "segments are not of all tokens of a window",
            rule="segments are int32 [B, T] of whole windows, in order, also where "
            "devices share the tokens of a window",
            values=f"{segments.shape[1]} segments, {count} tokens on each of "
            f"{context_devices()} devices",
            remedy="segments as they are in the batch",
        )
    used = platform or jax.default_backend()
    mesh = jax.sharding.get_abstract_mesh()
    is_inside = bool(mesh.axis_names) and {*mesh.manual_axes} == {*mesh.axis_names}
    # jax lays cuDNN's kernel out over devices itself where no shard_map does, and for
    # that wants to see it in the program as it is traced.
    if not platform and used == "gpu" and not is_inside:
        used = "cpu"
    alike = query.dtype == key.dtype == value.dtype

    def is_fused(count: int) -> bool:
        packed = segments is not None
        kernel = attention_kernel(used, query.dtype, count, features, packed)
        return alike and kernel != "einsum"

    if context_devices() > 1 and context == "all_to_all":
        # Behind the exchange each device has whole samples.
        fused = is_fused(count * context_devices())
        attend = partial(_whole_attention, segments=segments, fused=fused)
        return headwise_attention(query, key, value, attend)
    if context_devices() > 1:
        # Kernels take blocks of whole tiles: where all tokens see all keys, those of a
        # padding would be seen.
        chunk = count // 2
        fused = is_fused(chunk) and chunk % TILE == 0
        ring = context == "ring"
        return blockwise_attention(query, key, value, segments, ring, fused)[0]
    return _whole_attention(query, key, value, segments, fused=is_fused(count))


def _whole_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array | None = None,
    *,
    fused: bool,
) -> jax.Array:
    samples, count, heads, features = query.shape
    if fused:
        return fused_attention(query, key, value, segments)
    spread = checkpoint_name(
        jax.nn.softmax(attention_scores(query, key, segments)), INNER_ACTIVATION
    )
    # What is kept for the backward pass has a name each, so that memory is predicted:
    # the softmax, and its copy in the narrower dtype of the product.
    weights = spread.astype(value.dtype)
    if weights.dtype != spread.dtype:
        weights = checkpoint_name(weights, INNER_ACTIVATION)
    read = jnp.einsum("bkgts,bskd->btkgd", weights, value)
    return read.reshape(samples, count, heads, features)
