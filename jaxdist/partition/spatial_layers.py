"""Spatial layers: which calls of a network the spatial axes split, checked.

All of them, or those before the gather that the plan puts into the network. Behind it
the plan is one without spatial axes: every device has whole images. Devices along those
axes do the same there, or they have samples of their own, as along the data axis.

Spatial check: what a network does to split images outside the layers of jaxdist.

A device holds a block of every image. The layers of `jaxdist.layers` fetch and sum what
they need of the other blocks. All else sees its own block alone, and is right only if
it treats each position by itself. That is read from the jaxpr, dim by dim; an operation
without a rule is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

import jax
from flax import nnx

from jaxdist.core.axes import SPATIAL_AXES, spatial_axes
from jaxdist.core.errors import BadInput
from jaxdist.core.instance_methods import wrap_method
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import Exchange, Gather, GlobalMean, GridMean
from jaxdist.layers.halo import Split
from jaxdist.layers.spatial_gather import insert_gather
from jaxdist.partition.dim_propagation import DimState, MixedDimError, propagate_dims
from jaxdist.profile.layer_calls import LayerCall

LayerCalls = tuple[LayerCall, ...]


def split_at_gather(
    calls: Sequence[LayerCall], gather_block: str
) -> tuple[LayerCalls, LayerCalls]:
    """Divide a network's calls where images are gathered.

    Args:
        calls: in order.
        gather_block: block before which they are; empty where they are not.

    Returns:
        The calls as far as images are split, the gather among them, and those behind.

    Raises:
        BadInput: not one gather is called, but none or several; or a layer is called
            on both sides of it.
    """
    # The gather itself still reads blocks: it belongs to the first part.
    ends = [i for i, call in enumerate(calls, 1) if isinstance(call.layer, Gather)]
    end = ends[0] if ends else len(calls)
    split, whole = tuple(calls[:end]), tuple(calls[end:])
    both = {call.path for call in split} & {call.path for call in whole}
    rule = values = ""
    if len(ends) != bool(gather_block):
        rule, values = "a block that is called once", f"{len(ends)} calls of it"
    elif both:
        # A layer is bound to one split of its images, whichever call it is.
        rule, values = "no layer on both sides of it", f"{min(both)} is on both"
    if rule:
        raise BadInput(
            f"the split of images cannot end at {gather_block}",
            rule=f"plan.spatial_end names {rule}",
            values=values,
            remedy="plan.spatial_end= splits images as far as they go",
        )
    return split, whole


@dataclass(frozen=True, kw_only=True)
class CallRange:
    """Consecutive calls whose arrays are split in the same way."""

    calls: LayerCalls
    """In order."""
    plan: Plan
    """How their arrays are split."""
    norm_plan: Plan
    """Which devices share batch statistics."""


def call_ranges(plan: Plan, calls: Sequence[LayerCall]) -> tuple[CallRange, CallRange]:
    """Return the calls on split images, and those behind the gather.

    Args:
        plan: the layout.
        calls: in order.
    """
    split, whole = split_at_gather(calls, plan.spatial_end)
    sizes = dict(plan.mesh.items()) | dict.fromkeys(SPATIAL_AXES, 1)
    before = CallRange(calls=split, plan=plan, norm_plan=plan)
    if plan.spatial_end_mode == "samples":
        # Samples are spread over the spatial axes as over data. Statistics are still
        # averaged over all these axes: the original plan says so for whole images too.
        sizes["data"] = plan.mesh.size("data", *SPATIAL_AXES)
        spread = plan.on(MeshShape(**sizes))
        return before, CallRange(calls=whole, plan=spread, norm_plan=plan)
    same = plan.on(MeshShape(**sizes))
    return before, CallRange(calls=whole, plan=same, norm_plan=same)


def gather_layer_class(plan: Plan) -> type[Gather]:
    """Return the layer that a plan puts where its split of images ends."""
    return Exchange if plan.spatial_end_mode == "samples" else Gather


def split_after_gather(plan: Plan) -> Split:
    """Return how the images of layers lie behind the gather."""
    exchanged = plan.spatial_end_mode == "samples"
    return Split(axes=(), samples=SPATIAL_AXES if exchanged else ())


KnownT = TypeVar("KnownT")

_LAYER_PREFIX: Final = "jaxdist layer "
"""Begins the names of the programs that stand for our layers."""
_GATHER_NAME: Final = f"{_LAYER_PREFIX}the gather"
"""Names the program of a gather."""
_CALL_PRIMITIVES: Final = MappingProxyType(
    {
        "jit": "jaxpr",
        "pjit": "jaxpr",
        "checkpoint": "jaxpr",
        "remat2": "jaxpr",
        "closed_call": "call_jaxpr",
        "custom_jvp_call": "call_jaxpr",
        "custom_vjp_call": "call_jaxpr",
    }
)
"""Operations that are a program of their own, called once, and its key."""


def check_flax_layers(network: nnx.Module) -> None:
    """Refuse layers of flax that have another meaning on a part of a batch.

    Raises:
        BadInput: naming the layer and the one to take.
    """
    for path, layer in nnx.iter_modules(network):
        flax_layer = isinstance(layer, nnx.BatchNorm | nnx.Dropout)
        if flax_layer and not _is_jaxdist_layer(layer):
            kind = type(layer).__name__
            raise BadInput(
                f"{'.'.join(map(str, path))} sees its own device alone",
                rule="statistics and noise are of the whole batch, on every layout",
                values=f"it is flax.nnx.{kind}",
                remedy=f"from jaxdist.layers import {kind}",
            )


def check_spatial_split(
    plan: Plan,
    network: nnx.Module,
    inputs: Sequence[jax.ShapeDtypeStruct],
    is_dense: bool = False,
) -> None:
    """Refuse a network that mixes positions of split images by itself.

    Args:
        plan: the layout.
        network: abstract or real; not changed.
        inputs: what it is called on, global batch first.
        is_dense: whether its outputs have the rows of its images, and are scored so.

    Raises:
        BadInput: naming the operation, where it is, and what to do.
    """
    axes = spatial_axes(len(inputs[0].shape))
    real = {d: a for d, a in enumerate(axes, start=1) if plan.mesh.size(a) > 1}
    # Axes of one device split nothing, so nothing can be mixed across them.
    if not real:
        return
    program, called, means = _trace_network(network, inputs, plan.spatial_end)
    # Parameters come first; of the inputs only the first, images, is split.
    first = len(program.invars) - len(inputs)
    if plan.spatial_end_mode == "samples":
        _check_exchange_bypass(program, [""] * first + ["before"] * len(inputs))
    until = (*called, _GATHER_NAME).index(_GATHER_NAME)
    layers = _TracedLayers(
        split=frozenset(real),
        split_ends=frozenset({*means, _GATHER_NAME}),
        after_gather=frozenset(called[until + 1 :]),
    )
    known = [DimState() for _ in program.invars]
    known[first] = DimState(split=layers.split)
    try:
        outs = _propagate(program, known, layers)
        if is_dense and any(out.split != layers.split for out in outs):
            raise MixedDimError("its outputs have not the rows of its images")
        if not is_dense and any(out.split for out in outs):
            raise MixedDimError(
                "its outputs have rows: no mean over positions ends the split"
            )
    except MixedDimError as found:
        raise BadInput(
            "the network mixes positions that lie on different devices",
            rule="only layers of jaxdist.layers look at neighbours in a split image, "
            "and GlobalMean, GridMean or plan.spatial_end ends the split",
            values=str(found),
            remedy=[
                "from jaxdist.layers import Conv, MaxPool, AvgPool, GlobalMean",
                "or: " + " ".join(f"plan.mesh.{axis}=1" for axis in real.values()),
            ],
        ) from found


def _check_exchange_bypass(jaxpr: Any, known: Sequence[str]) -> list[str]:
    """Refuse paths around an exchange of rows for samples: these differ behind it.

    Args:
        jaxpr: a program.
        known: which of its inputs come from "before" it or from "behind" it.

    Returns:
        The same of its outputs.
    """
    env = dict(zip(jaxpr.invars, known, strict=True))
    for eqn in jaxpr.eqns:
        given = _lookup(env, eqn.invars, "")
        label = str(eqn.params.get("name", ""))
        key = _CALL_PRIMITIVES.get(eqn.primitive.name)
        # Samples differ on the two sides: data that bypasses the exchange would meet
        # that of other samples.
        sides = {"behind"} if label == _GATHER_NAME else set(given) - {""}
        outs = [next(iter(sides), "")] * len(eqn.outvars)
        if key and not label.startswith(_LAYER_PREFIX):
            inner = eqn.params[key]
            outs = _check_exchange_bypass(getattr(inner, "jaxpr", inner), given)
        elif len(sides) > 1:
            raise BadInput(
                "a path leads around the exchange of rows for samples",
                rule="behind plan.spatial_end a network reads that block alone",
                values=f"{label or eqn.primitive.name} in "
                f"{eqn.source_info.name_stack} reads from before it and from behind",
                remedy="plan.spatial_end_mode=repeat",
            )
        env.update(zip(eqn.outvars, outs, strict=True))
    return _lookup(env, jaxpr.outvars, "")


@dataclass(frozen=True, kw_only=True)
class _TracedLayers:
    """Our layers in a traced network, by label."""

    split: frozenset[int]
    """Dims of the network's images that are cut."""
    split_ends: frozenset[str]
    """Layers that end the split: means over positions, and the gather."""
    after_gather: frozenset[str]
    """Those behind a gather, which take their images to be whole."""


