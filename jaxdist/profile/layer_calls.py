"""Layer calls: each use of a layer with its shapes, traced without computing."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdist.core.instance_methods import wrap_method
from jaxdist.profile.repeated_blocks import NetworkHook, RepeatedBlocks, replace_prefix


@dataclass(frozen=True, kw_only=True)
class LayerCall:
    """One use of one layer on a whole (unsplit) batch."""

    path: str
    """Where the layer is in the network: `block1.conv2`."""
    layer: Any
    """The layer itself, parameters abstract."""
    shape: tuple[int, ...]
    """Shape of its input, global batch first."""
    out_shape: tuple[int, ...]
    """Shape of its output."""
    dtype: Any
    """Dtype of its output."""
    input_call: int = 0
    """The first call that reads the same array."""
    is_first: bool = False
    """Whether it reads the network's input."""
    input_gradient: bool = True
    """Whether a step computes the gradient of its input."""
    output_gradient: bool = True
    """Whether a step computes the gradient of its output."""
    weight_gradient: bool = True
    """Whether a step computes the gradient of its kernel."""
    method: str = "__call__"
    """Method that was called: `attend` of a table makes logits."""
    padded: tuple[int, ...] = ()
    """Shape of its input on the devices, where rows are padded; else empty."""
    out_padded: tuple[int, ...] = ()
    """The same of its output."""

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Shape of its input as it lies on the devices."""
        return self.padded or self.shape

    @property
    def padded_out_shape(self) -> tuple[int, ...]:
        """Shape of its output as it lies on the devices."""
        return self.out_padded or self.out_shape


CallKey = tuple[str, str, int]
"""Path of a layer, its method, and the number of the call among those."""

_METHODS: Final = ("__call__", "attend")

FunctionWrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def trace_calls(
    graph: nnx.GraphDef[nnx.Module],
    state: Sequence[Any],
    *inputs: jax.ShapeDtypeStruct,
    prepare: NetworkHook = lambda network: None,
    wrap: FunctionWrapper = lambda run: run,
    repeated_blocks: RepeatedBlocks | None = None,
) -> tuple[tuple[LayerCall, ...], Any]:
    """Trace a network: its layer calls, in order, and the shapes that it returns.

    Args:
        graph: the network's structure.
        state: shapes of its parameters and statistics, as `nnx.split` parts them.
        inputs: shapes and dtypes of what it is called on, global batch first.
        prepare: called on the traced network before it runs, to tell layers something.
        wrap: wraps the traced function, to read it as on one device of several.
        repeated_blocks: blocks that need not be read.

    Returns:
        The calls, and what the network returns.
    """
    calls: list[LayerCall] = []
    read: list[jax.Array] = []
    blocks: list[str] = []
    here = [""]
    if repeated_blocks is not None and repeated_blocks.representatives:
        # The short network shares the arrays: its calls have the same shapes.
        whole = nnx.merge(graph, *state)
        short = repeated_blocks.shorten(whole, lambda name: here.__setitem__(0, name))
        graph, *state = nnx.split(short)

    def run(parts: Sequence[Any], *arrays: jax.Array) -> Any:
        # A fresh merge: layers are wrapped below, and the caller's network must not be.
        network = nnx.merge(graph, *parts)
        network.eval()
        # Layers draw no noise here, but the network runs as in training: with the
        # auxiliary heads that it has.
        network.set_attributes(
            type(network), deterministic=False, raise_if_not_found=False
        )
        prepare(network)
        for path, layer in _layers(network):
            _record_calls(layer, path, calls, read, lambda: blocks.append(here[0]))
        return network(*arrays)

    # Shapes alone: nothing is computed, and calls are recorded as Python runs.
    outputs = jax.eval_shape(wrap(run), state, *inputs)
    if repeated_blocks is None or not repeated_blocks.representatives:
        return tuple(calls), outputs
    return tuple(_expand_calls(repeated_blocks, blocks, calls)), outputs


def _expand_calls(
    repeated: RepeatedBlocks, blocks: list[str], calls: list[LayerCall]
) -> Iterator[LayerCall]:
    """Yield the calls of all blocks, from those of the blocks that were traced.

    A call that reads what one in its own block or in that before read first does so in
    every block that is like its own.
    """
    places: list[int] = []  # of each traced call, its index among all
    made = before = 0
    for block, own in groupby(zip(blocks, calls, strict=True), key=lambda p: p[0]):
        # places maps calls of the short network to those of the whole one.
        each, start = [call for _, call in own], len(places)
        places += range(made, made + len(each))
        for name in repeated.equal_blocks(block):
            for call in each:
                # Near inputs move along with the block, far ones stay where they are.
                near = call.input_call >= before
                shifted = made - start + call.input_call
                reads = shifted if near else places[call.input_call]
                path = replace_prefix(call.path, block, name)
                yield replace(call, path=path, input_call=reads)
            made += len(each)
        before = start


def _record_calls(
    layer: nnx.Module,
    path: str,
    calls: list[LayerCall],
    read: list[jax.Array],
    on_call: Callable[[], None],
) -> None:
    """Make this one layer record its calls; its class and siblings stay as they are."""

    def record(
        method: str, call: Any, self: Any, x: jax.Array, *args: Any, **kwargs: Any
    ) -> Any:
        y = call(self, x, *args, **kwargs)
        on_call()
        read.append(x)
        calls.append(
            LayerCall(
                path=path,
                layer=self,
                shape=x.shape,
                out_shape=y.shape,
                dtype=y.dtype,
                # Arrays are compared as objects: traced values have no others.
                input_call=next(i for i, array in enumerate(read) if array is x),
                is_first=not calls,
                input_gradient=bool(calls),
                method=method,
            )
        )
        return y

    for method in _methods(layer):
        wrap_method(layer, partial(record, method), method)


def _layers(network: nnx.Module) -> list[tuple[str, nnx.Module]]:
    """List the modules that hold no other, by path."""
    every = [(path, layer) for path, layer in nnx.iter_modules(network) if path]
    parents = {path[:-1] for path, _ in every}
    return [(".".join(map(str, p)), m) for p, m in every if p not in parents]


def _methods(layer: nnx.Module) -> list[str]:
    return [name for name in _METHODS if hasattr(type(layer), name)]


def record_gradients(network: nnx.Module, found: dict[CallKey, set[str]]) -> None:
    """Make every layer record which gradients the backward pass asks it for; in place.

    Args:
        network: a fresh merge inside a trace that is differentiated.
        found: is filled with "input" and "output", by the path of a layer, its method,
            and the number of its call.
    """
    for path, layer in _layers(network):
        _record_layer_gradients(layer, path, found)


def _record_layer_gradients(
    layer: nnx.Module, path: str, found: dict[CallKey, set[str]]
) -> None:
    numbers: Counter[str] = Counter()

    def record(
        method: str, call: Any, self: Any, x: Any, *args: Any, **kwargs: Any
    ) -> Any:
        key = path, method, numbers[method]
        numbers[method] += 1
        # The entry is made even where no gradient is asked for: a call that is not in
        # `found` was not recorded, which is something else.
        asked = found.setdefault(key, set())
        x = _on_gradient(x, lambda: asked.add("input"))
        y = call(self, x, *args, **kwargs)
        return _on_gradient(y, lambda: asked.add("output"))

    for method in _methods(layer):
        wrap_method(layer, partial(record, method), method)


def _on_gradient(x: Any, call: Callable[[], None]) -> Any:
    """Return an array as it is; its gradient, where one is computed, calls a function.

    JAX runs the backward rule only where a gradient arrives and is needed further on.
    """

    @jax.custom_vjp
    def same(x: Any) -> Any:
        return x

    def backward(_: None, gradient: Any) -> tuple[Any]:
        call()
        return (gradient,)

    same.defvjp(lambda x: (x, None), backward)
    # Token numbers have no gradient to listen for.
    floats = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact)
    return same(x) if floats else x


def with_gradients(
    calls: Sequence[LayerCall],
    found: Mapping[CallKey, set[str]],
    trained: Container[str],
) -> tuple[LayerCall, ...]:
    """Return calls that know which gradients a step computes.

    Args:
        calls: of the network, in order.
        found: what `record_gradients` has recorded.
        trained: names of the parameters that have a gradient.
    """
    numbers: Counter[tuple[str, str]] = Counter()
    known = []
    for call in calls:
        number = numbers[call.path, call.method]
        numbers[call.path, call.method] += 1
        asked = found.get((call.path, call.method, number), {"input", "output"})
        weight = getattr(call.layer, "main_weight", "kernel")
        weight = "embedding" if call.method == "attend" else weight
        name = f"{call.path.replace('.', '/')}/{weight}"
        known.append(
            replace(
                call,
                input_gradient=call.input_gradient and "input" in asked,
                output_gradient="output" in asked,
                weight_gradient="output" in asked and name in trained,
            )
        )
    return tuple(known)


def calls_of_type(calls: Sequence[LayerCall], layer_type: type) -> list[LayerCall]:
    """Return the calls of one class of layers."""
    return [call for call in calls if isinstance(call.layer, layer_type)]
