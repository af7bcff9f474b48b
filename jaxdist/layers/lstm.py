"""LSTM: a recurrent layer, long short-term memory."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.tensor_role import Role, broadcast_param, combine_output

Carry = tuple[jax.Array, jax.Array]
"""State between steps: outputs `[B, H]`, cells of the device's own units `[B, H]`."""


class LSTM(nnx.Module):
    """Long short-term memory, without peepholes.

        i, f, g, o = x_t kernel + h_(t-1) recurrent + bias
        c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g)
        h_t = sigmoid(o) tanh(c_t)

    Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. The last
    dim of every parameter is the unit: to split it splits every gate. A device that has
    a slice of the units (the role `filter`) gathers all outputs at every step.

    Args:
        in_features: features of a step, C.
        hidden: units, H.
        dtype: of activations; None follows input and parameters. The cell is at least
            float32.
        rngs: source of first weights: normal, and orthogonal in each recurrent gate;
            biases are 0, and 1 of the forget gate (Jozefowicz et al. 2015, section 5).
    """

    scope: str = ""
    role: Role | None = None

    def __init__(
        self, in_features: int, hidden: int, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        # Fans of one gate: the dim of the four gates is part of the output.
        normal = nnx.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
        turn = nnx.initializers.orthogonal()
        gates = [turn(rngs.params(), (hidden, hidden)) for _ in range(4)]
        self.kernel = nnx.Param(normal(rngs.params(), (in_features, 4, hidden)))
        self.recurrent = nnx.Param(jnp.stack(gates, axis=1))
        self.bias = nnx.Param(jnp.zeros((4, hidden)).at[1].set(1))
        self.in_features, self.hidden, self.dtype = in_features, hidden, dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x [B, T, C]` to the outputs of all steps, `[B, T, H]`."""
        return self.run(x)[0]

    def run(self, x: jax.Array, carry: Carry | None = None) -> tuple[jax.Array, Carry]:
        """Continue from a carry.

        Args:
            x: `[B, T, C]`.
            carry: what an earlier call returned; None starts with zeros.

        Returns:
            The outputs of all steps, `[B, T, H]`, and the last carry.
        """
        with jax.named_scope(self.scope or "LSTM"):
            own = (self.kernel[...], self.recurrent[...], self.bias[...])
            x, kernel, recurrent, bias = nnx.nn.dtypes.promote_dtype(
                (x, *own), dtype=self.dtype
            )
            # All steps at once, time first: the loop is left with what must be a loop.
            read = jnp.einsum("btc,cgh->tbgh", x, kernel)
            read = read + broadcast_param(bias, read)
            # The loop adds its gradient up over the steps, in the dtype it has outside.
            full = accumulation_dtype(read.dtype)
            recurrent = recurrent.astype(full)

            def step(carry: Carry, read: jax.Array) -> tuple[Carry, jax.Array]:
                previous, cell = carry
                weights = recurrent.astype(read.dtype)
                gates = read + jnp.einsum("bk,kgh->bgh", previous, weights)
                # The cell is a sum over all steps, which bfloat16 would stop adding to.
                i, f, g, o = (gates[:, n].astype(cell.dtype) for n in range(4))
                cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
                output = (jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(gates.dtype)
                # The next step reads the outputs of all units: gathered in every step.
                output = combine_output(output, self.role, None)
                return (output, cell), output

            # A device's own units have cells here; outputs are those of all units.
            _, samples, _, own_units = read.shape
            begin = carry or (
                jnp.zeros((samples, recurrent.shape[0]), read.dtype),
                jnp.zeros((samples, own_units), full),
            )
            last, outputs = lax.scan(step, begin, read)
            return outputs.swapaxes(0, 1), last
