"""A dense layer whose weights may be split over the tensor axis."""

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.layers.logits_product import LogitsProduct
from jaxdist.layers.tensor_role import Role, combine_output, local_input


class Linear(nnx.Linear):
    """`flax.nnx.Linear` that may hold a slice of its filters or of its channels.

    With an adapter it adds (x A) B, scaled: LoRA, Hu et al. 2021, arXiv:2106.09685.
    """

    lora_a: nnx.Param[jax.Array] | None = None
    lora_b: nnx.Param[jax.Array] | None = None
    lora_scale: float = 0.0
    scope: str = ""
    role: Role | None = None
    defers_logits: bool = False

    def add_adapter(self, rank: int, scale: float, rngs: nnx.Rngs) -> None:
        """Add an adapter that changes nothing yet: A is gaussian, B is zero.

        Args:
            rank: columns of A, `[C_in, rank]`, and rows of B, `[rank, C]`.
            scale: of their product.
            rngs: source of A, whose products have the variance of the inputs.
        """
        draw = nnx.initializers.normal(self.in_features**-0.5)
        shape = (self.in_features, rank)
        self.lora_a = nnx.Param(draw(rngs.params(), shape, self.param_dtype))
        self.lora_b = nnx.Param(jnp.zeros((rank, self.out_features), self.param_dtype))
        self.lora_scale = scale

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., C]`.

        Where the loss multiplies the outputs out, they are a `LogitsProduct`.

        Raises:
            TypeError: an `out_sharding`; the mesh's axes are never Explicit here.
        """
        # Silently ignoring it would promise a layout that the plan does not have.
        if out_sharding is not None:
            raise TypeError("Linear takes no out_sharding: the plan says how it splits")
        with jax.named_scope(self.scope or "Linear"):
            bias = self.bias[...] if self.bias is not None else None
            a = self.lora_a[...] if self.lora_a is not None else None
            b = self.lora_b[...] if self.lora_b is not None else None
            x, kernel, bias, a, b = self.promote_dtype(
                (inputs, self.kernel[...], bias, a, b), dtype=self.dtype
            )
            if self.defers_logits:
                product = LogitsProduct(
                    features=x,
                    kernel=kernel,
                    bias=bias,
                    kernel_dim=0,
                    scope=self.scope,
                    precision=self.precision,
                )
                return cast(jax.Array, product)
            # The dot of nnx.Linear, the bias apart: it is added once, behind the sum.
            x = local_input(x, self.role)
            y = self._product(x, kernel)
            if a is not None and b is not None:
                # Before slices are summed: of a layer that is split by its channels A
                # is split as well, by its filters B is, and the one sum is of both.
                y = y + self._product(self.lora_scale * self._product(x, a), b)
            return combine_output(y, self.role, bias)

    def _product(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.dot_general(
            x,
            kernel,
            (((x.ndim - 1,), (0,)), ((), ())),
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
        )
