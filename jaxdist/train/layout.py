"""A layout: a plan on a mesh for one task; shapes and shardings of a step's arrays."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.extend.core import Jaxpr
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.core.axes import BATCH_AXES, POSITION_AXES
from jaxdist.core.plan import Plan
from jaxdist.layers import bind
from jaxdist.layers.context import bind_context_form, bind_loss_shares
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition import spatial_layers
from jaxdist.partition.block_padding import BlockPadding
from jaxdist.partition.compiler_rewrites import CompilerRules, mesh_rules
from jaxdist.partition.gradient_buckets import GradientReduction
from jaxdist.partition.ledger import Ledger, sum_traced_flops
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.train import diloco, error_feedback
from jaxdist.train.block_scan import BlockScan
from jaxdist.train.objective import Batch, Objective
from jaxdist.train.sharded_norms import is_masked
from jaxdist.train.state import TrainState
from jaxdist.train.state_layout import SlotStateLayout, StateLayout
from jaxdist.train.task import Task

BatchShapes = Mapping[str, jax.ShapeDtypeStruct]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of a task's step; `jaxdist.train.build_layout` builds it."""

    task: Task
    """The task."""
    plan: Plan
    """The plan: sizes of the axes and what they split."""
    mesh: Mesh
    """The plan's axes on devices."""
    tensor_roles: Roles
    """Roles of layers in tensor parallelism."""
    block_padding: BlockPadding
    """Padding of images whose rows do not divide."""
    state_layout: StateLayout
    """Arrays of the state on the devices."""
    replica_state_shapes: TrainState
    """Shapes and dtypes of one replica's state on the devices."""
    ledgers: tuple[Ledger, ...]
    """Traffic and work of a step: one, or one for each device along pipe."""
    equal_ranks: tuple[int, ...] = ()
    """For each device along pipe the first one whose stages are equal but for the names
    of their layers; empty without stages."""
    reduction: GradientReduction
    """How gradients are summed."""
    outer_syncs: tuple[OuterSync, ...]
    """Outer steps of replicas; empty without an outer loop."""
    batch_shapes: BatchShapes
    """A global training batch."""
    platform: str = "cpu"
    """The platform that a step is compiled for, whose kernels its layers use."""
    block_scans: tuple[BlockScan, ...] = ()
    """Equal blocks that run as loops, in the order of the chain."""
    logits_product: str = ""
    """Use of the layer (`role_key`) whose logits the loss multiplies out by chunks of
    tokens; empty where it has them whole."""
    has_gradient_norm: bool = False
    """Whether a step returns the norm of its gradient."""
    kept_params: frozenset[int] = frozenset()
    """Indices of the parameters that the blocks behind the last loop use: the backward
    pass begins with them, so it does not gather them again.
    """

    @cached_property
    def objective(self) -> Objective:
        """Objective for the outputs as they are sharded."""
        objective = self.task.objective.on_blocks(self.plan, self.batch_shapes)
        split = "logits" in self.tensor_roles.values()
        return objective.for_vocab_parallel() if split else objective

    @property
    def compiler_rules(self) -> CompilerRules:
        """What the compiler of the mesh's devices may make of collectives."""
        return mesh_rules(self.mesh)

    @property
    def slot_layout(self) -> SlotStateLayout | None:
        """Slots of a network that is cut into stages; None without stages."""
        held = self.state_layout
        return held if isinstance(held, SlotStateLayout) else None

    @property
    def ledger(self) -> Ledger:
        """Ledger of the devices that move most."""
        return max(self.ledgers, key=lambda one: sum(one.payload_by_axes().values()))

    @property
    def param_shardings(self) -> tuple[LeafSharding, ...]:
        """Shardings of the parameters, in the order of the tree on the devices."""
        return self.state_layout.param_shardings

    @cached_property
    def has_error_feedback(self) -> bool:
        """Whether compressors keep something between steps."""
        return self._error_feedback[0] is not None

    @cached_property
    def shards_params(self) -> bool:
        """Whether the fsdp axis shards any parameter."""
        return any(dim is not None for dim in self.fsdp_dims)

    @property
    def gathers_params(self) -> bool:
        """Whether parameters are sharded over fsdp, and gathered for each use."""
        return self.plan.zero == 3 and any(d is not None for d in self.gather_dims)

    @cached_property
    def frozen_dims(self) -> dict[int, int]:
        """Dim of each frozen parameter that fsdp shards, by its index among all that
        lies in `stats`."""
        held = enumerate(self.state_layout.stat_shardings)
        return {i: x.fsdp_dim for i, x in held if x.fsdp_dim is not None}

    @cached_property
    def gather_dims(self) -> list[int | None]:
        """Dims as `fsdp_dims`, and behind them those of the frozen parameters."""
        return [*self.fsdp_dims, *self.frozen_dims.values()]

    @cached_property
    def fsdp_dims(self) -> list[int | None]:
        """Dim of each parameter that fsdp shards, in the order of the tree."""
        return [leaf.fsdp_dim for leaf in self.param_shardings]

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks of the network's chain, in order."""
        state = self.task.state
        network: Any = nnx.merge(self.task.graph, state.params, state.stats)
        return tuple(name for name, _ in network.chain())

    @cached_property
    def scanned_params(self) -> frozenset[int]:
        """Indices of the parameters of blocks that run as loops."""
        return frozenset(
            i for scan in self.block_scans for each in scan.indices for i in each
        )

    def traced_flops(self, jaxpr: Jaxpr, layers: Iterable[str]) -> Counter[str]:
        """Sum the FLOPs a device of a traced step by layer; "" collects the rest.

        Args:
            jaxpr: the traced step.
            layers: paths whose scopes are looked for.
        """
        return self.unroll_layers(sum_traced_flops(jaxpr, layers))

    def unroll_layers(self, sums: Mapping[str, int]) -> Counter[str]:
        """Return sums by layer of a program with those of blocks in loops told apart.

        The body of a loop has the scopes of its first block, and works for all of them.

        Args:
            sums: FLOPs, cycles or bytes by the path of a layer, over all iterations.
        """
        found = Counter(sums)
        for scan in self.block_scans:
            first = scan.blocks[0]
            # With the dot, or `block1` would take in `block10`.
            own = {k: n for k, n in found.items() if f"{k}.".startswith(f"{first}.")}
            for layer, flops in own.items():
                # Over all iterations, so of all blocks alike.
                each = flops // len(scan.blocks)
                inner = layer.removeprefix(first)
                found.update(dict.fromkeys((b + inner for b in scan.blocks), each))
                found[layer] = each
        return found

    @cached_property
    def specs(self) -> TrainState:
        """The PartitionSpec of each array of the state."""
        state = self.replica_state_shapes
        _, left = self._error_feedback
        # With zero = 1 parameters are whole over fsdp and the optimizer's state is
        # sharded; with zero = 3 both are, and so are frozen parameters. Statistics are
        # small, and whole.
        is_split = self.gathers_params
        moments = [P(*leaf.spec()) for leaf in self.param_shardings]
        held = moments
        if not is_split:
            held = [P(*x.spec(include_fsdp=False)) for x in self.param_shardings]
        running = [P(*leaf.spec()) for leaf in self.state_layout.stat_shardings]
        # One order for parameters, and for what an optimizer has of each.
        trees = jax.tree.structure(state.params), jax.tree.structure(state.stats)
        params, stats = map(jax.tree.unflatten, trees, (held, running))
        # The average lies as the weights do, and optimizer state as their gradients.
        kept = state.average is not None
        specs = TrainState(
            step=P(),
            params=params,
            stats=stats,
            average={"params": params, "stats": stats} if kept else None,
            opt=optax.tree.map_params(
                self.task.optimizer,
                _moment_spec,
                state.opt,
                jax.tree.unflatten(trees[0], self.param_shardings),
                jax.tree.unflatten(trees[0], moments),
                # Counts of steps and the like are on all devices.
                transform_non_params=lambda _: P(),
                is_leaf=is_masked,
            ),
            feedback=left,
        )
        # XLA places an array without elements nowhere, so it has no axes.
        placed: TrainState = jax.tree.map(
            lambda x, spec: spec if x.size else P(),
            self.state_shapes,
            diloco.replicate_specs(self.plan, specs),
        )
        return placed

    @cached_property
    def state_shapes(self) -> TrainState:
        """Shapes and dtypes of the state."""
        # Error feedback is a matter of the plan alone: a task knows nothing of it.
        one = replace(self.replica_state_shapes, feedback=self._error_feedback[0])
        if self.plan.replicas == 1:
            return one
        shapes: TrainState = jax.eval_shape(
            partial(diloco.replicate_state, self.plan), one
        )
        return shapes

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
        """Return the state in the form of a checkpoint: the network's own leaves."""
        return state if self.slot_layout is None else self._to_checkpoint_fn(state)

    def from_checkpoint(self, checkpoint_state: TrainState) -> TrainState:
        """Return the state on the devices from that of a checkpoint.

        Args:
            checkpoint_state: a state from `to_checkpoint`; without `opt` where it is
                only evaluated.
        """
        if self.slot_layout is None:
            return checkpoint_state
        # Fields that were not read stay None.
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

    # Kept, since jit caches by function: a new one would compile at every save.
    @cached_property
    def _to_checkpoint_fn(self) -> Callable[[TrainState], TrainState]:
        places = jax.tree.map(lambda x: x.sharding, self.stored)
        return jax.jit(self.state_layout.to_checkpoint, out_shardings=places)

    def init_state(self, weights: Mapping[str, Any] | None = None) -> TrainState:
        """Return the state before the first step.

        Args:
            weights: arrays to start from by leaf name, as `Task.init` takes them.
        """
        # Every replica starts from the same state, with nothing left to send.
        shapes, _ = self._error_feedback
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        one = replace(
            self.state_layout.to_device(self.task.init(weights)), feedback=zeros
        )
        return diloco.replicate_state(self.plan, one)

    def bind_layers(
        self,
        model: nnx.Module,
        key: jax.Array | None = None,
        sample_ids: jax.Array | None = None,
        *,
        is_scored: bool = False,
    ) -> None:
        """Bind a network's layers to the layout; in place.

        Args:
            model: a fresh merge inside the step.
            key: random key of (seed, step); None where nothing is random.
            sample_ids: ids of this device's samples.
            is_scored: whether the objective alone reads what the network returns.
        """
        if key is not None:
            self._split_random_streams(model)
        bind(
            model,
            key,
            sample_ids,
            self.tensor_roles,
            self.block_padding.splits,
            self.plan.spatial_end,
            spatial_layers.gather_layer_class(self.plan),
            self.plan.attention_platform(self.platform),
            # Whoever reads outputs besides the objective is given whole logits.
            self.logits_product if is_scored else "",
        )
        bind_context_form(model, self.plan.context)
        bind_loss_shares(model, self._loss_shares)

    @property
    def _loss_shares(self) -> int:
        """Into how many shares the devices divide the loss of a gradient."""
        # As in jaxdist/train/step.py; of stages the last alone has the loss, and sums
        # it over microbatches.
        axes = (axis for axis in self.plan.sum_axes if axis != "pipe")
        is_summed = self.plan.stages > 1 and not self.plan.pipe.flows
        parts = self.task.microbatches if is_summed else 1
        return self.plan.mesh.size(*axes) * parts

    def _split_random_streams(self, model: nnx.Module) -> None:
        """Give the streams that a network keeps another key on each shard of a batch.

        In place; all devices keep the same key, and count alike.
        """
        split = (*BATCH_AXES, *POSITION_AXES)
        axes = tuple(axis for axis in self.plan.sum_axes if axis in split)
        for _, node in nnx.iter_graph(model) if axes else ():
            if isinstance(node, nnx.RngKey):
                fold = partial(jax.random.fold_in, data=lax.axis_index(axes))
                # Streams that were split are arrays of keys.
                for _ in range(node.ndim - 1):
                    fold = jax.vmap(fold)
                node.set_value(fold(node.get_value()))

    def batch_shardings(self, shapes: BatchShapes) -> dict[str, NamedSharding]:
        """Return the sharding of each array of a batch."""
        specs = self._batch_specs(shapes)
        return {key: NamedSharding(self.mesh, spec) for key, spec in specs.items()}

    def padded_shapes(self, shapes: BatchShapes) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of a batch on devices, padded where rows do not divide."""
        # The host pads: inside of the step XLA would move rows between devices.
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
            local: function of this device's shards.
            state_specs: specs of its first argument.
            batch: a global batch.
            out_specs: specs of its results.
        """

        def run(state: Any, batch: Batch) -> Any:
            return local(state, self.objective.local_batch(batch))

        # check_vma off: see the rule of gradients in jaxdist/train/step.py.
        return jax.shard_map(
            run,
            mesh=self.mesh,
            in_specs=(state_specs, self._batch_specs(batch)),
            out_specs=out_specs,
            check_vma=False,
        )

    @cached_property
    def _error_feedback(self) -> tuple[Any, Any]:
        """Shapes and specs of the error feedback."""
        return error_feedback.error_feedback_shapes(
            self.plan, self.reduction, self.param_shardings
        )

    def _batch_specs(self, batch: Mapping[str, Any]) -> dict[str, P]:
        """Return how a batch is split: by samples, then by positions of an image."""
        # Dims that are not spatial (tokens, the frames of a clip) stay whole.
        axes, dims = self.plan.batch_axes, self.task.objective.dim_axes
        return {key: P(axes, *dims(key, len(x.shape))) for key, x in batch.items()}


def _moment_spec(moment: Any, leaf: LeafSharding, spec: P) -> Any:
    """Return how an array of an optimizer lies that is one of a parameter's."""
    # A part of an optimizer has no state of leaves that are not its own.
    if is_masked(moment):
        return moment
    if moment.shape == leaf.shape or len(moment.shape) != len(leaf.shape):
        return spec
    # Factored moments have one row in place of a dim.
    pairs = zip(leaf.spec(), moment.shape, leaf.shape, strict=True)
    return P(*(axis if rows == whole else None for axis, rows, whole in pairs))
