"""Foreign steps: a function jitted by anybody, compiled and read."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params
from jax.sharding import NamedSharding

from jaxdist.collectives.hlo_collectives import CollectiveOp, read_collectives
from jaxdist.collectives.meter import TrafficReport, build_traffic_report
from jaxdist.collectives.stablehlo_collectives import read_stablehlo
from jaxdist.core.errors import BadInput
from jaxdist.partition.step_report import StepReport
from jaxdist.profile.jaxpr_walk import walk_jaxpr
from jaxdist.profile.trace import prune_jaxpr


def audit(step: Any, *args: Any) -> StepReport:
    """Compile anybody's jitted step and say what it moves and does.

    Nothing is run. The work of all devices is compared with that of the function as it
    is written: what is outside every `shard_map` once, what is inside once on each of
    its devices.

    Args:
        step: a jitted function, or what its `lower(...)` or `compile()` returned.
        args: what it is called on: trees of arrays or of `jax.ShapeDtypeStruct`, with
            their shardings; none for a step that is lowered or compiled already.

    Returns:
        Its collectives by line of Python, gathers that the compiler chose, repeated
        work, and memory; printing it lays them out.

    Raises:
        BadInput: it is not jitted, or cannot be called on these arguments.
    """
    traced, _, compiled = _compile(step, args)
    jaxpr = _jaxpr(traced)
    mesh = _find_mesh(args, compiled, jaxpr)
    return StepReport(
        mesh=mesh,
        moves=read_collectives(compiled.as_text() or "", mesh),
        inputs=_input_bytes(args),
        flops_device=int((compiled.cost_analysis() or {}).get("flops", 0)),
        flops_written=None if jaxpr is None else _written_flops(jaxpr),
        memory_bytes=compiled_memory_bytes(compiled),
    )


def bytes_of(step: Any, *args: Any) -> TrafficReport:
    """Compile anybody's jitted step and count the bytes that a device sends.

    Nothing is run. StableHLO says what was written; the compiled program what this
    backend makes of it: merged, perhaps in wider dtypes, with what the partitioner
    added.

    Args:
        step: a jitted function, or what its `lower(...)` or `compile()` returned.
        args: what it is called on: trees of arrays or of `jax.ShapeDtypeStruct`, with
            their shardings; none for a step that is lowered or compiled already.

    Returns:
        Bytes by kind of collective and axes, in a column each; printing it lays them
        out. A step that is compiled already has no StableHLO.

    Raises:
        BadInput: it is not jitted, or cannot be called on these arguments.
    """
    traced, lowered, compiled = _compile(step, args)
    mesh = _find_mesh(args, compiled, _jaxpr(traced))
    return build_traffic_report(
        mesh,
        compiled=read_collectives(compiled.as_text() or "", mesh),
        stablehlo=None if lowered is None else stablehlo_collectives(lowered, mesh),
    )


def stablehlo_collectives(
    lowered: Any, mesh: Mapping[str, int]
) -> tuple[CollectiveOp, ...]:
    """List the collectives of what `lower(...)` returned."""
    return read_stablehlo(lowered.compiler_ir("stablehlo"), mesh)


def compiled_memory_bytes(compiled: Any) -> int:
    """Sum the compiler's own account: what comes in, goes out and lives between."""
    sizes = compiled.memory_analysis()
    total = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return int(total + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes)


def _compile(step: Any, args: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Return the step traced and lowered, if they can be had, and compiled."""
    if hasattr(step, "memory_analysis") and hasattr(step, "as_text"):
        return None, None, step
    if hasattr(step, "compile"):
        return None, step, step.compile()
    if not hasattr(step, "trace"):
        raise BadInput(
            f"{getattr(step, '__name__', type(step).__name__)} is not jitted",
            rule="only a compiled program says what it moves",
            values=f"a {type(step).__name__}",
            remedy="step = jax.jit(step)",
        )
    try:
        traced = step.trace(*args)
    except (TypeError, ValueError) as error:
        raise _call_error(args, error) from error
    lowered = traced.lower()
    return traced, lowered, lowered.compile()


def _jaxpr(traced: Any) -> Jaxpr | None:
    traced = getattr(traced, "traced", traced)  # flax wraps what jax traced
    return prune_jaxpr(traced.jaxpr.jaxpr) if traced is not None else None


def _call_error(args: tuple[Any, ...], error: Exception) -> BadInput:
    return BadInput(
        "the step cannot be called on these arguments",
        rule="the arguments are those of a call: arrays or jax.ShapeDtypeStruct",
        values=f"{len(args)} given: {str(error).splitlines()[0]}",
        remedy="call the step itself on them once: step(*args)",
    )


def _find_mesh(args: Any, compiled: Any, jaxpr: Jaxpr | None) -> dict[str, int]:
    """Find the mesh: of the arguments, the compiled inputs, or a `shard_map`."""
    given = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
    placed = jax.tree.leaves(compiled.input_shardings)
    meshes = [s.mesh for s in (*given, *placed) if isinstance(s, NamedSharding)]
    meshes += [eqn.params["mesh"] for eqn in _iter_shard_maps(jaxpr)] if jaxpr else []
    if meshes:
        widest = max(meshes, key=lambda mesh: int(mesh.size))
        return dict(widest.shape)
    devices = max((len(s.device_set) for s in placed), default=1)
    return {"devices": devices}


def _iter_shard_maps(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield the uses of `shard_map` in a program."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from _iter_shard_maps(inner)


def _written_flops(jaxpr: Jaxpr) -> int:
    """Count the work of a function as it is written, a loop's body once as XLA does."""
    return sum(
        use.flops for use in walk_jaxpr(jaxpr, body_trip_count=_shard_map_devices)
    )


def _shard_map_devices(eqn: JaxprEqn) -> int:
    """Return the devices that run the program inside a `shard_map` each."""
    if eqn.primitive.name != "shard_map":
        return 1
    shape: Mapping[str, int] = eqn.params["mesh"].shape
    total = 1
    for name in eqn.params["newly_manual_axes"]:
        total *= shape[name]
    return total


def _input_bytes(args: tuple[Any, ...]) -> dict[str, int]:
    """Return the bytes of each whole array among the arguments, by its path."""
    leaves = jax.tree.leaves_with_path(args)
    return {
        f"args{jax.tree_util.keystr(path)}": leaf.size * leaf.dtype.itemsize
        for path, leaf in leaves
        if hasattr(leaf, "dtype")
    }
