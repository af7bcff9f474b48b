"""Alike: blocks of a chain that follow each other and are the same, read once.

A network of 96 equal blocks says nothing that one of 3 does not: of a run a b ... b c
the first, the second and the last are traced, and what lies between is read as the
second, whose neighbours are blocks like its own. Blocks are the same if their modules
and the shapes of their arrays are, no other block has a part of their arrays, and each
returns an array of the shape that it is given.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, TypeVar

import jax
from flax import nnx

ValueT = TypeVar("ValueT")
NameCallback = Callable[[str], None]

_MIN_RUN: Final = 4
"""Blocks of a run that is worth it: three are read in any case."""


@dataclass(frozen=True, kw_only=True)
class RepeatedBlocks:
    """Which blocks of a network are read as another one."""

    names: tuple[str, ...] = ()
    """All of its blocks, in order."""
    representatives: Mapping[str, str] = field(default_factory=dict)
    """The block that is read, by each that is not."""

    @property
    def traced_names(self) -> tuple[str, ...]:
        """The blocks that are read, in order."""
        return tuple(name for name in self.names if name not in self.representatives)

    def equal_blocks(self, block: str) -> tuple[str, ...]:
        """Return the blocks that are read as one, itself first."""
        return (
            block,
            *(n for n, model in self.representatives.items() if model == block),
        )

    def next_traced(self, block: str) -> str:
        """Return the block itself if it is read, or the first behind it that is.

        >>> names = ("b1", "b2", "b3")
        >>> RepeatedBlocks(names=names, representatives={"b2": "b1"}).next_traced("b2")
        'b3'
        """
        if block not in self.representatives:
            return block
        behind = self.names[self.names.index(block) :]
        return next(name for name in behind if name not in self.representatives)

    def representative_path(self, path: str, sep: str = ".") -> str:
        """Return the path that is read in place of one.

        >>> blocks = RepeatedBlocks(names=("b1", "b2"), representatives={"b2": "b1"})
        >>> blocks.representative_path("b2.conv.kernel")
        'b1.conv.kernel'
        """
        first, *rest = path.split(sep)
        return sep.join((self.representatives.get(first, first), *rest))

    def shorten(
        self, network: nnx.Module, on_block: NameCallback = lambda name: None
    ) -> nnx.Module:
        """Return a network of the blocks that are read, which share its arrays.

        Where all of them are, it is the network itself.

        Args:
            network: whose `__call__` goes through its `chain()`; not changed.
            on_block: is told the name of each block before it is called.
        """
        if not self.representatives:
            return network
        kept, kind = self.traced_names, type(network)

        def chain(self: Any) -> Iterator[tuple[str, Any]]:
            for name in kept:
                on_block(name)
                yield name, getattr(self, name)

        own: Any = type(kind.__name__, (kind,), {"chain": chain})
        made: nnx.Module = object.__new__(own)
        held = {k: v for k, v in vars(network).items() if k not in self.representatives}
        vars(made).update(held)
        return made

    def prune_state(self, tree: Any) -> Any:
        """Return a tree without what networks' states in it have of other blocks."""

        def less(node: Any) -> Any:
            if not isinstance(node, nnx.State):
                return node
            held = node.raw_mapping.items()
            return type(node)({k: v for k, v in held if k not in self.representatives})

        return jax.tree.map(less, tree, is_leaf=lambda n: isinstance(n, nnx.State))

    def expand_state(self, tree: Any) -> Any:
        """Return a pruned tree with states of all blocks: as those that were read."""

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
        """Return what was found by name, of all names.

        Args:
            found: by the name of a leaf, with slashes, of the blocks that were read.
            names: of the leaves of the whole network.
        """
        return [found[self.representative_path(name, "/")] for name in names]

    def expand_results(
        self, found: Sequence[tuple[str, ValueT]]
    ) -> Iterator[tuple[str, str, ValueT]]:
        """Yield what was found in blocks that were read, for all that are like them.

        Args:
            found: (block, what), in the order of the chain.

        Yields:
            The block, the one that was read, and what was found there.
        """
        for read, own in groupby(found, key=lambda pair: pair[0]):
            each = [what for _, what in own]
            for name in self.equal_blocks(read):
                yield from ((name, read, what) for what in each)


def replace_prefix(path: str, old: str, new: str, sep: str = ".") -> str:
    """Return a path inside a block as one inside another; others stay.

    >>> replace_prefix("b1.conv", "b1", "b2"), replace_prefix("b10.conv", "b1", "b2")
    ('b2.conv', 'b10.conv')
    """
    inside = path == old or path.startswith(old + sep)
    return new + path[len(old) :] if inside else path


