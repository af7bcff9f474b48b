"""All-reduce algorithms as JAX primitives: types, tangents and mapped dims."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    Axes,
    ReduceScatterAllReduce,
)
from jaxdist.core.dtypes import accumulation_dtype


def bind_primitive(
    primitive: Primitive,
    leaves: list[jax.Array],
    state: list[jax.Array],
    method: AllReduceAlgorithm,
    axes: Axes,
) -> list[jax.Array]:
    """Bind a primitive to arrays that vary along the axes, where that is checked."""
    varying = []
    for x in leaves:
        # Unchecked, nothing is said to vary, and the cast changes nothing.
        known = jax.typeof(x).manual_axis_type.varying
        missing = tuple(a for a in axes if a not in known)
        varying.append(lax.pcast(x, missing, to="varying") if missing else x)
    return primitive.bind(
        *varying, *state, method=method, axes=axes, count=len(leaves), mapped=0
    )


@functools.cache
def all_reduce_primitive(name: str) -> Primitive:
    """Return the primitive of an algorithm: sums, contributions and state."""
    return _primitive(f"psum_{name}", _reduced, _reduced_types, _reduced_tangents)


@functools.cache
def reduce_scatter_primitive(name: str) -> Primitive:
    """Return the primitive of an algorithm's reduce-scatter."""
    return _primitive(
        f"psum_scatter_{name}", _scattered, _scattered_types, _scattered_tangents
    )


def _primitive(
    name: str,
    run: Callable[..., Any],
    types: Callable[..., Any],
    tangents: Callable[..., Any],
) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = True
    # Lowered by tracing the same function, so that no backend needs code of its own.
    primitive.def_impl(run)
    primitive.def_abstract_eval(types)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)

    def jvp(primals: Any, given: Any, **params: Any) -> Any:
        outs = primitive.bind(*primals, **params)
        # A zero tangent of one array must still be summed with those of the others.
        moved = [
            ad.instantiate_zeros(t) if isinstance(t, ad.Zero) else t
            for t in given[: params["count"]]
        ]
        return outs, tangents(outs, moved, params["axes"])

    ad.primitive_jvps[primitive] = jvp
    return primitive


def _reduced(
    *arrays: jax.Array, method: AllReduceAlgorithm, axes: Axes, count: int, mapped: int
) -> list[jax.Array]:
    """Sum in at least float32, for every index of the leading mapped dims."""

    def run(*operands: jax.Array) -> list[jax.Array]:
        leaves, (*memory, step) = operands[:count], operands[count:]
        # One dtype for all, since an algorithm may see them as one vector.
        used = functools.reduce(
            jnp.promote_types, (accumulation_dtype(x.dtype) for x in leaves)
        )
        full = [x.astype(used) for x in leaves]
        found = method.all_reduce(full, memory, step, axes)
        back = zip(
            (*found.total, *found.contributions), (*leaves, *leaves), strict=True
        )
        return [*(y.astype(x.dtype) for y, x in back), *found.state]

    return _mapped(run, mapped)(*arrays)


def _reduced_types(*arrays: Any, axes: Axes, count: int, **_: Any) -> list[Any]:
    """Say that sums and state are the same along the axes, contributions not."""
    leaves, memory = arrays[:count], arrays[count:-1]
    summed = []
    for x in leaves:
        varying = frozenset(x.mat.varying - set(axes))
        summed.append(x.update(manual_axis_type=x.mat.update(varying=varying)))
    # State is computed from the sums, so it varies as they do.
    kept = [x.update(manual_axis_type=summed[0].mat) for x in memory]
    return [*summed, *leaves, *kept]


def _reduced_tangents(outs: Any, given: list[jax.Array], axes: Axes) -> list[Any]:
    rest = outs[2 * len(given) :]
    # Straight-through: the tangent of a compressed sum is that of the exact one. State
    # has none.
    return [
        *lax.psum(given, axes),
        *given,
        *(ad.Zero(jax.typeof(x).to_tangent_aval()) for x in rest),
    ]


def _scattered(
    x: jax.Array,
    step: jax.Array,
    *,
    method: ReduceScatterAllReduce,
    axes: Axes,
    count: int,
    mapped: int,
) -> list[jax.Array]:
    def run(x: jax.Array, step: jax.Array) -> list[jax.Array]:
        # A row for each device, in rank order.
        rows = x.astype(accumulation_dtype(x.dtype)).reshape(lax.axis_size(axes), -1)
        part, _ = method.reduce_scatter(rows, step, axes)
        return [part.reshape(-1, *x.shape[1:]).astype(x.dtype)]

    return _mapped(run, mapped)(x, step)


def _scattered_types(
    x: Any, _: Any, *, axes: Axes, mapped: int, **__: Any
) -> list[Any]:
    shape = list(x.shape)
    shape[mapped] //= lax.axis_size(axes)
    return [x.update(shape=tuple(shape))]


def _scattered_tangents(outs: Any, given: list[jax.Array], axes: Axes) -> list[Any]:
    return [lax.psum_scatter(given[0], axes, tiled=True)]


def _batched(
    primitive: Primitive,
    arrays: Sequence[Any],
    dims: Sequence[Any],
    *,
    mapped: int,
    **params: Any,
) -> Any:
    """Move the mapped dim to the front of all operands; the body maps itself."""
    size = next(x.shape[d] for x, d in zip(arrays, dims) if d is not None)
    front = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(arrays, dims)
    ]
    outs = primitive.bind(*front, mapped=mapped + 1, **params)
    return outs, [0] * len(outs)


def _mapped(run: Callable[..., Any], times: int) -> Callable[..., Any]:
    for _ in range(times):
        run = jax.vmap(run)
    return run
