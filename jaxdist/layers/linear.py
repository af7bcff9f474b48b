"""A dense layer whose weights may be split over the tensor axis."""

from typing import Any, cast

import jax
from flax import nnx
from jax import lax

from jaxdist.layers.logits_product import LogitsProduct
from jaxdist.layers.tensor_role import Role, combine_output, local_input


class Linear(nnx.Linear):
    """`flax.nnx.Linear` that may hold a slice of its filters or of its channels."""

    scope: str = ""
    role: Role | None = None
    defers_logits: bool = False

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
            x, kernel, bias = self.promote_dtype(
                (inputs, self.kernel[...], bias), dtype=self.dtype
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
            y = lax.dot_general(
                x,
                kernel,
                (((x.ndim - 1,), (0,)), ((), ())),
                precision=self.precision,
                preferred_element_type=self.preferred_element_type,
            )
            return combine_output(y, self.role, bias)