def find_repeated_blocks(
    network: nnx.Module,
    inputs: Sequence[jax.ShapeDtypeStruct],
    prepare: Callable[[nnx.Module], None] = lambda network: None,
) -> RepeatedBlocks:
    """Find the blocks that need not be read; none where there is any doubt.

    Args:
        network: abstract or real; not changed.
        inputs: shapes and dtypes of what it is called on, the batch first.
        prepare: called on the traced network before it runs.
    """
    supposed = find_equal_blocks(network)
    if not supposed.representatives:
        return supposed
    shapes = _output_shapes(supposed, network, inputs, prepare)
    places = {name: place for place, name in enumerate(supposed.traced_names)}

    def keeps(model: str) -> bool:
        """Tell whether a run's blocks return what they are given, as shapes go."""
        place = places[model]
        # In front of the run, the first, the second, which is the model, the last.
        around = supposed.traced_names[max(0, place - 2) : place + 2]
        forms = [shapes.get(name) for name in around]
        return len(forms) == 4 and all(f is not None and f == forms[0] for f in forms)

    sure = {n: model for n, model in supposed.representatives.items() if keeps(model)}
    return replace(supposed, representatives=sure)


def find_equal_blocks(network: nnx.Module) -> RepeatedBlocks:
    """Find the blocks that have the same modules and arrays, whatever they are given.

    Args:
        network: abstract or real; not changed.
    """
    names = tuple(name for name, _ in _chain(network))
    models = {name: run[1] for run in _runs(network) for name in run[2:-1]}
    return RepeatedBlocks(names=names, representatives=models)


def _chain(network: Any) -> list[tuple[str, Any]]:
    return list(network.chain()) if hasattr(network, "chain") else []


def _runs(network: Any) -> list[list[str]]:
    """List runs of blocks whose modules are the same, those that are long enough."""
    chain = _chain(network)
    heads = network.heads() if hasattr(network, "heads") else {}
    if heads or not all(
        isinstance(block, nnx.Module) and getattr(network, name, None) is block
        for name, block in chain
    ):
        return []
    held = {name: _variable_ids(block) for name, block in chain}
    users: dict[int, int] = {}
    for ids in held.values():
        users |= {each: users.get(each, 0) + 1 for each in ids}
    keys = {
        name: _block_structure(block)
        if all(users[i] == 1 for i in held[name])
        else name
        for name, block in chain
    }
    runs = [list(own) for _, own in groupby(keys, key=lambda name: keys[name])]
    return [run for run in runs if len(run) >= _MIN_RUN]


def _variable_ids(block: nnx.Module) -> set[int]:
    nodes = (node for _, node in nnx.iter_graph(block))
    return {id(node) for node in nodes if isinstance(node, nnx.Variable)}


def _block_structure(block: nnx.Module) -> Any:
    """Return what two blocks that are the same have in common."""
    graph, state = nnx.split(block)
    leaves = jax.tree.leaves_with_path(state)
    return graph, tuple((path, x.shape, x.dtype) for path, x in leaves)


def _output_shapes(
    supposed: RepeatedBlocks,
    network: nnx.Module,
    inputs: Sequence[jax.ShapeDtypeStruct],
    prepare: Callable[[nnx.Module], None],
) -> dict[str, Any]:
    """Return the shapes that blocks return; nothing of a network that is no chain."""
    found: dict[str, Any] = {}
    graph, *state = nnx.split(supposed.shorten(network))

    def run(state: Any, *arrays: jax.Array) -> None:
        traced: Any = nnx.merge(graph, *state, copy=True)
        traced.train()
        prepare(traced)
        for name in supposed.traced_names:
            _record_output_shape(getattr(traced, name), name, found)
        traced(*arrays)

    try:
        jax.eval_shape(run, state, *inputs)
    except AttributeError:
        # Its call asks for a block other than through its chain.
        return {}
    return found if tuple(found) == supposed.traced_names else {}


def _record_output_shape(block: nnx.Module, name: str, found: dict[str, Any]) -> None:
    """Make a block note the shapes that it returns."""
    kind: Any = type(block)

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        y = kind.__call__(self, *args, **kwargs)
        found[name] = jax.tree.map(lambda x: (x.shape, x.dtype), y)
        return y

    own = type(kind.__name__, (kind,), {"__call__": noted})
    object.__setattr__(block, "__class__", own)
