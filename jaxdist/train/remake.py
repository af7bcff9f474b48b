"""Remaking: what is inside a block is computed again backward instead of kept.

Of the forward pass only what goes from block to block is kept, and what collectives
brought: those never run twice, so a plan's ledger is the same with and without.

Source: Chen et al. 2016, arXiv:1604.06174, "Training Deep Nets with Sublinear Memory
Cost", section 4: here a segment is a block.
"""

from collections.abc import Callable
from typing import Any, Final

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxdist.core.errors import BadInput

_BLOCK: Final = "between blocks"
_COLLECTIVES: Final = frozenset(
    ("psum", "pmax", "ppermute", "all_gather", "reduce_scatter", "all_to_all")
)


def check(model: nnx.Module) -> None:
    """Refuse a network without named blocks.

    Raises:
        BadInput: it has no `chain()`.
    """
    if not hasattr(model, "chain"):
        raise BadInput(
            f"{type(model).__name__} has no blocks to compute again",
            rule="plan.remat needs a network with chain(), its named blocks in order",
            values=f"plan.remat = True, {type(model).__name__} has no chain()",
            remedy="plan.remat=false",
        )


def mark(model: Any) -> None:
    """Name what each block of a chain returns; the network is changed in place."""
    for _, block in model.chain():
        kind = type(block)

        def named(self: Any, *args: Any, _kind: Any = kind) -> Any:
            out = _kind.__call__(self, *args)
            return jax.tree.map(lambda x: checkpoint_name(x, _BLOCK), out)

        # Python looks `__call__` up on the class: the block gets a class of its own.
        own = type(kind.__name__, (kind,), {"__call__": named})
        object.__setattr__(block, "__class__", own)


def remade(share: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of marked networks keep only what lies between their blocks."""
    kept: Callable[..., Any] = jax.checkpoint(share, policy=_is_kept)
    return kept


def _is_kept(primitive: Any, *_: Any, **params: Any) -> bool:
    if primitive.name == "name":
        return bool(params["name"] == _BLOCK)
    # A collective with a gradient of its own is in the trace under this name.
    own = primitive.name.startswith("custom_vjp_call")
    return own or primitive.name in _COLLECTIVES