def _propagate(
    jaxpr: Any, known: Sequence[DimState], layers: _TracedLayers
) -> list[DimState]:
    """Follow the split dims through a program and return those of its outputs."""
    env = dict(zip(jaxpr.invars, known, strict=True))
    for eqn in jaxpr.eqns:
        ops = _lookup(env, eqn.invars, DimState())
        label = str(eqn.params.get("name", ""))
        if label.startswith(_LAYER_PREFIX):
            # Our layer fetches what it needs of the neighbours, in the dims it is told.
            # Labels are the names that `_wrap_as_program` gave, so the jaxpr says whose
            # call it is.
            splits, name = (
                {op.split for op in ops if op.split},
                label[len(_LAYER_PREFIX) :],
            )
            # A transposed image: the layer would exchange rows along the wrong dim.
            if splits - {layers.split}:
                raise MixedDimError(f"{name} is called on turned images")
            if splits and label in layers.after_gather:
                raise MixedDimError(f"{name} reads images from before the gather")
            if not splits and label == _GATHER_NAME:
                raise MixedDimError(
                    "images are whole already where they are to be gathered"
                )
            whole = not splits or label in layers.split_ends
            outs = [DimState(split=frozenset() if whole else layers.split)]
        # Calls are followed, so that a rule is needed for primitives alone.
        elif key := _CALL_PRIMITIVES.get(eqn.primitive.name):
            inner = eqn.params[key]
            outs = _propagate(getattr(inner, "jaxpr", inner), ops, layers)
        else:
            outs = [propagate_dims(eqn, ops)] * len(eqn.outvars)
        # Not strict: a layer of several outputs is described by its first alone.
        env.update(zip(eqn.outvars, outs))
    return _lookup(env, jaxpr.outvars, DimState())


