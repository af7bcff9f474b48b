"""Muon: momentum whose matrices are orthogonalized, also where devices hold shards.

A Newton-Schulz iteration multiplies whole matrices, so shards of the momentum are
gathered for it, and each device keeps its part of the result. The step provides

    unshard(tree) -> the same leaves, whole        shard(tree) -> this device's parts

as extra arguments of optax's `update`; without them each leaf is taken for whole.
Masked leaves stay masked.
"""

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from jaxdist.layers.experts import EXPERT_WEIGHTS

LeafMap = Callable[[Any], Any]
"""Maps a tree of the parameters' form to another of that form."""

_UPDATE_RMS: Final = 0.2
"""Root mean square of an update before the rate, that of AdamW (Liu et al. 2025)."""


def unchanged(tree: Any) -> Any:
    """Return a tree whose leaves are whole already."""
    return tree


def orthogonalize() -> optax.GradientTransformationExtraArgs:
    """Replace each matrix by the nearest orthogonal one, in the length of AdamW's.

        U V^T * 0.2 sqrt(max(rows, columns))    of a momentum U S V^T

    A kernel of more dims is a matrix with a column for each filter. Jordan et al. 2024,
    "Muon"; the length is that of Liu et al. 2025, arXiv:2502.16982, equation 4, so that
    rates and decays of AdamW hold.
    """

    def columns(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: contrib.MuonDimensionNumbers(
                tuple(range(x.ndim - 1)), x.ndim - 1
            ),
            tree,
        )

    # Five iterations in optax's coefficients. Its own momentum is left out: it would be
    # of whole matrices, on every device.
    iteration = contrib.scale_by_muon(
        beta=0.0, nesterov=False, weight_dimension_numbers=columns
    )

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        unshard: LeafMap = unchanged,
        shard: LeafMap = unchanged,
        **others: Any,
    ) -> tuple[Any, Any]:
        del params, others
        whole = unshard(updates)
        found, _ = iteration.update(whole, iteration.init(whole))

        def scale(x: jax.Array) -> jax.Array:
            length = max(x.size // x.shape[-1], x.shape[-1]) ** 0.5
            return x * jnp.asarray(_UPDATE_RMS * length, x.dtype)

        return shard(jax.tree.map(scale, found)), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def matrix_labels(params: Any) -> Any:
    """Label kernels `muon`, and tables, norms and biases `adamw`."""

    def label(path: Any, leaf: Any) -> str:
        names = {getattr(k, "key", getattr(k, "name", "")) for k in path}
        # A row of a table is a token's own: rows are no output of one product. Weights
        # of experts are several matrices in one leaf.
        is_expert = "kernel" not in names and names & {*EXPERT_WEIGHTS}
        is_matrix = leaf.ndim > 1 and "embedding" not in names and not is_expert
        return "muon" if is_matrix else "adamw"

    return jax.tree_util.tree_map_with_path(label, params)
