"""The psum family: sums over mesh axes as JAX primitives, exact or in fewer bytes.

    psum(x, "data", via="int8")             the sum, the same on every device
    psum(x, "data", via=Auto(link=...))     by the fastest way on a measured link
    psum_scatter(x, "data", via="int8")     this device's part of it
    reduce(xs, "data", via=..., ...)        the sum, and what this device put into it

Each is a primitive of its own, `psum_int8` in the jaxpr. JAX takes what an all-gather
brings for different on every device; a primitive can say that the sum built of it is
the same on all, so it may leave a `shard_map` that checks this (`check_vma`). Tangents
go through `lax.psum`: a compressed sum has the gradient of the exact one (straight
through; Bengio et al. 2013, arXiv:1308.3432).
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxdist.collectives.accepts import check_axes, check_floats
from jaxdist.collectives.auto import Auto
from jaxdist.collectives.compress.exact import Exact
from jaxdist.collectives.compress.method import Axes, Method, Reduced, Scatters
from jaxdist.collectives.via import METHODS, method_of
from jaxdist.core.dtypes import wide
from jaxdist.core.errors import BadInput, Remark

Via = str | Method | Auto


def psum(x: Any, axis: str | Sequence[str], via: Via = "exact") -> Any:
    """Sum over mesh axes, inside a `shard_map` that is manual over them.

    Args:
        x: an array or a tree of arrays; floats, unless the sum is exact. A compressed
            sum sees a tree as one vector.
        axis: an axis, or several from the outside in.
        via: a name, a method with settings of its own, or `Auto`, which chooses one by
            what was measured; the name `auto`, without that, leaves it to the backend.

    Raises:
        BadInput: no such axis or method, or numbers that it cannot sum.

    The sum is NaN where the exact one is not finite. Without error feedback what is not
    sent is lost: see `reduce`.
    """
    leaves, tree = jax.tree.flatten(x)
    return jax.tree.unflatten(tree, reduce(leaves, axis, via).total)


def reduce(
    leaves: Sequence[jax.Array],
    axis: str | Sequence[str],
    via: Via = "exact",
    memory: Sequence[jax.Array] | None = None,
    step: jax.Array | int = 0,
) -> Reduced:
    """Sum arrays over mesh axes, and say what this device put into the sums.

    Args:
        leaves: this device's arrays.
        axis: an axis, or several from the outside in.
        via: as of `psum`.
        memory: what the last call gave; none: `method.begin`.
        step: how often it was called before: random places follow from it.

    Raises:
        BadInput: as `psum`.
    """
    given, axes = list(leaves), check_axes(axis)
    method = _way(via, given, axes)
    check_floats(method, given)
    real = tuple(a for a in axes if lax.axis_size(a) > 1)
    if not real and not isinstance(method, Exact):
        warnings.warn(
            f"psum via {method.name} over {', '.join(axes)}: one device, nothing to do",
            Remark,
            stacklevel=3,
        )
    kept = method.begin([x.shape for x in given]) if memory is None else list(memory)
    sized = [i for i, x in enumerate(given) if x.size]
    if not real or not sized:
        return Reduced(total=given, sent=given, memory=kept)
    if isinstance(method, Exact):
        return method.reduce(given, kept, jnp.int32(0), real)
    sizes = {a: lax.axis_size(a) for a in real}
    # The body is traced when it is compiled; what it cannot do is refused here.
    tuple(method.payloads([given[i].shape for i in sized], given[0].dtype, sizes))
    found = _bound(
        _reducer(method.name),
        [given[i] for i in sized],
        [*kept, jnp.asarray(step, jnp.int32)],
        method,
        real,
    )
    total, sent = list(given), list(given)
    for place, i in enumerate(sized):
        total[i], sent[i] = found[place], found[place + len(sized)]
    return Reduced(total=total, sent=sent, memory=found[2 * len(sized) :])


def psum_scatter(
    x: jax.Array, axis: str | Sequence[str], via: str | Method = "exact", dim: int = 0
) -> jax.Array:
    """Sum over mesh axes and keep this device's part.

    Args:
        x: an array; its dim is dealt out evenly over the devices along the axes.
        axis: an axis, or several from the outside in.
        via: a name or a method that sums in rows.
        dim: which dim is dealt out.

    Raises:
        BadInput: as `psum`; a method without a scattering half; a dim that does not
            divide.
    """
    method, axes = method_of(via), check_axes(axis)
    check_floats(method, [x])
    devices = lax.axis_size(axes)
    if x.shape[dim] % devices:
        raise BadInput(
            "a dim is not dealt out evenly",
            rule="the dim divides by the devices along the axes",
            values=f"dim {dim} of {list(x.shape)}, {devices} devices along "
            f"{', '.join(axes)}",
            remedy=f"pad it to {-(-x.shape[dim] // devices) * devices}",
        )
    if isinstance(method, Exact):
        return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)
    if not isinstance(method, Scatters):
        able = [name for name, m in METHODS.items() if isinstance(m, Exact | Scatters)]
        raise BadInput(
            f"{method.name} has no scattering half",
            rule="a sum is scattered where each device's part can be summed alone",
            values=f"via = {method.name}; these can: {', '.join(able)}",
            remedy='via="int8"',
        )
    if devices == 1 or not x.size:
        return x
    first = jnp.moveaxis(x, dim, 0)
    (part,) = _bound(
        _scatterer(method.name), [first], [jnp.zeros((), jnp.int32)], method, axes
    )
    return jnp.moveaxis(part, 0, dim)


def _way(via: Via, leaves: Sequence[jax.Array], axes: Axes) -> Method:
    """Return the method that sums these arrays."""
    if via == "auto":
        via = Auto()
    if not isinstance(via, Auto):
        return method_of(via)
    sizes = {a: lax.axis_size(a) for a in axes if lax.axis_size(a) > 1}
    sized = [x for x in leaves if x.size]
    dtype = sized[0].dtype if sized else jnp.float32
    return via.chosen([x.shape for x in sized], dtype, sizes)


def _bound(
    primitive: Primitive,
    leaves: list[jax.Array],
    rest: list[jax.Array],
    method: Method,
    axes: Axes,
) -> list[jax.Array]:
    """Bind a primitive on arrays that vary along the axes, where that is checked."""
    varying = [_varied(x, axes) for x in leaves]
    return primitive.bind(
        *varying, *rest, method=method, axes=axes, count=len(leaves), mapped=0
    )


def _varied(x: jax.Array, axes: Axes) -> jax.Array:
    missing = tuple(a for a in axes if a not in jax.typeof(x).manual_axis_type.varying)
    # Where nothing is checked nothing is said to vary, and the cast changes nothing.
    return lax.pcast(x, missing, to="varying") if missing else x


@functools.cache
def _reducer(name: str) -> Primitive:
    """Make the primitive of a method: sums, what was sent, and memory."""
    return _primitive(f"psum_{name}", _reduced, _reduced_types, _reduced_tangents)


@functools.cache
def _scatterer(name: str) -> Primitive:
    """Make the primitive of a method's first half."""
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
    primitive.def_impl(run)
    primitive.def_abstract_eval(types)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)

    def jvp(primals: Any, given: Any, **params: Any) -> Any:
        outs = primitive.bind(*primals, **params)
        moved = [
            ad.instantiate_zeros(t) if isinstance(t, ad.Zero) else t
            for t in given[: params["count"]]
        ]
        return outs, tangents(outs, moved, params["axes"])

    ad.primitive_jvps[primitive] = jvp
    return primitive


