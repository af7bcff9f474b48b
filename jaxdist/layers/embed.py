"""A table of vectors whose rows may be split over the tensor axis."""

from typing import Any, Final, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.logits_product import LogitsProduct
from jaxdist.layers.tensor_role import (
    TENSOR_AXIS,
    Role,
    local_slice,
    tensor_all_gather,
    tensor_all_reduce,
    tensor_reduce_scatter,
)

ROW_SPLIT_ROLES: Final = ("vocabulary", "lookup")
"""Roles of which a device has a slice of the rows."""


class Embed(nnx.Embed):
    """`flax.nnx.Embed` that may hold a slice of its rows.

    A device looks up the tokens of its own rows, and the sum over devices has them all
    (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
    """

    scope: str = ""
    role: Role | None = None
    attended: Role | None = None
    defers_logits: bool = False
    stays_whole: bool = False
    """Whether no plan splits its rows: a small table, such as that of positions."""

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Map tokens int `[B, ...]` to vectors `[B, ..., C]`."""
        with jax.named_scope(self.scope or "Embed"):
            if self.role == "own":
                # Positions: each device looks up those of its own tokens in the whole
                # table.
                inputs = local_slice(
                    inputs, inputs.shape[-1] // lax.axis_size(TENSOR_AXIS)
                )
            if self.role not in ROW_SPLIT_ROLES:
                return self._look_up(inputs, out_sharding)
            # Tokens of other devices' rows give zeros, so that a sum joins them all.
            rows = self.embedding[...].shape[0]
            row = inputs - (lax.axis_index(TENSOR_AXIS) * rows).astype(inputs.dtype)
            mine = (row >= 0) & (row < rows)
            # Clipped to rows that are there: what they hold is not used.
            found = self._look_up(jnp.clip(row, 0, rows - 1))
            part = jnp.where(mine[..., None], found, jnp.zeros_like(found))
            whole = self.role == "vocabulary"
            return tensor_all_reduce(part) if whole else tensor_reduce_scatter(part)

    def _look_up(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Return the rows of tokens, whose gradients are added in at least float32."""
        dtype = self.dtype or self.embedding[...].dtype
        full = accumulation_dtype(dtype)
        if full == dtype:
            return super().__call__(inputs, out_sharding)
        # Rows are taken out of a table in float32 and cast behind that: the gradient of
        # the table is added up in its dtype, where 16 bits would lose the 257th token.
        (table,) = self.promote_dtype((self.embedding[...],), dtype=full)
        return jnp.take(table, inputs, axis=0).astype(dtype)

    def attend(self, query: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Map vectors `[B, ..., C]` to products with each row `[B, ..., rows]`.

        Where the loss multiplies them out, they are a `LogitsProduct`.
        """
        if self.defers_logits:
            features, kernel = self.promote_dtype(
                (query, self.embedding[...]), dtype=self.dtype
            )
            return cast(
                jax.Array,
                LogitsProduct(
                    features=features, kernel=kernel, kernel_dim=1, scope=self.scope
                ),
            )
        with jax.named_scope(self.scope or "Embed"):
            y: jax.Array = super().attend(query, out_sharding)
            return tensor_all_gather(y) if self.attended == "filter" else y
