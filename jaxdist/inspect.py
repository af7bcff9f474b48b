"""Inspect a step or network of your own: its collectives, its bytes, its layers.

    audit(step, *args)       collectives by line of Python, unplanned all-gathers,
                             replicated compute, memory: a `StepReport`
    bytes_of(step, *args)    bytes that a device sends, in StableHLO and as compiled:
                             a `TrafficReport`
    profile_network(network, inputs)
                             parameters, FLOPs and activations by layer: a
                             `jaxdist.Profile`; `build_abstract_network(constructor)`
                             makes the network on shapes alone

The first two take any function jitted with `jax.jit` or `nnx.jit`; the third any Flax
NNX network. Nothing is run: programs are traced and compiled on shapes.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params
from jax.sharding import NamedSharding

from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.meter import TrafficReport, build_traffic_report
from jaxdist.collectives.stablehlo_collectives import read_stablehlo
from jaxdist.core.errors import BadInput
from jaxdist.partition.audit import compiled_memory_bytes
from jaxdist.partition.step_report import StepReport
from jaxdist.profile.abstract import build_abstract_network
from jaxdist.profile.flops import walk_jaxpr
from jaxdist.profile.network_profile import profile_network
from jaxdist.profile.trace import prune_jaxpr

__all__ = [
    "StepReport",
    "TrafficReport",
    "audit",
    "build_abstract_network",
    "bytes_of",
    "profile_network",
]


def audit(step: Any, *args: Any) -> StepReport:
    """Compile a jitted step and report its collectives, work and memory.

    The work of all devices is compared with that of the function as it is written: what
    is outside every `shard_map` once, what is inside once on each of its devices.

    Args:
        step: a jitted function, or what its `lower(...)` or `compile()` returned.
        args: what it is called on: trees of arrays or of `jax.ShapeDtypeStruct`, with
            their shardings; none for a step that is lowered or compiled already.

    Returns:
        Its collectives by line of Python, gathers that the compiler chose, repeated
        work, and memory; printing it formats them as tables.

    Raises:
        BadInput: it is not jitted, or cannot be called on these arguments.

    >>> import jax.numpy as jnp
    >>> step = jax.jit(lambda w, x: jnp.tanh(x @ w).sum())
    >>> report = audit(step, jnp.zeros((16, 32)), jnp.zeros((8, 16)))
    >>> report.devices, report.places, report.findings
    (1, (), ())
    """
    traced, _, compiled = _compile(step, args)
    jaxpr = _pruned_jaxpr(traced)
    mesh = _find_mesh(args, compiled, jaxpr)
    flops = None
    if jaxpr is not None:
        # The body of a loop counts once, as in XLA's own count, to compare the two.
        uses = walk_jaxpr(jaxpr, body_trip_count=_shard_map_devices)
        flops = sum(use.flops for use in uses)
    return StepReport(
        mesh=mesh,
        moves=read_collectives(compiled.as_text() or "", mesh),
        inputs={
            f"args{jax.tree_util.keystr(path)}": leaf.size * leaf.dtype.itemsize
            for path, leaf in jax.tree.leaves_with_path(args)
            if hasattr(leaf, "dtype")
        },
        flops_device=int((compiled.cost_analysis() or {}).get("flops", 0)),
        flops_written=flops,
        memory_bytes=compiled_memory_bytes(compiled),
    )


def bytes_of(step: Any, *args: Any) -> TrafficReport:
    """Compile a jitted step and count the bytes that a device sends.

    StableHLO has the collectives as they were written; the compiled program what this
    backend makes of them: merged, perhaps in wider dtypes, with what the partitioner
    added.

    Args:
        step: a jitted function, or what its `lower(...)` or `compile()` returned.
        args: what it is called on: trees of arrays or of `jax.ShapeDtypeStruct`, with
            their shardings; none for a step that is lowered or compiled already.

    Returns:
        Bytes by kind of collective and axes, in a column each; printing it formats a
        table. A step that is compiled already has no StableHLO.

    Raises:
        BadInput: it is not jitted, or cannot be called on these arguments.

    >>> import jax.numpy as jnp
    >>> report = bytes_of(jax.jit(jnp.sum), jnp.zeros(8))  # on one device
    >>> report.columns, report.total("compiled")
    (('stablehlo', 'compiled'), 0)
    """
    traced, lowered, compiled = _compile(step, args)
    mesh = _find_mesh(args, compiled, _pruned_jaxpr(traced))
    written = None
    if lowered is not None:
        written = read_stablehlo(lowered.compiler_ir("stablehlo"), mesh)
    return build_traffic_report(
        mesh,
        compiled=read_collectives(compiled.as_text() or "", mesh),
        stablehlo=written,
    )


def _compile(step: Any, args: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Return the step traced and lowered, None where it is past that, and compiled."""
    # By what they offer, not by class: flax wraps those of jax in its own.
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
        # JAX says what is wrong in the first line of a long message.
        traced = step.trace(*args)
    except (TypeError, ValueError) as error:
        raise BadInput(
            "the step cannot be called on these arguments",
            rule="the arguments are those of a call: arrays or jax.ShapeDtypeStruct",
            values=f"{len(args)} given: {str(error).splitlines()[0]}",
            remedy="call the step itself on them once: step(*args)",
        ) from error
    lowered = traced.lower()
    return traced, lowered, lowered.compile()


def _pruned_jaxpr(traced: Any) -> Jaxpr | None:
    traced = getattr(traced, "traced", traced)  # flax wraps what jax traced
    return prune_jaxpr(traced.jaxpr.jaxpr) if traced is not None else None


def _find_mesh(args: Any, compiled: Any, jaxpr: Jaxpr | None) -> dict[str, int]:
    """Find the mesh: of the arguments, the compiled inputs, or a `shard_map`.

    The largest counts: a step may keep some arrays on a part of its devices.
    """
    given = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
    placed = jax.tree.leaves(compiled.input_shardings)
    meshes = [s.mesh for s in (*given, *placed) if isinstance(s, NamedSharding)]
    left = [] if jaxpr is None else [jaxpr]
    while left:
        for eqn in left.pop().eqns:
            if eqn.primitive.name == "shard_map":
                meshes.append(eqn.params["mesh"])
            left += jaxprs_in_params(eqn.params)
    if meshes:
        return dict(max(meshes, key=lambda mesh: int(mesh.size)).shape)
    # Plain arrays name no mesh, only how many devices hold them.
    return {"devices": max((len(s.device_set) for s in placed), default=1)}


def _shard_map_devices(eqn: JaxprEqn) -> int:
    """Return how many devices run the program inside a `shard_map` each."""
    if eqn.primitive.name != "shard_map":
        return 1
    shape: Mapping[str, int] = eqn.params["mesh"].shape
    return prod(shape[name] for name in eqn.params["newly_manual_axes"])
