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
        key: P(axes, *objective.dim_axes(key, len(x.shape))) for key, x in batch.items()
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
    tensor_roles: Roles
    """What layers do with the tensor axis."""
    block_padding: BlockPadding
    """How images lie whose rows do not divide."""
    state_layout: StateLayout
    """The arrays in which devices hold the state."""
    ledgers: tuple[Ledger, ...]
    """What a step moves: one, or one for each device along the pipe axis."""
    reduction: GradientReduction
    """How gradients are summed."""
    outer_syncs: tuple[OuterSync, ...]
    """What replicas average when; nothing without an outer loop."""
    batch_shapes: BatchShapes
    """A global training batch."""

    @cached_property
    def objective(self) -> Objective:
        """What outputs are scored against, as they lie on devices."""
        objective = self.task.objective
        return (
            objective.for_vocab_parallel()
            if "logits" in self.tensor_roles.values()
            else objective
        )

    @property
    def slot_layout(self) -> SlotStateLayout | None:
        """The network cut into stages; None where it is not."""
        return (
            self.state_layout
            if isinstance(self.state_layout, SlotStateLayout)
            else None
        )

    @property
    def ledger(self) -> Ledger:
        """What a step moves, on the devices that move most."""
        return max(self.ledgers, key=lambda one: sum(one.payload_by_axes().values()))

    @property
    def param_shardings(self) -> tuple[LeafSharding, ...]:
        """How each parameter lies, in the order of the tree that devices hold."""
        return self.state_layout.param_shardings

    @cached_property
    def replica_state_shapes(self) -> TrainState:
        """Shapes and dtypes of what devices hold."""
        return self.state_layout.device_shapes(self.task.state)

    @cached_property
    def shards_params(self) -> bool:
        """Whether the fsdp axis shares anything out."""
        return any(dim is not None for dim in self.fsdp_dims)

    @property
    def gathers_params(self) -> bool:
        """Whether parameters lie shared out and are put together for each use."""
        return self.shards_params and self.plan.zero == 3

    @cached_property
    def fsdp_dims(self) -> list[int | None]:
        """The dim of each parameter that fsdp shares out, in the order of the tree."""
        return [leaf.fsdp_dim for leaf in self.param_shardings]

    @cached_property
    def specs(self) -> TrainState:
        """The PartitionSpec of each array of the state."""
        state = self.replica_state_shapes
        _, left = self._error_feedback
        held = [
            P(*x.spec(include_fsdp=self.gathers_params)) for x in self.param_shardings
        ]
        worked = [P(*leaf.spec()) for leaf in self.param_shardings]
        params = _unflatten_like(state.params, held)
        running = [
            P(*leaf.spec(include_fsdp=False))
            for leaf in self.state_layout.stat_shardings
        ]
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
    def state_shapes(self) -> TrainState:
        """Shapes and dtypes of the state."""
        one = replace(self.replica_state_shapes, feedback=self._error_feedback[0])
        return one if self.plan.replicas == 1 else _replicated_shapes(self.plan, one)

    @cached_property
    def state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state."""
        return jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=NamedSharding(self.mesh, spec)
            ),
            self.state_shapes,
            self.specs,
        )

    @cached_property
    def stored(self) -> TrainState:
        """Shapes, dtypes and shardings of the state in a checkpoint."""
        return self.state_layout.stored(self.state, self.task.state, self.mesh)

    def to_checkpoint(self, state: TrainState) -> TrainState:
        """Return the state as a checkpoint has it: the leaves are the network's own."""
        return state if self.slot_layout is None else self._to_checkpoint_fn(state)

    def from_checkpoint(self, checkpoint_state: TrainState) -> TrainState:
        """Return the state of a checkpoint as devices hold it.

        Args:
            checkpoint_state: as `to_checkpoint` returned; without `opt` where it is
            only evaluated.
        """
        if self.slot_layout is None:
            return checkpoint_state
        held = replace(
            self.state,
            opt=checkpoint_state.opt and self.state.opt,
            feedback=checkpoint_state.feedback and self.state.feedback,
        )
        places = jax.tree.map(lambda x: x.sharding, held)
        taken: TrainState = jax.jit(self.state_layout.to_device, out_shardings=places)(
            checkpoint_state
        )
        return taken

    @cached_property
    def _to_checkpoint_fn(self) -> Callable[[TrainState], TrainState]:
        places = jax.tree.map(lambda x: x.sharding, self.stored)
        return jax.jit(self.state_layout.to_checkpoint, out_shardings=places)

    def init_state(self) -> TrainState:
        """Compute the state before the first step."""
        shapes, _ = self._error_feedback
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        one = replace(self.state_layout.to_device(self.task.init()), feedback=zeros)
        return diloco.replicate_state(self.plan, one)

    def bind_layers(
        self,
        model: nnx.Module,
        key: jax.Array | None = None,
        sample_ids: jax.Array | None = None,
    ) -> None:
        """Tell a network's layers how they lie; changed in place.

        Args:
            model: a fresh merge inside the step.
            key: random key of (seed, step); None where nothing is random.
            sample_ids: ids of this device's samples.
        """
        bind(
            model,
            key,
            sample_ids,
            self.tensor_roles,
            self.block_padding.splits,
            self.plan.spatial_until,
            spatial_layers.gather_layer_class(self.plan),
        )

    def batch_shardings(self, shapes: BatchShapes) -> dict[str, NamedSharding]:
        """Return the sharding of each array of a batch."""
        specs = self._batch_specs(shapes)
        return {key: NamedSharding(self.mesh, spec) for key, spec in specs.items()}

    def padded_shapes(self, shapes: BatchShapes) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes that the arrays of a batch have on the devices."""
        axes = self.task.objective.dim_axes
        return {
            key: jax.ShapeDtypeStruct(
                self.block_padding.padded_shape(s.shape, axes(key, len(s.shape))),
                s.dtype,
            )
            for key, s in shapes.items()
        }

    def shard_map(
        self, local: Callable[..., Any], state_specs: Any, batch: Batch, out_specs: Any
    ) -> Callable[..., Any]:
        """Run `local(state, batch)` on every device, manual over every axis.

        Args:
            local: called on this device's shards.
            state_specs: specs of its first argument.
            batch: a global batch.
            out_specs: specs of what it returns.
        """
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(state_specs, self._batch_specs(batch)),
            out_specs=out_specs,
            check_vma=False,
        )

    @cached_property
    def _error_feedback(self) -> tuple[Any, Any]:
        """Shapes and specs of what compressed gradients leave."""
        return error_feedback.error_feedback_shapes(
            self.plan, self.reduction, self.param_shardings
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
