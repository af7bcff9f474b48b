"""A layout: a plan on a mesh for one task; where each array of a step lies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.core.axes import BATCH_AXES
from jaxdist.core.plan import Plan
from jaxdist.layers import bind
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition import spatial_layers
from jaxdist.partition.block_padding import BlockPadding
from jaxdist.partition.gradient_buckets import GradientReduction
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.train import diloco, error_feedback
from jaxdist.train.objective import Batch, Objective
from jaxdist.train.state import TrainState
from jaxdist.train.state_layout import SlotStateLayout, StateLayout
from jaxdist.train.task import Task

BatchShapes = Mapping[str, jax.ShapeDtypeStruct]


def batch_specs(
    objective: Objective,
    batch: Mapping[str, Any],
    axes: tuple[str, ...] = BATCH_AXES,
) -> dict[str, P]:
    """Return how each array of a batch is split: samples, then an image's positions.

    Dims that are not spatial (tokens, the frames of a clip) stay whole.

    >>> from jaxdist.train.objective import Classification
    >>> image = jax.ShapeDtypeStruct((8, 16, 16, 1), "float32")
    >>> batch_specs(Classification(), {"image": image})
    {'image': P(('data', 'fsdp'), 'spatial_h', 'spatial_w')}
    """
    return {
        key: P(axes, *objective.axes(key, len(x.shape))) for key, x in batch.items()
    }


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a task's step is laid out; `jaxdist.train.build_layout` makes it."""

    task: Task
    """What is trained."""
    plan: Plan
    """Sizes of the axes and what they split."""
    mesh: Mesh
    """The same axes on devices."""
    roles: Roles
    """What layers do with the tensor axis."""
    sizes: BlockPadding
    """How images lie whose rows do not divide."""
    hold: StateLayout
    """The arrays in which devices hold the state."""
    ledgers: tuple[Ledger, ...]
    """What a step moves: one, or one for each device along the pipe axis."""
    reduction: GradientReduction
    """How gradients are summed."""
    syncs: tuple[OuterSync, ...]
    """What replicas average when; nothing without an outer loop."""
    shapes: BatchShapes
    """A global training batch."""

    @cached_property
    def objective(self) -> Objective:
        """What outputs are scored against, as they lie on devices."""
        objective = self.task.objective
        return objective.of_slices() if "logits" in self.roles.values() else objective

    @property
    def pipe(self) -> SlotStateLayout | None:
        """The network cut into stages; None where it is not."""
        return self.hold if isinstance(self.hold, SlotStateLayout) else None

    @property
    def ledger(self) -> Ledger:
        """What a step moves, on the devices that move most."""
        return max(self.ledgers, key=lambda one: sum(one.by_axes().values()))

    @property
    def leaves(self) -> tuple[LeafSharding, ...]:
        """How each parameter lies, in the order of the tree that devices hold."""
        return self.hold.params

    @cached_property
    def held(self) -> TrainState:
        """Shapes and dtypes of what devices hold."""
        return self.hold.shapes(self.task.state)

    @cached_property
    def shares(self) -> bool:
        """Whether the fsdp axis shares anything out."""
        return any(dim is not None for dim in self.shared_dims)

    @property
    def joins(self) -> bool:
        """Whether parameters lie shared out and are put together for each use."""
        return self.shares and self.plan.zero == 3

    @cached_property
    def shared_dims(self) -> list[int | None]:
        """The dim of each parameter that fsdp shares out, in the order of the tree."""
        return [leaf.fsdp for leaf in self.leaves]

    @cached_property
    def specs(self) -> TrainState:
        """The PartitionSpec of each array of the state."""
        state = self.held
        _, left = self._feedback
        held = [P(*x.spec(shared=self.joins)) for x in self.leaves]
        worked = [P(*leaf.spec()) for leaf in self.leaves]
        params = _unflatten_like(state.params, held)
        running = [P(*leaf.spec(shared=False)) for leaf in self.hold.stats]
        stats = _unflatten_like(state.stats, running)
        kept = state.average is not None
        specs = TrainState(
            step=P(),
            params=params,
            stats=stats,
            average={"params": params, "stats": stats} if kept else None,
            opt=optax.tree.map_params(
                self.task.optimizer,
                lambda _, spec: spec,
                state.opt,
                _unflatten_like(state.params, worked),
                transform_non_params=lambda _: P(),
            ),
            feedback=left,
        )
        return diloco.replicate_specs(self.plan, specs)

    @cached_property
    def shaped(self) -> TrainState:
        """Shapes and dtypes of the state."""
        one = replace(self.held, feedback=self._feedback[0])
        return one if self.plan.replicas == 1 else _replicated_shapes(self.plan, one)

    @cached_property
    def state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state."""
        return jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=NamedSharding(self.mesh, spec)
            ),
            self.shaped,
            self.specs,
        )

    @cached_property
    def stored(self) -> TrainState:
        """Shapes, dtypes and shardings of the state in a checkpoint."""
        return self.hold.stored(self.state, self.task.state, self.mesh)

    def store(self, state: TrainState) -> TrainState:
        """Return the state as a checkpoint has it: the leaves are the network's own."""
        return state if self.pipe is None else self._storing(state)

    def take(self, stored: TrainState) -> TrainState:
        """Return the state of a checkpoint as devices hold it.

        Args:
            stored: as `store` returned; without `opt` where it is only evaluated.
        """
        if self.pipe is None:
            return stored
        held = replace(
            self.state,
            opt=stored.opt and self.state.opt,
            feedback=stored.feedback and self.state.feedback,
        )
        places = jax.tree.map(lambda x: x.sharding, held)
        taken: TrainState = jax.jit(self.hold.hold, out_shardings=places)(stored)
        return taken

    @cached_property
    def _storing(self) -> Callable[[TrainState], TrainState]:
        places = jax.tree.map(lambda x: x.sharding, self.stored)
        return jax.jit(self.hold.store, out_shardings=places)

    def first_state(self) -> TrainState:
        """Compute the state before the first step."""
        shapes, _ = self._feedback
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        one = replace(self.hold.hold(self.task.init()), feedback=zeros)
        return diloco.replicate_state(self.plan, one)

    def bind(
        self,
        model: nnx.Module,
        key: jax.Array | None = None,
        ids: jax.Array | None = None,
    ) -> None:
        """Tell a network's layers how they lie; changed in place.

        Args:
            model: a fresh merge inside the step.
            key: random key of (seed, step); None where nothing is random.
            ids: ids of this device's samples.
        """
        bind(
            model,
            key,
            ids,
            self.roles,
            self.sizes.splits,
            self.plan.spatial_until,
            spatial_layers.gather_layer_class(self.plan),
        )

    def batch(self, shapes: BatchShapes) -> dict[str, NamedSharding]:
        """Return the sharding of each array of a batch."""
        specs = self._batch_specs(shapes)
        return {key: NamedSharding(self.mesh, spec) for key, spec in specs.items()}

    def padded(self, shapes: BatchShapes) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes that the arrays of a batch have on the devices."""
        axes = self.task.objective.axes
        return {
            key: jax.ShapeDtypeStruct(
                self.sizes.padded(s.shape, axes(key, len(s.shape))), s.dtype
            )
            for key, s in shapes.items()
        }

    def map(
        self, local: Callable[..., Any], state: Any, batch: Batch, outs: Any
    ) -> Callable[..., Any]:
        """Run `local(state, batch)` on every device, manual over every axis.

        Args:
            local: called on this device's shards.
            state: specs of its first argument.
            batch: a global batch.
            outs: specs of what it returns.
        """
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(state, self._batch_specs(batch)),
            out_specs=outs,
            check_vma=False,
        )

    @cached_property
    def _feedback(self) -> tuple[Any, Any]:
        """Shapes and specs of what compressed gradients leave."""
        return error_feedback.error_feedback_shapes(
            self.plan, self.reduction, self.leaves
        )

    def _batch_specs(self, batch: Mapping[str, Any]) -> dict[str, P]:
        return batch_specs(self.task.objective, batch, self.plan.batch_axes)


def _replicated_shapes(plan: Plan, state: TrainState) -> TrainState:
    """Return the shapes of a state of which every replica has its own."""
    spread: TrainState = jax.eval_shape(partial(diloco.replicate_state, plan), state)
    return spread


def _unflatten_like(tree: Any, leaves: list[Any]) -> Any:
    """Put other leaves into a tree, in its order."""
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)
