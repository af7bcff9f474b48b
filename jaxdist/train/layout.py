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
from jaxdist.layers.role import Roles
from jaxdist.partition import data, reach, tensor, uses
from jaxdist.partition.leaves import Leaf, leaves_of
from jaxdist.partition.ledger import Ledger, Reads, write_ledger
from jaxdist.partition.outer import Sync, plan_syncs
from jaxdist.partition.reduction import Reduction, plan_reduction
from jaxdist.partition.sizes import Sizes, fit
from jaxdist.profile.again import read_again
from jaxdist.train import feedback, outer, remake
from jaxdist.train.objective import Batch, Objective, cast
from jaxdist.train.state import TrainState, named_leaves
from jaxdist.train.task import Task
from jaxdist.train.trust import asked_squares

Shapes = Mapping[str, jax.ShapeDtypeStruct]


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
    """How a task's step is laid out; `lay_out` makes it."""

    task: Task
    """What is trained."""
    plan: Plan
    """Sizes of the axes and what they split."""
    mesh: Mesh
    """The same axes on devices."""
    roles: Roles
    """What layers do with the tensor axis."""
    sizes: Sizes
    """How images lie whose rows do not divide."""
    ledger: Ledger
    """What a step moves."""
    reduction: Reduction
    """How gradients are summed."""
    syncs: tuple[Sync, ...]
    """What replicas average when; nothing without an outer loop."""
    shapes: Shapes
    """A global training batch."""

    @cached_property
    def objective(self) -> Objective:
        """What outputs are scored against, as they lie on devices."""
        objective = self.task.objective
        return objective.of_slices() if "logits" in self.roles.values() else objective

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """How each parameter lies, in the order of the tree."""
        return leaves_of(self.plan, self.roles, named_leaves(self.task.state.params))

    @property
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
        state = self.task.state
        _, left = self._feedback
        held = [P(*x.spec(shared=self.joins)) for x in self.leaves]
        worked = [P(*leaf.spec()) for leaf in self.leaves]
        params = _filled(state.params, held)
        stats = _filled(state.stats, self._statistics())
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
                _filled(state.params, worked),
                transform_non_params=lambda _: P(),
            ),
            feedback=left,
        )
        return outer.spread_specs(self.plan, specs)

    @cached_property
    def state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state."""
        one = replace(self.task.state, feedback=self._feedback[0])
        return jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=NamedSharding(self.mesh, spec)
            ),
            jax.eval_shape(partial(outer.spread, self.plan), one),
            self.specs,
        )

    def first_state(self) -> TrainState:
        """Compute the state before the first step."""
        shapes, _ = self._feedback
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        one = replace(self.task.init(), feedback=zeros)
        return outer.spread(self.plan, one)

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
            reach.gather_of(self.plan),
        )

    def batch(self, shapes: Shapes) -> dict[str, NamedSharding]:
        """Return the sharding of each array of a batch."""
        specs = self._batch_specs(shapes)
        return {key: NamedSharding(self.mesh, spec) for key, spec in specs.items()}

    def padded(self, shapes: Shapes) -> dict[str, jax.ShapeDtypeStruct]:
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
        return feedback.begin(self.plan, self.reduction, self.leaves)

    def _batch_specs(self, batch: Mapping[str, Any]) -> dict[str, P]:
        return batch_specs(self.task.objective, batch, self.plan.batch_axes)

    def _statistics(self) -> list[P]:
        named = named_leaves(self.task.state.stats)
        found = leaves_of(self.plan, self.roles, named)
        return [P(*leaf.spec(shared=False)) for leaf in found]


def lay_out(task: Task, plan: Plan, mesh: Mesh, shapes: Shapes) -> Layout:
    """Lay a task out, or refuse what its network or batch cannot take.

    Args:
        task: what is trained.
        plan: how it is to be split.
        mesh: the plan's axes on devices.
        shapes: a global training batch: the objective's keys and `id [B]`.

    Raises:
        BadInput: naming the layer or the batch, the numbers and what works.
    """
    inputs = cast(task.objective.arguments(shapes), task.dtype)
    image, _ = task.objective.inputs[0]
    uses.check(plan, task.objective.axes(image, inputs[0].ndim))
    data.check(plan, inputs[0].shape[0], task.microbatches)
    state = task.state
    outer.check(plan, state)
    parts = task.microbatches * plan.replicas
    inputs = jax.tree.map(lambda x: _part(x, parts), inputs)
    calls, fitted = fit(plan, task.graph, (state.params, state.stats), *inputs)
    data.check_groups(plan, calls)
    network = nnx.merge(task.graph, state.params, state.stats)
    if plan.remat:
        remake.check(network)
    roles = tensor.assign(plan, calls, network)
    reads = _reads(task, plan, roles, shapes)
    reduction = plan_reduction(plan, reads.leaves)
    stats = leaves_of(plan, roles, named_leaves(state.stats))
    syncs = plan_syncs(plan, reads.leaves, stats)
    return Layout(
        task=task,
        plan=plan,
        mesh=mesh,
        roles=roles,
        sizes=fitted,
        ledger=write_ledger(
            plan, calls, roles, reads, task.microbatches, reduction, syncs
        ),
        reduction=reduction,
        syncs=syncs,
        shapes=shapes,
    )


def _reads(task: Task, plan: Plan, roles: Roles, shapes: Shapes) -> Reads:
    """Say how the parameters lie and which of them the backward pass reads."""
    leaves = leaves_of(plan, roles, named_leaves(task.state.params))
    again = (False,) * len(leaves)
    if plan.zero == 3 and any(leaf.fsdp is not None for leaf in leaves):
        values, tree = jax.tree.flatten(task.state.params)
        values = [cast(x, task.dtype) if x.ndim > 1 else x for x in values]

        def loss(params: list[Any], stats: Any, batch: Batch) -> jax.Array:
            params = jax.tree.unflatten(tree, params)
            model = nnx.merge(task.graph, params, stats, copy=True)
            model.train()
            bind(model, jax.random.key(0), batch["id"])
            if plan.remat:
                remake.mark(model)
            outputs = model(*cast(task.objective.arguments(batch), task.dtype))
            return task.objective.losses(outputs, batch).mean()

        loss = remake.remade(loss) if plan.remat else loss
        reads = read_again(loss, values, task.state.stats, dict(shapes))
        again = tuple(
            read and x.ndim > 1 for read, x in zip(reads, values, strict=True)
        )
    state = task.state
    asked = asked_squares(task.optimizer, state.params, state.opt)
    return Reads(leaves=leaves, again=again, dtype=task.dtype, lengths=asked)


def _part(x: jax.ShapeDtypeStruct, parts: int) -> jax.ShapeDtypeStruct:
    """Give the shape of one of equal parts of a batch."""
    return jax.ShapeDtypeStruct((x.shape[0] // parts, *x.shape[1:]), x.dtype)


def _filled(tree: Any, leaves: list[Any]) -> Any:
    """Put other leaves into a tree, in its order."""
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)
