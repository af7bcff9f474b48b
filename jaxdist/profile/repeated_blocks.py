"""Repeated blocks: equal blocks of a chain that follow each other are traced once.

A network of 96 equal blocks costs per block what one of 3 does: of a run a b ... b c
the first, the second and the last are traced, and what lies between is represented by
the second, whose neighbours are blocks like its own. Blocks are equal if their modules
and the shapes of their arrays are, no other block has a part of their arrays, and each
returns an array of the shape that it is given.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, TypeVar

import jax
from flax import nnx

from jaxdist.core.instance_methods import wrap_method

ValueT = TypeVar("ValueT")
NameCallback = Callable[[str], None]
NetworkHook = Callable[[nnx.Module], None]
"""Called on the traced network before it runs, to bind noise to it."""

_MIN_RUN: Final = 4
"""Blocks of a run that is worth it: three are traced in any case."""


@dataclass(frozen=True, kw_only=True)
class RepeatedBlocks:
    """Which blocks of a network are represented by another one."""

    names: tuple[str, ...] = ()
    """All of its blocks, in order."""
    representatives: Mapping[str, str] = field(default_factory=dict)
    """The block that is traced, by each that is not."""

    @property
    def traced_names(self) -> tuple[str, ...]:
        """The blocks that are traced, in order."""
        return tuple(name for name in self.names if name not in self.representatives)

    def equal_blocks(self, block: str) -> tuple[str, ...]:
        """Return the blocks that one represents, itself first."""
        others = (n for n, model in self.representatives.items() if model == block)
        return (block, *others)

    def next_traced(self, block: str) -> str:
        """Return the block itself if it is traced, or the first behind it that is.

        >>> names = ("b1", "b2", "b3")
        >>> RepeatedBlocks(names=names, representatives={"b2": "b1"}).next_traced("b2")
        'b3'
        """
        if block not in self.representatives:
            return block
        behind = self.names[self.names.index(block) :]
        return next(name for name in behind if name not in self.representatives)

    def representative_path(self, path: str, sep: str = ".") -> str:
        """Return the path that is traced in place of one.

        >>> blocks = RepeatedBlocks(names=("b1", "b2"), representatives={"b2": "b1"})
        >>> blocks.representative_path("b2.conv.kernel")
        'b1.conv.kernel'
        """
        # Blocks are attributes of the network: the first word of a path.
        first, *rest = path.split(sep)
        return sep.join((self.representatives.get(first, first), *rest))

    def shorten(
        self, network: nnx.Module, on_block: NameCallback = lambda name: None
    ) -> nnx.Module:
        """Return a network of the traced blocks alone, which shares its arrays.

        Where all of them are traced, it is the network itself.

        Args:
            network: whose `__call__` goes through its `chain()`; not changed.
            on_block: called with the name of each block before the block is.
        """
        if not self.representatives:
            return network
        kept, kind = self.traced_names, type(network)

        def chain(self: Any) -> Iterator[tuple[str, Any]]:
            for name in kept:
                on_block(name)
                yield name, getattr(self, name)

        # An object without __init__: it shares the arrays of the network, and its class
        # differs in chain() alone.
        own: Any = type(kind.__name__, (kind,), {"chain": chain})
        made: nnx.Module = object.__new__(own)
        held = {k: v for k, v in vars(network).items() if k not in self.representatives}
        vars(made).update(held)
        return made

    def prune_state(self, tree: Any) -> Any:
        """Return a tree whose `nnx.State`s have the traced blocks alone."""

        def less(node: Any) -> Any:
            if not isinstance(node, nnx.State):
                return node
            held = node.raw_mapping.items()
            return type(node)({k: v for k, v in held if k not in self.representatives})

        return jax.tree.map(less, tree, is_leaf=lambda n: isinstance(n, nnx.State))

    def expand_state(self, tree: Any) -> Any:
        """Return a pruned tree with the states of all blocks, by representative."""

        def more(node: Any) -> Any:
            if not isinstance(node, nnx.State):
                return node
            held = node.raw_mapping
            others = {k: held[m] for k, m in self.representatives.items() if m in held}
            return type(node)({**held, **others})

        return jax.tree.map(more, tree, is_leaf=lambda n: isinstance(n, nnx.State))

    def expand_leaves(
        self, found: Mapping[str, ValueT], names: Sequence[str]
    ) -> list[ValueT]:
        """Return a value for each leaf, found by that of its representative.

        Args:
            found: by the name of a leaf, with slashes, of the traced blocks.
            names: of the leaves of the whole network.
        """
        return [found[self.representative_path(name, "/")] for name in names]

    def expand_results(
        self, found: Sequence[tuple[str, ValueT]]
    ) -> Iterator[tuple[str, str, ValueT]]:
        """Yield the results of traced blocks for all that they represent.

        Args:
            found: (block, result), in the order of the chain.

        Yields:
            The block, the one that was traced, and the result.
        """
        for traced, own in groupby(found, key=lambda pair: pair[0]):
            each = [result for _, result in own]
            for name in self.equal_blocks(traced):
                yield from ((name, traced, result) for result in each)


def replace_prefix(path: str, old: str, new: str, sep: str = ".") -> str:
    """Return a path inside a block as one inside another; others stay.

    >>> replace_prefix("b1.conv", "b1", "b2"), replace_prefix("b10.conv", "b1", "b2")
    ('b2.conv', 'b10.conv')
    """
    # A separator must follow: b1 is no prefix of b10.
    inside = path == old or path.startswith(old + sep)
    return new + path[len(old) :] if inside else path


def find_repeated_blocks(
    network: nnx.Module,
    inputs: Sequence[jax.ShapeDtypeStruct],
    prepare: NetworkHook = lambda network: None,
) -> RepeatedBlocks:
    """Find the blocks that need not be traced; none where there is any doubt.

    Args:
        network: abstract or real; not changed.
        inputs: shapes and dtypes of what it is called on, the batch first.
        prepare: called on the traced network before it runs.
    """
    supposed = find_equal_blocks(network)
    if not supposed.representatives:
        return supposed
    # Equal blocks may still be called on different shapes: trace the short network once
    # and look at what each block returns.
    shapes: dict[str, Any] = {}
    graph, *state = nnx.split(supposed.shorten(network))

    def run(state: Any, *arrays: jax.Array) -> None:
        traced: Any = nnx.merge(graph, *state, copy=True)
        traced.train()
        prepare(traced)
        for name in supposed.traced_names:
            _record_output_shape(getattr(traced, name), name, shapes)
        traced(*arrays)

    try:
        jax.eval_shape(run, state, *inputs)
    except AttributeError:
        # Its call asks for a block other than through its chain.
        return replace(supposed, representatives={})
    # Blocks were called in another order, or not all of them.
    if tuple(shapes) != supposed.traced_names:
        return replace(supposed, representatives={})
    # In front of the run, the first, the second, which is the representative, the last:
    # four equal shapes, or the run's blocks change what they are given.
    places = {name: place for place, name in enumerate(supposed.traced_names)}
    sure = {}
    for name, model in supposed.representatives.items():
        place = places[model]
        around = supposed.traced_names[max(0, place - 2) : place + 2]
        forms = [shapes[each] for each in around]
        if len(forms) == 4 and all(f is not None and f == forms[0] for f in forms):
            sure[name] = model
    return replace(supposed, representatives=sure)


def find_equal_blocks(network: nnx.Module) -> RepeatedBlocks:
    """Find the blocks that have the same modules and arrays, whatever they are given.

    Args:
        network: abstract or real; not changed.
    """
    made: Any = network
    # Auxiliary heads hang on blocks by name: a network that has any is traced whole.
    chain = dict(made.chain()) if hasattr(made, "chain") else {}
    heads = made.heads() if hasattr(made, "heads") else {}
    if heads or not all(
        isinstance(block, nnx.Module) and getattr(made, name, None) is block
        for name, block in chain.items()
    ):
        return RepeatedBlocks(names=tuple(chain))
    held = {
        name: {id(v) for _, v in nnx.iter_graph(block) if isinstance(v, nnx.Variable)}
        for name, block in chain.items()
    }
    users = Counter(each for ids in held.values() for each in ids)
    # Equal structure and arrays; a block that shares arrays with others is like none.
    keys: dict[str, Any] = {}
    for name, block in chain.items():
        # Its own name is a key that no other block has.
        keys[name] = name
        if all(users[i] == 1 for i in held[name]):
            graph, state = nnx.split(block)
            leaves = jax.tree.leaves_with_path(state)
            keys[name] = graph, tuple((path, x.shape, x.dtype) for path, x in leaves)
    runs = [list(own) for _, own in groupby(keys, key=lambda name: keys[name])]
    models = {
        name: run[1] for run in runs if len(run) >= _MIN_RUN for name in run[2:-1]
    }
    return RepeatedBlocks(names=tuple(chain), representatives=models)


def _record_output_shape(block: nnx.Module, name: str, found: dict[str, Any]) -> None:
    """Make a block record the shapes that it returns."""

    def recorded(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        y = call(self, *args, **kwargs)
        found[name] = jax.tree.map(lambda x: (x.shape, x.dtype), y)
        return y

    wrap_method(block, recorded)