def _reduced(
    *arrays: jax.Array, method: Method, axes: Axes, count: int, mapped: int
) -> list[jax.Array]:
    """Sum in at least float32, for every index of the mapped dims in front."""

    def run(*operands: jax.Array) -> list[jax.Array]:
        leaves, (*memory, step) = operands[:count], operands[count:]
        used = functools.reduce(jnp.promote_types, (wide(x.dtype) for x in leaves))
        full = [x.astype(used) for x in leaves]
        found = method.reduce(full, memory, step, axes)
        back = zip((*found.total, *found.sent), (*leaves, *leaves), strict=True)
        return [*(y.astype(x.dtype) for y, x in back), *found.memory]

    return _mapped(run, mapped)(*arrays)


def _reduced_types(*arrays: Any, axes: Axes, count: int, **_: Any) -> list[Any]:
    """Say that sums and memory are the same along the axes, and what was sent not."""
    leaves, memory = arrays[:count], arrays[count:-1]
    return [
        *(_same(x, axes) for x in leaves),
        *leaves,
        *(_like(x, leaves[0], axes) for x in memory),
    ]


def _reduced_tangents(outs: Any, given: list[jax.Array], axes: Axes) -> list[Any]:
    rest = outs[2 * len(given) :]
    return [
        *lax.psum(given, axes),
        *given,
        *(ad.Zero(jax.typeof(x).to_tangent_aval()) for x in rest),
    ]


def _scattered(
    x: jax.Array,
    step: jax.Array,
    *,
    method: Scatters,
    axes: Axes,
    count: int,
    mapped: int,
) -> list[jax.Array]:
    def run(x: jax.Array, step: jax.Array) -> list[jax.Array]:
        rows = x.astype(wide(x.dtype)).reshape(lax.axis_size(axes), -1)
        part, _ = method.scatter(rows, step, axes)
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
    """Put the mapped dim in front of all operands; the body maps itself."""
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


def _same(x: Any, axes: Axes) -> Any:
    """Return the type of an array that no longer varies along the axes."""
    kept = x.mat.varying - set(axes)
    return x.update(manual_axis_type=x.mat.update(varying=frozenset(kept)))


def _like(x: Any, leaf: Any, axes: Axes) -> Any:
    """Return the type of memory, which comes of the sums."""
    return x.update(manual_axis_type=_same(leaf, axes).mat)
