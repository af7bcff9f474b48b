"""Hold: the arrays in which devices hold a task's state, and the state as a tree.

A checkpoint has the tree, whose leaves are the network's own, whatever the plan.
Devices of a pipeline hold slots, in which every stage has its leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.pipeline.stage_parameters import SlotArrays, SlotLayout
from jaxdist.pipeline.stages import Stages
from jaxdist.train.state import TrainState


class StateLayout(Protocol):
    """How a state lies on devices."""

    @property
    def params(self) -> tuple[LeafSharding, ...]:
        """How each array of parameters lies, in the order of the tree that is held."""

    @property
    def stats(self) -> tuple[LeafSharding, ...]:
        """How each array of running statistics lies."""

    def hold(self, state: TrainState) -> TrainState:
        """Return what devices hold of a state whose leaves are the network's own."""

    def shapes(self, state: TrainState) -> TrainState:
        """Return shapes and dtypes of what `hold` returns, of those of its argument."""

    def store(self, state: TrainState) -> TrainState:
        """Return the state whose leaves are the network's own."""

    def stored(self, held: TrainState, tree: TrainState, mesh: Mesh) -> TrainState:
        """Return shapes, dtypes and shardings of such a state.

        Args:
            held: the same of what devices hold.
            tree: shapes and dtypes of the state as a tree.
            mesh: axes on devices.
        """


@dataclass(frozen=True, kw_only=True)
class LeafStateLayout:
    """Devices hold the network's own leaves, or shards of them."""

    params: tuple[LeafSharding, ...]
    """How parameters lie."""
    stats: tuple[LeafSharding, ...]
    """How running statistics lie."""

    def hold(self, state: TrainState) -> TrainState:
        """Return the state as it is."""
        return state

    def shapes(self, state: TrainState) -> TrainState:
        """Return the shapes as they are."""
        return state

    def store(self, state: TrainState) -> TrainState:
        """Return the state as it is."""
        return state

    def stored(self, held: TrainState, tree: TrainState, mesh: Mesh) -> TrainState:
        """Return what devices hold."""
        del tree, mesh
        return held


@dataclass(frozen=True, kw_only=True)
class SlotStateLayout:
    """Devices of a pipeline hold the leaves of their stages in slots."""

    stages: Stages
    """The network cut into stages."""
    param_slots: SlotLayout
    """How parameters lie in slots."""
    stat_slots: SlotLayout
    """How running statistics lie in slots."""
    users: tuple[tuple[frozenset[int], ...], tuple[frozenset[int], ...]]
    """Stages that use each parameter, and each statistic."""
    trees: tuple[Any, Any]
    """Structures of the trees of parameters and of statistics."""

    @property
    def params(self) -> tuple[LeafSharding, ...]:
        """How slots of parameters lie."""
        return self.param_slots.held()

    @property
    def stats(self) -> tuple[LeafSharding, ...]:
        """How slots of running statistics lie."""
        return self.stat_slots.held()

    def hold(self, state: TrainState) -> TrainState:
        """Put the leaves of a state into slots."""

        def put(slots: SlotLayout, tree: Any) -> SlotArrays:
            return slots.pack(jax.tree.leaves(tree))

        left = self._left(state, self.param_slots.pack_rows)
        return replace(self._changed(state, put, _is_nnx_state), feedback=left)

    def shapes(self, state: TrainState) -> TrainState:
        """Return the shapes of slots."""

        def shaped(slots: SlotLayout, tree: Any) -> SlotArrays:
            return slots.shapes(jax.tree.leaves(tree))

        left = self._left(state, partial(jax.eval_shape, self.param_slots.pack_rows))
        return replace(self._changed(state, shaped, _is_nnx_state), feedback=left)

    def store(self, state: TrainState) -> TrainState:
        """Take the leaves of a state out of slots."""
        trees = {
            id(self.param_slots): self.trees[0],
            id(self.stat_slots): self.trees[1],
        }

        def out(slots: SlotLayout, held: SlotArrays) -> Any:
            return jax.tree.unflatten(trees[id(slots)], slots.unpack(held))

        left = self._left(state, self.param_slots.unpack_rows)
        held = self._changed(state, out, lambda node: isinstance(node, SlotArrays))
        return replace(held, feedback=left)

    def stored(self, held: TrainState, tree: TrainState, mesh: Mesh) -> TrainState:
        """Return leaves that devices along the pipe axis share, where a dim divides."""
        left = self._left(held, partial(jax.eval_shape, self.param_slots.unpack_rows))
        size = mesh.shape["pipe"]

        def placed(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            dims = [d for d, n in enumerate(x.shape) if n % size == 0]
            dim = max(dims, key=lambda d: x.shape[d], default=None)
            axes = ["pipe" if d == dim else None for d in range(len(x.shape))]
            place = NamedSharding(mesh, P(*axes))
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

        return jax.tree.map(placed, replace(tree, feedback=left))

    def _changed(
        self,
        state: TrainState,
        change: Callable[[SlotLayout, Any], Any],
        is_tree: Callable[[Any], bool],
    ) -> TrainState:
        params, stats = self.param_slots, self.stat_slots
        average = state.average and {
            "params": change(params, state.average["params"]),
            "stats": change(stats, state.average["stats"]),
        }
        return replace(
            state,
            params=change(params, state.params),
            stats=change(stats, state.stats),
            # What an optimizer keeps for each parameter is a tree of their structure.
            opt=jax.tree.map(
                lambda x: change(params, x) if is_tree(x) else x,
                state.opt,
                is_leaf=is_tree,
            ),
            average=average,
        )

    def _left(self, state: TrainState, change: Callable[[Any], Any]) -> Any:
        """Change what compressed gradients left, which is kept by name."""
        left = state.feedback
        return left and replace(
            left, residual=change(left.residual), velocity=change(left.velocity)
        )


def _is_nnx_state(node: Any) -> bool:
    return isinstance(node, nnx.State)