def _trace_network(
    network: nnx.Module, inputs: Sequence[jax.ShapeDtypeStruct], until: str
) -> tuple[Any, list[str], set[str]]:
    """Trace a network, each of our layers one named program.

    Returns:
        The jaxpr, the labels of our layers in the order of their calls, and those of
        means over positions.
    """
    graph, state = nnx.split(network)
    leaves, tree = jax.tree.flatten(state)
    called: list[str] = []
    means: set[str] = set()

    def run(*arrays: jax.Array) -> Any:
        model = nnx.merge(graph, jax.tree.unflatten(tree, arrays[: len(leaves)]))
        model.eval()
        # As in training: with the auxiliary heads that it has.
        model.set_attributes(type(model), deterministic=False, raise_if_not_found=False)
        for path, layer in list(nnx.iter_modules(model)):
            if _is_jaxdist_layer(layer):
                label = _LAYER_PREFIX + ".".join(map(str, path))
                means.update([label] * isinstance(layer, (GlobalMean, GridMean)))
                _wrap_as_program(layer, label, called)
        if until:  # last: around its block, also where that is a layer
            _wrap_as_program(insert_gather(model, until), _GATHER_NAME, called)
        return model(*arrays[len(leaves) :])

    return jax.make_jaxpr(run)(*leaves, *inputs).jaxpr, called, means


def _wrap_as_program(layer: nnx.Module, label: str, called: list[str]) -> None:
    """Make the call of this one layer a program of this name in the jaxpr."""

    def marked(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        def program(*arrays: Any) -> Any:
            return call(self, *arrays, **kwargs)

        # jit names its equation after the function: that is how the label gets into the
        # jaxpr.
        program.__name__ = label
        called.append(label)
        return jax.jit(program)(*args)

    wrap_method(layer, marked)


def _is_jaxdist_layer(layer: Any) -> bool:
    return any(
        kind.__module__.startswith("jaxdist.layers") for kind in type(layer).mro()
    )


def _lookup(
    env: Mapping[Any, KnownT], atoms: Sequence[Any], unknown: KnownT
) -> list[KnownT]:
    """Return what is known of variables; of a literal, one number, nothing is."""
    return [unknown if hasattr(a, "val") else env.get(a, unknown) for a in atoms]
