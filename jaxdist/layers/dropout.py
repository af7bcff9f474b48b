"""Dropout whose mask belongs to the sample and the position, not to the device."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxdist.core.array_tags import DROPOUT_MASK
from jaxdist.core.axes import TOKEN_RANK
from jaxdist.layers.halo import Split
from jaxdist.layers.tensor_role import TENSOR_AXIS, TOKEN_DIM, Role, local_slice
from jaxdist.layers.token_order import global_position


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Noise:
    """The source of a layer's random masks in one step."""

    key: jax.Array
    """Random key of (seed, step, layer), the same on every device."""
    ids: jax.Array
    """Sample ids of this device's samples, int32 [B]."""


class Dropout(nnx.Dropout):
    """`flax.nnx.Dropout` with a mask that is a function of (key, sample id, position).

    However the batch is ordered, split over devices or cut into blocks, a sample's
    element is dropped or kept alike. The noise comes from `jaxdist.layers.context`.
    """

    scope: str = ""
    role: Role | None = None
    split: Split = Split()
    """How its images are cut."""
    noise: Noise | None = None

    def __call__(
        self,
        inputs: jax.Array,
        *,
        deterministic: bool | None = None,
        rngs: Any = None,
    ) -> jax.Array:
        """Drop elements of `inputs [B, ..., C]`; identity where deterministic.

        Raises:
            RuntimeError: no noise was bound; `rngs` cannot stand in for it.
        """
        off = self.deterministic if deterministic is None else deterministic
        if self.rate == 0.0 or off:
            return inputs
        if self.noise is None:
            raise RuntimeError(
                "Dropout has no noise: call jaxdist.layers.bind(model, key, ids) first"
            )
        with jax.named_scope(self.scope or "Dropout"):
            # Each position's index in the whole image, row-major, int32.
            split = self.split.dims(inputs)
            if self.role == "own":
                split = {TOKEN_DIM: TENSOR_AXIS}
            place = jnp.zeros(inputs.shape[1:-1], jnp.int32)
            for dim, whole in enumerate(self.split.real(inputs), start=1):
                here = lax.broadcasted_iota(jnp.int32, place.shape, dim - 1)
                if dim in split:
                    index = lax.axis_index(split[dim]).astype(jnp.int32)
                    here = here + index * inputs.shape[dim]
                place = place * whole + here
            if inputs.ndim == TOKEN_RANK:
                # Tokens, of which several devices may have those of one sample.
                tensor = lax.axis_size(TENSOR_AXIS) if self.role == "own" else 1
                place = global_position(place, inputs.shape[TOKEN_DIM] * tensor)
            at = place.reshape(-1)

            # One key for each sample and position, bits for its channels. Where these
            # are this device's slice, the bits of all are drawn, and sliced alike.
            fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
            samples = fold(self.noise.key, self.noise.ids)
            keys = jax.vmap(lambda sample: fold(sample, at))(samples)
            width, sliced = inputs.shape[-1], self.role == "inner"
            count = width * (lax.axis_size(TENSOR_AXIS) if sliced else 1)
            draw = jax.vmap(
                jax.vmap(lambda key: jax.random.bits(key, (count,), jnp.uint32))
            )
            # A rate that vanishes beside 1 makes it 2^32, one more than a uint32 holds.
            threshold = jnp.uint32(min(int((1.0 - self.rate) * 2**32), 2**32 - 1))
            drawn = draw(keys) < threshold
            drawn = local_slice(drawn, width) if sliced else drawn
            # Named: where a block is computed again it is kept, and not drawn anew.
            keep = checkpoint_name(drawn.reshape(inputs.shape), DROPOUT_MASK)
            scaled = inputs / jnp.asarray(1.0 - self.rate, inputs.dtype)
            return jnp.where(keep, scaled, jnp.zeros_like(inputs))
