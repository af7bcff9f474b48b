"""Whether an optimizer moves shards of parameters as it moves whole ones.

A transform of optax that treats each number by itself does. One that looks at others,
such as a norm, needs the whole: its update is traced on shapes, and dims that are cut
are followed through its operations (`jaxdist.partition.dim_propagation`).
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import Literal

from jaxdist.core.errors import BadInput
from jaxdist.partition.dim_propagation import DimState, MixedDimError, propagate_dims
from jaxdist.train.sharded_norms import is_masked

_CALLS: Final = MappingProxyType(
    {
        "jit": "jaxpr",
        "pjit": "jaxpr",
        "closed_call": "call_jaxpr",
        "custom_jvp_call": "call_jaxpr",
        "custom_vjp_call": "call_jaxpr",
    }
)
"""Operations that are a program of their own, called once, and its key."""


def check_optimizer_dims(
    optimizer: optax.GradientTransformation,
    params: Any,
    split_dims: Sequence[frozenset[int]],
    remedy: str,
) -> None:
    """Refuse an optimizer that would take the shard of a parameter for the whole.

    Args:
        optimizer: what moves the parameters.
        params: their tree, whole: arrays or shapes.
        split_dims: dims of each leaf that are cut over devices.
        remedy: what else can be done than to write another optimizer.

    Raises:
        BadInput: naming the operation.
    """
    if not any(split_dims):
        return
    move = optax.with_extra_args_support(optimizer)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)

    # Sums over whole leaves may be asked for (`jaxdist.train.sharded_norms`): whatever
    # they are, they are alike on all devices.
    def squares(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.ones((), x.dtype), tree)

    def update(grads: Any, state: Any, params: Any) -> Any:
        # optax lets jax promote its counts, also where a user asked for strict.
        with jax.numpy_dtype_promotion("standard"):
            return move.update(
                grads, state, params, squares=squares, total=optax.tree.sum
            )

    state = jax.eval_shape(optimizer.init, shapes)
    program = jax.make_jaxpr(update)(shapes, state, shapes).jaxpr
    cut = [DimState(split=dims) for dims in split_dims]
    # What an optimizer has of each parameter is cut alike.
    tree = jax.tree.structure(shapes)
    kept = optax.tree.map_params(
        optimizer,
        lambda x, known: x if is_masked(x) else known,
        state,
        jax.tree.unflatten(tree, cut),
        transform_non_params=lambda _: DimState(),
        is_leaf=is_masked,
    )
    known = jax.tree.leaves(kept, is_leaf=lambda node: isinstance(node, DimState))
    try:
        _propagate(program, [*cut, *known, *cut])
    except MixedDimError as found:
        raise BadInput(
            "the optimizer cannot move shards of parameters",
            rule="where devices hold shards, an optimizer treats each number by "
            "itself, or asks for the length of whole leaves as "
            "jaxdist.train.clip_by_global_norm does",
            values=str(found),
            remedy=remedy,
        ) from found


def _propagate(jaxpr: Any, known: Sequence[DimState]) -> list[DimState]:
    """Follow the dims that are cut through a program; return those of its outputs."""
    env = dict(zip(jaxpr.invars, known, strict=True))

    def look_up(variables: Sequence[Any]) -> list[DimState]:
        # Literals are no variables, and nothing of them is cut.
        return [
            DimState() if isinstance(v, Literal) else env.get(v, DimState())
            for v in variables
        ]

    for eqn in jaxpr.eqns:
        ops = look_up(eqn.invars)
        if key := _CALLS.get(eqn.primitive.name):
            inner = eqn.params[key]
            outs = _propagate(getattr(inner, "jaxpr", inner), ops)
        elif any(op.split for op in ops):
            outs = [propagate_dims(eqn, ops)] * len(eqn.outvars)
        else:
            outs = [DimState()] * len(eqn.outvars)
        env.update(zip(eqn.outvars, outs, strict=True))
    return look_up(jaxpr.outvars)
