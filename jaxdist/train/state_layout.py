"""The arrays of a task's state on devices, and the same state as a tree.

A checkpoint has the tree, whose leaves are the network's own, whatever the plan. The
devices of a pipeline have slots instead, in which every stage puts its leaves.

Layouts are compared as objects: a search asks for what was read of one hundreds of
times, and to compare thousands of leaves takes longer than most of that.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
    """Arrays of a state on the devices."""

    @property
    def param_shardings(self) -> tuple[LeafSharding, ...]:
        """Shardings of the parameters, in the order of the tree on the devices."""

    @property
    def stat_shardings(self) -> tuple[LeafSharding, ...]:
        """Shardings of the running statistics."""

    def to_device(self, state: TrainState) -> TrainState:
        """Return what devices hold of a state whose leaves are the network's own."""

    def device_shapes(self, state: TrainState) -> TrainState:
        """Return the shapes and dtypes of what `to_device` returns."""

    def to_checkpoint(self, state: TrainState) -> TrainState:
        """Return the state whose leaves are the network's own."""

    def stored(
        self, device_state: TrainState, tree_shapes: TrainState, mesh: Mesh
    ) -> TrainState:
        """Return shapes, dtypes and shardings of such a state.

        Args:
            device_state: the same of what devices hold.
            tree_shapes: shapes and dtypes of the state as a tree.
            mesh: axes on devices.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class LeafStateLayout:
    """A state whose arrays are the network's leaves, or shards of them."""

    param_shardings: tuple[LeafSharding, ...]
    """Shardings of the parameters."""
    stat_shardings: tuple[LeafSharding, ...]
    """Shardings of the running statistics."""

    def to_device(self, state: TrainState) -> TrainState:
        """Return the state as it is."""
        return state

    def device_shapes(self, state: TrainState) -> TrainState:
        """Return the shapes as they are."""
        return state

    def to_checkpoint(self, state: TrainState) -> TrainState:
        """Return the state as it is."""
        return state

    def stored(
        self, device_state: TrainState, tree_shapes: TrainState, mesh: Mesh
    ) -> TrainState:
        """Return what devices hold."""
        del tree_shapes, mesh
        return device_state


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotStateLayout:
    """A state in slots, which have the leaves of a pipeline's stages."""

    stages: Stages
    """The network cut into stages."""
    param_slots: SlotLayout
    """Slots of the parameters."""
    stat_slots: SlotLayout
    """Slots of the running statistics."""
    leaf_stages: tuple[tuple[frozenset[int], ...], tuple[frozenset[int], ...]]
    """Stages that use each parameter, and each statistic."""
    tree_structures: tuple[Any, Any]
    """Structures of the trees of parameters and of statistics."""

    @cached_property
    def param_shardings(self) -> tuple[LeafSharding, ...]:
        """Shardings of the slots of parameters."""
        return self.param_slots.held()

    @cached_property
    def stat_shardings(self) -> tuple[LeafSharding, ...]:
        """Shardings of the slots of running statistics."""
        return self.stat_slots.held()

    def to_device(self, state: TrainState) -> TrainState:
        """Put the leaves of a state into slots."""

        def put(slots: SlotLayout, tree: Any) -> SlotArrays:
            return slots.pack(jax.tree.leaves(tree))

        left = self._map_error_feedback(state, self.param_slots.pack_rows)
        return replace(self._map_trees(state, put, nnx.State), feedback=left)

    def device_shapes(self, state: TrainState) -> TrainState:
        """Return the shapes of slots."""

        def shaped(slots: SlotLayout, tree: Any) -> SlotArrays:
            return slots.shapes(jax.tree.leaves(tree))

        left = self._map_error_feedback(
            state, partial(jax.eval_shape, self.param_slots.pack_rows)
        )
        return replace(self._map_trees(state, shaped, nnx.State), feedback=left)

    def to_checkpoint(self, state: TrainState) -> TrainState:
        """Take the leaves of a state out of slots."""
        # Parameters and statistics have slots and a tree each.
        trees = {
            id(self.param_slots): self.tree_structures[0],
            id(self.stat_slots): self.tree_structures[1],
        }

        def out(slots: SlotLayout, held: SlotArrays) -> Any:
            return jax.tree.unflatten(trees[id(slots)], slots.unpack(held))

        left = self._map_error_feedback(state, self.param_slots.unpack_rows)
        held = self._map_trees(state, out, SlotArrays)
        return replace(held, feedback=left)

    def stored(
        self, device_state: TrainState, tree_shapes: TrainState, mesh: Mesh
    ) -> TrainState:
        """Return leaves that are sharded over the pipe axis, where a dim divides."""
        left = self._map_error_feedback(
            device_state, partial(jax.eval_shape, self.param_slots.unpack_rows)
        )
        size = mesh.shape["pipe"]

        # A checkpoint is written from all devices: each leaf is cut along its largest
        # dim that divides, and no host holds the whole network.
        def placed(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            dims = [d for d, n in enumerate(x.shape) if n % size == 0]
            dim = max(dims, key=lambda d: x.shape[d], default=None)
            axes = ["pipe" if d == dim else None for d in range(len(x.shape))]
            place = NamedSharding(mesh, P(*axes))
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

        return jax.tree.map(placed, replace(tree_shapes, feedback=left))

    def _map_trees(
        self,
        state: TrainState,
        change: Callable[[SlotLayout, Any], Any],
        tree_type: type,
    ) -> TrainState:
        """Apply a function to each tree of the state that has the parameters' form."""
        params, stats = self.param_slots, self.stat_slots
        average = state.average and {
            "params": change(params, state.average["params"]),
            "stats": change(stats, state.average["stats"]),
        }
        return replace(
            state,
            params=change(params, state.params),
            stats=change(stats, state.stats),
            # An optimizer's state of each parameter is a tree of the parameters' form.
            opt=jax.tree.map(
                lambda x: change(params, x) if isinstance(x, tree_type) else x,
                state.opt,
                is_leaf=lambda x: isinstance(x, tree_type),
            ),
            average=average,
        )

    def _map_error_feedback(
        self, state: TrainState, change: Callable[[Any], Any]
    ) -> Any:
        """Apply a function to the error feedback, which is by name of the parameter."""
        left = state.feedback
        return left and replace(
            left, residual=change(left.residual), velocity=change(left.velocity)
        )
