"""A training step of one device, run on all: `jaxdist.distribute(step)`.

    step(model, optimizer, batch) -> loss      as it is written for one device

runs once on each device, with its rows of the batch, inside one `shard_map`. What makes
the step that of the whole batch is put around it while it is traced:

    optimizer.update    gradients are averaged first: all-reduced over `data`, whole or
                        compressed; reduce-scattered over `fsdp`, where each device
                        then moves its shard
    nnx.BatchNorm       statistics are those of the whole batch
    random streams      each device draws its own noise, and all count alike
    other variables     real numbers are averaged, of whole ones the largest is taken
    what is returned    real numbers are averaged, whole ones summed; of arrays with a
                        row a sample all rows are returned

So a loss that is a mean over the batch is the mean over all devices' batches.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import is_
from pathlib import Path
from typing import Any, Final, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.compress.method import Axes
from jaxdist.collectives.sharded_leaves import all_gather, local_shard, reduce_scatter
from jaxdist.core.axes import BATCH_AXES, EXPERT_AXIS
from jaxdist.core.errors import BadInput, JaxdistWarning, did_you_mean
from jaxdist.core.files import check_no_store
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import AlgorithmName, ReductionConfig
from jaxdist.partition.gradient_buckets import (
    GradientReduction,
    all_reduce_leaves,
    plan_reduction,
)
from jaxdist.partition.param_sharding import (
    FSDP_AXIS,
    LeafSharding,
    leaf_shardings,
    split_axes,
)
from jaxdist.partition.variable_sync import sync_variables
from jaxdist.profile.abstract import is_trainable
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.error_feedback import (
    ErrorFeedback,
    all_reduce_compressed,
    error_feedback_shapes,
)
from jaxdist.train.sharded_norms import local_sum_squares
from jaxdist.train.sharded_optimizer import check_optimizer_dims
from jaxdist.train.state import TrainState, named_leaves

_PLAN_ALGORITHMS: Final = ("auto", "hierarchical")
"""All-reduce algorithms that a plan alone has."""

StepFunction = Callable[..., Any]
"""`step(model, optimizer, ..., batch)`, to whatever a loop wants to know."""


def distribute(
    step: StepFunction | None = None,
    *,
    axis: Literal["data", "fsdp"] = "data",
    compressor: str | ReductionConfig = "exact",
    mesh: Mesh | None = None,
    donate: bool = False,
) -> Any:
    """Run a training step that is written for one device on all devices.

    As a decorator, with or without arguments, or as a function. Devices are looked for
    at the first call, or when `mesh` is asked for.

    Args:
        step: `step(model, optimizer, ..., batch)`, jitted or not: modules and
            `nnx.Optimizer`s of flax, which it changes in place, then a tree of arrays
            [B, ...]. It moves parameters by `optimizer.update`, and its loss is a mean
            over samples. Of what it returns arrays that grow with the batch keep their
            rows, and others are averaged or, of whole numbers, summed.
        axis: what devices divide: `data`, the batch alone; `fsdp`, the batch, and each
            parameter and its optimizer's state between steps.
        compressor: how gradients are all-reduced over `data`: `int8`, `power`, `top_k`,
            ... of docs/compression.md, or a `ReductionConfig`.
        mesh: devices, along `data`, `fsdp` or both; none: all of them along `axis`.
        donate: whether a step may write over the arrays that it was given, which saves
            their memory: arrays that were taken out of a module before are gone then.

    Returns:
        A `DistributedStep`, called as `step` is.

    >>> import optax
    >>> @distribute
    ... def step(model, optimizer, batch):
    ...     loss = lambda model: jnp.square(model(batch["x"]) - batch["y"]).mean()
    ...     value, grads = nnx.value_and_grad(loss)(model)
    ...     optimizer.update(model, grads)
    ...     return value
    >>> model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    >>> optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    >>> x = np.linspace(0, 1, 48, dtype=np.float32)[:, None]
    >>> losses = [float(step(model, optimizer, {"x": x, "y": 3 * x})) for _ in range(9)]
    >>> losses[-1] < losses[0] / 2
    True
    """
    make = functools.partial(
        DistributedStep, axis=axis, compressor=compressor, mesh=mesh, donate=donate
    )
    return make if step is None else make(step)


class DistributedStep:
    """A training step on all devices, called as the step of one device is.

    The first call lays modules and optimizers out on the devices, with the values of
    process 0. Batches are arrays on the devices, as `jaxdist.input.loader` gives them,
    or the whole batch on the host, alike in every process.

    Args:
        step: as `distribute` takes it; so are the others.
    """

    def __init__(
        self,
        step: StepFunction,
        *,
        axis: Literal["data", "fsdp"] = "data",
        compressor: str | ReductionConfig = "exact",
        mesh: Mesh | None = None,
        donate: bool = False,
    ) -> None:
        functools.update_wrapper(self, step)
        asked = (axis,) if mesh is None else mesh.axis_names
        axes = [axis for axis in BATCH_AXES if axis != EXPERT_AXIS]
        if unknown := [name for name in asked if name not in axes]:
            raise BadInput(
                f"a step of one's own is not distributed over {unknown[0]}",
                rule="samples are divided over data and fsdp; jaxdist.run takes plans "
                "with other axes",
                values=f"axes: {', '.join(map(str, asked))}",
                remedy="jax.make_mesh((jax.device_count(),), ('data',))",
            )
        if isinstance(compressor, ReductionConfig):
            _check_settings(compressor)
        else:
            compressor = ReductionConfig(algorithm=_algorithm_name(compressor))
        # A jitted step is traced inside of another program, and what its optimizer is
        # handed belongs to that one.
        is_jitted = hasattr(step, "lower") and hasattr(step, "__wrapped__")
        self._step: StepFunction = inspect.unwrap(step) if is_jitted else step
        self._axis, self._given_mesh, self._reduction = axis, mesh, compressor
        self._feedback: list[ErrorFeedback | None] | None = None
        self._feedback_specs: list[Any] = []
        self.done = 0
        """Steps that are done, those before `resume` included."""
        self._checkpoints: Checkpoints | None = None
        self._interval = self._last_step = 0
        self._nodes: _Nodes | None = None
        self._forms: dict[Any, _Form] = {}
        self._compiled = jax.jit(
            self._run, static_argnums=0, donate_argnums=(1, 2) if donate else ()
        )

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The devices, for `jaxdist.input.loader(..., mesh=step.mesh)`."""
        # Not in the constructor: to ask for devices starts jax's backend, and a script
        # may still have to call `jax.distributed.initialize`.
        given = self._given_mesh
        if given is None:
            return Mesh(np.asarray(jax.devices()), (self._axis,))
        # As `jaxdist.input.loader` lays batches out: see `automatic_mesh` there.
        return Mesh(given.devices, given.axis_names)

    @functools.cached_property
    def _devices(self) -> set[Any]:
        return set(self.mesh.devices.flat)

    @functools.cached_property
    def plan(self) -> Plan:
        """Mesh and gradient reduction as a plan."""
        sizes = {str(name): int(size) for name, size in self.mesh.shape.items()}
        return Plan(mesh=MeshShape(**sizes), reduce=self._reduction)

    def __call__(self, *args: Any) -> Any:
        """Do a step: as that of one device, on the whole batch.

        Args:
            args: modules and optimizers, changed in place, and a batch.

        Raises:
            BadInput: no model, a batch that does not divide over the devices, or an
                optimizer that cannot move shards.
        """
        nodes, leaves, feedback, batch = self._prepare(args)
        new, self._feedback, out = self._compiled(nodes.form, leaves, feedback, batch)
        nodes.set_leaves(new)
        self.done += 1
        if self._checkpoints is not None and (
            self.done % self._interval == 0 or self.done == self._last_step
        ):
            self._checkpoints.save(self._state(nodes))
        return out

    def lower(self, *args: Any) -> Any:
        """Lower the step for these arguments, as a jitted function does."""
        nodes, leaves, feedback, batch = self._prepare(args)
        return self._compiled.lower(nodes.form, leaves, feedback, batch)

    def trace(self, *args: Any) -> Any:
        """Trace the step, as a jitted function does: for `jaxdist.audit(step, ...)`."""
        nodes, leaves, feedback, batch = self._prepare(args)
        return self._compiled.trace(nodes.form, leaves, feedback, batch)

    def resume(
        self,
        folder: str | Path,
        *nodes: Any,
        steps: int,
        interval: int = 100,
        keep: int = 3,
    ) -> "RemainingSteps":
        """Resume from the newest checkpoint of a folder, and save there from now on.

        Every process calls it, before the first step. A loop resumes on any number of
        devices; a damaged checkpoint is moved aside, and the one before it is read.
        Where all steps are done, a warning says so.

        Args:
            folder: of the checkpoints; made at the first save.
            nodes: modules and optimizers as the step takes them; changed in place.
            steps: of the whole loop, those of earlier starts included.
            interval: steps from one checkpoint to the next; the last step is saved too.
            keep: newest checkpoints that stay.

        Returns:
            The numbers of the steps that are left, from 0, to loop over; `start` is the
            first of them.

        Raises:
            BadInput: checkpoints of another network, optimizer or compressor, or the
                address of a store.
        """
        check_no_store(Path(folder), "folder")
        if interval < 1:
            raise BadInput(
                "checkpoints need a distance above zero",
                rule="interval is at least 1 step",
                values=f"interval = {interval}",
                remedy="interval=100",
            )
        self.close()
        held = self._state(self._lay_out(nodes))
        # With their places: each host reads what its own devices hold.
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), held
        )
        self._interval, self._last_step = interval, steps
        self._checkpoints = Checkpoints(Path(folder), max_to_keep=keep)
        restored = self._checkpoints.restore_newest(shapes)
        if restored is not None:
            self.done = restored.step
            self._set_state(self._lay_out(nodes), restored.state)
        if self.done >= steps:
            # A loop of no steps would end without a word.
            warnings.warn(
                f"{folder} is at step {self.done:,} of {steps:,}: nothing is left to "
                "do; a larger steps= trains longer, another folder begins anew",
                JaxdistWarning,
                stacklevel=2,
            )
        return RemainingSteps(start=self.done, stop=steps, close=self.close)

    def save(self, *nodes: Any) -> None:
        """Save now, where `resume` was told; returns before all is on disk.

        Args:
            nodes: modules and optimizers as the step takes them.
        """
        if self._checkpoints is None:
            raise ValueError("nothing says where: step.resume(folder, ...) does")
        self._checkpoints.save(self._state(self._lay_out(nodes)))

    def close(self) -> None:
        """Wait until all is saved; the end of the loop over `resume` calls it."""
        if self._checkpoints is not None:
            self._checkpoints.close()

    def _prepare(self, args: Sequence[Any]) -> tuple["_Nodes", list[Any], Any, Any]:
        """Return the arguments as the compiled step takes them, on the devices."""
        if len(args) < 2:
            raise BadInput(
                f"{getattr(self._step, '__name__', 'the step')} has no model",
                rule="a step takes modules and optimizers of flax, and behind them a "
                "batch",
                values=f"{len(args)} arguments",
                remedy="step(model, optimizer, batch)",
            )
        nodes = self._lay_out(args[:-1])
        batch = self._put_batch(args[-1])
        return nodes, nodes.read_arrays(), self._feedback_of(nodes), batch

    def _lay_out(self, args: Sequence[Any]) -> "_Nodes":
        """Return modules and optimizers, their arrays laid out on the devices."""
        nodes = self._nodes
        if nodes is None or not nodes.are(args):
            nodes = self._nodes = _Nodes(args, self._forms)
        leaves = nodes.read_arrays()
        # In a loop these are what the last step gave back, and lie where they should.
        if nodes.are_last(leaves):
            return nodes
        if not all(_is_on(self.mesh, leaf) for leaf in leaves):
            specs = self._leaf_specs(nodes.form)
            places = [NamedSharding(self.mesh, spec) for spec in specs]
            nodes.set_leaves(_put(leaves, places))
        return nodes

    def _put_batch(self, batch: Any) -> Any:
        """Return a batch on the devices, a part of its rows on each."""
        axes = self.mesh.axis_names
        sharding = NamedSharding(self.mesh, P(axes))
        devices = int(self.mesh.size)

        def put(x: Any) -> Any:
            if isinstance(x, jax.Array) and (
                _is_on(self.mesh, x) or x.sharding.device_set == self._devices
            ):
                return x
            rows = np.shape(x)[:1]
            if not rows or rows[0] % devices:
                near = -(-(rows[0] if rows else 1) // devices) * devices
                raise BadInput(
                    "the batch does not divide over the devices",
                    rule="each array of a batch is [B, ...], B a multiple of the "
                    "devices",
                    values=f"an array of a batch is {list(np.shape(x))}, {devices} "
                    f"devices along {' x '.join(map(str, axes))}",
                    remedy=f"batches of {near}",
                )
            whole = np.asarray(x)
            # Called for the devices of this process alone.
            return jax.make_array_from_callback(
                whole.shape, sharding, lambda index: whole[index]
            )

        return jax.tree.map(put, batch)

    def _leaf_specs(self, form: "_Form") -> list[P]:
        """Return how each array of modules and optimizers lies on the devices."""
        return [P(*leaf.spec()) for leaf in self._shardings(form)]

    def _shardings(self, form: "_Form") -> list[LeafSharding]:
        """Return how fsdp cuts parameters, and what optimizers have of each."""
        if form.shardings is None:
            found = leaf_shardings(self.plan, {}, form.shapes)
            # Of an optimizer's arrays those are cut that are a parameter's.
            # Without the number of the module: so end the paths in an optimizer.
            params = {n.partition("/")[2]: n for n in form.params}
            form.shardings = [
                leaf
                if leaf.name in form.params
                or (leaf.name in form.optimizer and _is_of(leaf, params, form.shapes))
                else replace(leaf, fsdp_dim=None)
                for leaf in found
            ]
        return form.shardings

    def _gradient_reduction(
        self, params: Any
    ) -> tuple[tuple[LeafSharding, ...], GradientReduction]:
        """Return how the gradients of an optimizer's parameters are reduced."""
        leaves = leaf_shardings(self.plan, {}, named_leaves(params))
        with warnings.catch_warnings():
            # The same script runs on one device, where nothing is summed.
            if self.mesh.size == 1:
                warnings.simplefilter("ignore", JaxdistWarning)
            return leaves, plan_reduction(self.plan, leaves)

    def _feedback_shapes(self, nodes: "_Nodes") -> list[tuple[Any, Any]]:
        """Return shapes and specs of each optimizer's error feedback, None without."""
        found = []
        for model, optimizer in nodes.trained():
            params = nnx.as_pure(nnx.state(model, optimizer.wrt))
            leaves, reduction = self._gradient_reduction(params)
            found.append(error_feedback_shapes(self.plan, reduction, leaves))
            dims = [x.fsdp_dim for x in leaves]
            check_optimizer_dims(
                optimizer.tx,
                params,
                [frozenset() if d is None else frozenset({d}) for d in dims],
                remedy="jaxdist.distribute(step, axis='data'): whole parameters",
            )
        return found

    def _feedback_of(self, nodes: "_Nodes") -> list[ErrorFeedback | None]:
        """Return the error feedback of each optimizer: at first, nothing is left."""
        if self._feedback is not None:
            return self._feedback
        pairs = self._feedback_shapes(nodes)
        self._feedback_specs = [specs for _, specs in pairs]
        shapes = [shapes for shapes, _ in pairs]
        places = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec),
            self._feedback_specs,
            is_leaf=lambda node: isinstance(node, P),
        )
        # Under jit, since no process holds the rows of the others' devices.
        zeros = jax.jit(
            lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
            out_shardings=places,
        )
        self._feedback = zeros() if jax.tree.leaves(shapes) else shapes
        return self._feedback

    def _state(self, nodes: "_Nodes") -> TrainState:
        """Return what a checkpoint holds, by name."""
        form = nodes.form
        named = dict(zip(form.shapes, nodes.read_arrays(), strict=True))
        others = named.keys() - form.params - form.optimizer
        feedback = [x for x in self._feedback_of(nodes) if x is not None]
        (done,) = _put([np.int32(self.done)], [NamedSharding(self.mesh, P())])
        return TrainState(
            step=done,
            params={n: x for n, x in named.items() if n in form.params},
            stats={n: x for n, x in named.items() if n in others},
            opt={n: x for n, x in named.items() if n in form.optimizer},
            # Of one optimizer under the names that a run's has, which are made to fit
            # another number of devices.
            feedback=feedback[0] if len(feedback) == 1 else feedback or None,
        )

    def _set_state(self, nodes: "_Nodes", state: TrainState) -> None:
        named = {**state.params, **state.stats, **state.opt}
        nodes.set_leaves([named[name] for name in nodes.form.shapes])
        saved = state.feedback
        left = iter(saved if isinstance(saved, list) else [saved])
        held = self._feedback_of(nodes)
        self._feedback = [None if x is None else next(left) for x in held]

    def _run(self, form: "_Form", leaves: Any, feedback: Any, batch: Any) -> Any:
        """Do a step on arrays; traced."""
        specs, axes = self._leaf_specs(form), self.mesh.axis_names
        # shard_map hands on arrays alone: how the step's result is made of them is put
        # here while it is traced.
        tree: list[Any] = []

        def local(leaves: Any, feedback: Any, batch: Any) -> Any:
            new, after, out = self._local(form, leaves, feedback, batch)
            parts, structure = jax.tree.flatten(out)

            def result(batch: Any) -> Any:
                return self._local(form, leaves, feedback, batch)[2]

            by_row = _have_row_per_sample(parts, batch, result)
            tree.append((structure, by_row))
            alike = [x for x, is_row in zip(parts, by_row) if not is_row]
            each = [x for x, is_row in zip(parts, by_row) if is_row]
            return new, after, self._agree(alike), each

        # check_vma off: a sum over devices is its own transpose then, and gradients are
        # those of each device's own copy of the parameters (jaxdist/train/step.py).
        step = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(specs, self._feedback_specs, P(axes)),
            out_specs=(specs, self._feedback_specs, P(), P(axes)),
            check_vma=False,
        )
        new, after, alike, each = step(leaves, feedback, batch)
        structure, by_row = tree[-1]
        own, rows = iter(alike), iter(each)
        merged = [next(rows) if is_row else next(own) for is_row in by_row]
        return new, after, jax.tree.unflatten(structure, merged)

    def _local(
        self, form: "_Form", leaves: list[Any], feedback: Any, batch: Any
    ) -> tuple[list[Any], list[Any], Any]:
        """Do a step on this device's rows and shards."""
        shardings = self._shardings(form)
        params = [leaf.name in form.params for leaf in shardings]
        dims = [
            x.fsdp_dim if is_param else None for x, is_param in zip(shardings, params)
        ]
        # Parameters are whole while the step runs, the optimizer's state in shards.
        nodes = form.merge(
            all_gather(leaves, dims, FSDP_AXIS) if any_dim(dims) else leaves
        )
        # The patched optimizers put here what they leave for the next step.
        after = list(feedback)
        with self._patched(form, nodes, after) as synchronized:
            out = self._step(*nodes, batch)
        state = nnx.state(tuple(nodes))
        new, structure = jax.tree.flatten(state)
        if structure != form.tree:
            raise BadInput(
                "the step adds or removes variables",
                rule="modules and optimizers have the same variables after each step",
                values=f"{form.tree.num_leaves} arrays before, {len(new)} after",
                remedy="make all variables before the first step",
            )
        new = self._synchronize(form, new, synchronized)
        return local_shard(new, dims, FSDP_AXIS) if any_dim(dims) else new, after, out

    @contextmanager
    def _patched(
        self, form: "_Form", nodes: Sequence[Any], feedback: list[Any]
    ) -> Iterator[set[str]]:
        """Make layers and optimizers see the whole batch while a step is traced.

        Yields the names of variables that are alike on all devices without a sum.
        """
        axes, undo = self.plan.sum_axes, list[Callable[[], None]]()
        # Moved along gradients that are means over devices, so alike already.
        alike = {n for n in form.shapes if n in form.params or n in form.optimizer}

        def change(node: Any, name: str, value: Any) -> None:
            before = getattr(node, name)
            undo.append(lambda: setattr(node, name, before))
            setattr(node, name, value)

        optimizers = 0
        for path, node in nnx.iter_graph(tuple(nodes)):
            where = "/".join(map(str, path))
            if isinstance(node, nnx.Optimizer):
                moved = self._reducing(node, feedback, optimizers)
                change(node, "tx", moved)
                optimizers += 1
            # Its statistics are averaged by the layer, over the axes that it is told.
            elif isinstance(node, nnx.BatchNorm) and node.axis_name is None:
                change(node, "axis_name", axes or None)
                alike |= {f"{where}/mean", f"{where}/var"}
            elif isinstance(node, nnx.RngKey):
                before = node.get_value()
                fold = functools.partial(jax.random.fold_in, data=_device_index(axes))
                for _ in range(before.ndim):  # streams that were split are arrays
                    fold = jax.vmap(fold)
                if axes:
                    # The folded key is for this step: the network keeps one that is
                    # the same on all devices.
                    undo.append(functools.partial(node.set_value, before))
                    node.set_value(fold(before))
                alike.add(where)
        yield alike
        for each in undo:
            each()

    def _reducing(
        self, optimizer: Any, feedback: list[Any], number: int
    ) -> optax.GradientTransformationExtraArgs:
        """Return an optimizer's transform, after a mean of gradients over devices."""
        move, devices = optax.with_extra_args_support(optimizer.tx), int(self.mesh.size)

        def update(
            grads: Any, state: Any, params: Any = None, **extra: Any
        ) -> tuple[Any, Any]:
            leaves, reduction = self._gradient_reduction(params)
            tree, own = jax.tree.structure(grads), jax.tree.leaves(grads)
            # Each loss is a mean over its device's rows, all of one number: a mean of
            # means.
            own = [x / devices for x in own] if devices > 1 else own
            dims = [leaf.fsdp_dim for leaf in leaves]
            cut = any_dim(dims)
            if cut:
                own = reduce_scatter(
                    own,
                    dims,
                    FSDP_AXIS,
                    reduction.scatter_compressor,
                    reduction.scatter_inner,
                    reduction.scatter_lanes,
                )
            # Scattered sums are of float32 at least.
            own = [x.astype(leaf.dtype) for x, leaf in zip(own, leaves, strict=True)]
            axes = set(reduction.exact_axes)
            # In one sum, where all are summed over the same axes.
            if len(axes) == 1 and (over := axes.pop()):
                whole = list(lax.psum(own, over))
            else:
                whole = all_reduce_leaves(own, reduction.exact_axes)
            whole, feedback[number] = all_reduce_compressed(
                self.plan.reduce,
                reduction,
                [leaf.name for leaf in leaves],
                whole,
                feedback[number],
                optimizer.step.get_value().astype(jnp.int32),
            )
            if cut:
                # The optimizer's state is that of shards. Clipping and trust ratios
                # ask for lengths of whole leaves: see `sharded_norms`.
                shards = local_shard(jax.tree.leaves(params), dims, FSDP_AXIS)
                params = jax.tree.unflatten(tree, shards)
                extra |= {"squares": functools.partial(_whole_squares, leaves)}
            updates, state = move.update(
                jax.tree.unflatten(tree, whole), state, params, **extra
            )
            if cut:
                # `nnx.Optimizer` adds updates to parameters, which are whole in a step.
                moved = all_gather(jax.tree.leaves(updates), dims, FSDP_AXIS)
                updates = jax.tree.unflatten(tree, moved)
            return updates, state

        return optax.GradientTransformationExtraArgs(move.init, update)

    def _synchronize(
        self, form: "_Form", leaves: list[Any], alike: set[str]
    ) -> list[Any]:
        """Return the variables of modules, on whose values all devices agree."""
        axes, told = self.plan.sum_axes, list[LeafSharding]()
        for sharding in self._shardings(form):
            floats = jnp.issubdtype(sharding.dtype, jnp.inexact)
            # Keys are numbers too, but have neither a mean nor a largest one.
            changes = sharding.name not in alike and not jnp.issubdtype(
                sharding.dtype, jax.dtypes.prng_key
            )
            told.append(
                replace(sharding, update="mean" if floats else "maximum")
                if changes
                else sharding
            )
        over: list[Axes] = [axes if x.update != "synchronized" else () for x in told]
        return sync_variables(leaves, told, over) if any(over) else leaves

    def _agree(self, parts: Sequence[Any]) -> list[jax.Array]:
        """Average real numbers over the devices, and sum whole ones."""
        arrays, axes = [jnp.asarray(x) for x in parts], self.plan.sum_axes
        shares = [
            x / self.mesh.size
            if jnp.issubdtype(x.dtype, jnp.inexact)
            # Truth values count as 0 and 1.
            else x.astype(int)
            for x in arrays
        ]
        sums = all_reduce_leaves(shares, [axes] * len(shares)) if axes else arrays
        return sums


@dataclass(frozen=True, kw_only=True)
class RemainingSteps:
    """The steps of a loop that are left, to iterate over.

    Behind the last one, or where the loop is left, the loop waits for what is still
    being written: a program that ends cannot write any more.
    """

    start: int
    """Number of the first, from 0: steps that are done."""
    stop: int
    """Steps of the whole loop."""
    close: Callable[[], None]
    """Waits until all is saved."""

    def __len__(self) -> int:
        return max(self.stop - self.start, 0)

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(self.start, self.stop)
        finally:
            self.close()


class _Form:
    """Structure of modules and optimizers; compared by identity, which is fast."""

    def __init__(self, graph: Any, state: Any) -> None:
        self.graph: Any = graph
        self.tree: Any = jax.tree.structure(state)
        named = named_leaves(state)
        self.shapes = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in named.items()
        }
        """Shapes of all arrays, whole, in the order of the leaves."""
        kinds = nnx.split_state(state, is_trainable, nnx.optimizer.OptState, ...)
        self.params, self.optimizer = (set(named_leaves(part)) for part in kinds[:2])
        self.shardings: list[LeafSharding] | None = None

    def merge(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Build modules and optimizers from arrays."""
        state = jax.tree.unflatten(self.tree, leaves)
        nodes: tuple[Any, ...] = nnx.merge(self.graph, state, copy=True)
        return nodes


class _Nodes:
    """Modules and optimizers of a loop, and the variables that hold their arrays.

    Taking a network apart costs milliseconds, so it is done once; whether it is still
    the same is told by its attributes.

    Args:
        args: modules and optimizers.
        forms: structures that were met before.
    """

    def __init__(self, args: Sequence[Any], forms: dict[Any, _Form]) -> None:
        self._args = tuple(args)
        self._last: Sequence[Any] = ()
        graph, state = nnx.split(self._args)
        # A second network of the same structure shares the compiled step of the first.
        self.form = forms.setdefault(graph, _Form(graph, state))
        found: dict[str, Any] = {}
        # What may be changed in place: attributes, dicts and lists; tuples may not.
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[list[Any]] = []
        for path, node in nnx.iter_graph(self._args):
            if isinstance(node, nnx.Variable):
                found["/".join(map(str, path))] = node
            elif isinstance(node, dict):
                self._dicts.append(node)
            elif isinstance(node, list):
                self._lists.append(node)
            elif hasattr(node, "__dict__"):
                self._dicts.append(vars(node))
        self._seen = [x for each in self._dicts for x in each.values()]
        self._seen += [x for each in self._lists for x in each]
        # A variable may hold several arrays, whose names go on behind its own.
        names = dict.fromkeys(
            name if name in found else name.rpartition("/")[0]
            for name in self.form.shapes
        )
        self._variables = [found[name] for name in names]

    def are(self, args: Sequence[Any]) -> bool:
        """Whether these are the modules and optimizers, with the same attributes."""
        same = len(args) == len(self._args)
        return same and all(map(is_, args, self._args)) and self._is_unchanged()

    def _is_unchanged(self) -> bool:
        # At every step, over thousands of attributes: nothing here is done one by one.
        now = [x for each in self._dicts for x in each.values()]
        now += [x for each in self._lists for x in each]
        return len(now) == len(self._seen) and all(map(is_, now, self._seen))

    def are_last(self, leaves: Sequence[Any]) -> bool:
        """Whether these arrays are those that the variables were given last."""
        return len(leaves) == len(self._last) and all(map(is_, leaves, self._last))

    def read_arrays(self) -> list[Any]:
        """Return the arrays, in the order of the form."""
        return jax.tree.leaves([v.get_raw_value() for v in self._variables])

    def set_leaves(self, leaves: Sequence[Any]) -> None:
        """Give the variables new arrays."""
        self._last, new = leaves, leaves
        if len(leaves) != len(self._variables):  # some hold several
            held = [v.get_raw_value() for v in self._variables]
            new = jax.tree.unflatten(jax.tree.structure(held), leaves)
        for variable, value in zip(self._variables, new, strict=True):
            variable.set_raw_value(value)

    def trained(self) -> Iterator[tuple[Any, Any]]:
        """Yield each optimizer, behind the module that it moves."""
        optimizers = [x for x in self._args if isinstance(x, nnx.Optimizer)]
        models = [x for x in self._args if not isinstance(x, nnx.Optimizer)]
        for number, optimizer in enumerate(optimizers):
            # `nnx.ModelAndOptimizer` has its own; several optimizers may share a model.
            own = vars(optimizer).get("model")
            if own is None:
                own = models[number if len(models) == len(optimizers) else 0]
            yield own, optimizer


def any_dim(dims: Sequence[int | None]) -> bool:
    """Whether any leaf is cut."""
    return any(dim is not None for dim in dims)


def _is_of(leaf: LeafSharding, params: dict[str, str], shapes: Any) -> bool:
    """Whether an optimizer's array is one of a parameter's, by path and shape."""
    parts = leaf.name.split("/")
    # The longest first: `head/kernel` is not the `kernel` of the network itself.
    ends = ("/".join(parts[i:]) for i in range(1, len(parts)))
    owner = next((params[end] for end in ends if end in params), None)
    return owner is not None and shapes[owner].shape == leaf.shape


def _whole_squares(leaves: Sequence[LeafSharding], tree: Any) -> Any:
    """Sum the squares of each leaf over the devices that split it."""
    own, shape = jax.tree.flatten(local_sum_squares(tree))
    return jax.tree.unflatten(
        shape, all_reduce_leaves(own, [split_axes(leaf) for leaf in leaves])
    )


def _have_row_per_sample(
    parts: Sequence[Any], batch: Any, result: Callable[[Any], Any]
) -> list[bool]:
    """Tell which returned arrays have a row for each sample of this device's batch.

    Those are as long as the batch, and twice as long on twice as many samples. A step
    that takes batches of one size alone is judged by the lengths of that size.

    Args:
        parts: what the step returned, leaf by leaf.
        batch: this device's rows.
        result: returns the same for another batch.
    """
    rows = {len(x) for x in jax.tree.leaves(batch)}
    likely = [jnp.ndim(x) > 0 and len(x) in rows for x in parts]
    # Another trace costs as much as the first: scalars and tables need none.
    if not any(likely):
        return likely
    twice = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((2 * len(x), *x.shape[1:]), x.dtype), batch
    )
    try:
        longer = jax.tree.leaves(jax.eval_shape(result, twice))
    except Exception:  # a step of one's own may raise anything
        return likely
    if len(longer) != len(parts):
        return likely
    return [
        is_likely and len(after.shape) > 0 and after.shape[0] == 2 * len(before)
        for is_likely, before, after in zip(likely, parts, longer, strict=True)
    ]


def _device_index(axes: Axes) -> Any:
    return lax.axis_index(axes) if axes else 0


def _is_on(mesh: Mesh, x: Any) -> bool:
    """Whether an array lies on these devices already."""
    sharding = getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return False
    return sharding.mesh is mesh or sharding.mesh == mesh


def _put(leaves: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[jax.Array]:
    """Lay arrays out on the devices of all processes, with the values of process 0."""
    # No host array holds a typed key: its numbers travel, and it is wrapped again.
    keys = [
        jax.random.key_impl(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else None
        for x in leaves
    ]
    whole = [
        x if impl is None else jax.random.key_data(x) for x, impl in zip(leaves, keys)
    ]
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        # Arrays that are laid out already are on all processes.
        local = [
            i for i, x in enumerate(whole) if getattr(x, "is_fully_addressable", True)
        ]
        told = multihost_utils.broadcast_one_to_all(
            [np.asarray(whole[i]) for i in local]
        )
        for i, x in zip(local, told, strict=True):
            whole[i] = np.asarray(x)

    def put(x: Any, sharding: NamedSharding) -> jax.Array:
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            # No process can read it whole; a program moves it.
            return jax.jit(lambda x: x, out_shardings=sharding)(x)
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda i: host[i])

    laid = [put(x, sharding) for x, sharding in zip(whole, shardings, strict=True)]
    return [
        x if impl is None else jax.random.wrap_key_data(x, impl=impl)
        for x, impl in zip(laid, keys)
    ]


def _check_settings(config: ReductionConfig) -> None:
    """Refuse what needs a second program beside the step."""
    if config.algorithm in _PLAN_ALGORITHMS or config.warmup_steps:
        raise BadInput(
            "a step of one's own is one program",
            rule="warmup_steps is 0, and the algorithm is neither chosen at the start "
            "nor over several axes",
            values=f"algorithm = {config.algorithm}, "
            f"warmup_steps = {config.warmup_steps}",
            remedy="ReductionConfig(algorithm='int8')",
        )


def _algorithm_name(name: str) -> Any:
    """Return the name of an all-reduce algorithm that loops can have.

    Raises:
        BadInput: there is none.
    """
    known = [n for n in get_args(AlgorithmName) if n not in _PLAN_ALGORITHMS]
    if name in known:
        return name
    near = did_you_mean(name, known)
    raise BadInput(
        f"gradients are not all-reduced by {name}",
        rule=f"compressor is one of {', '.join(known)}",
        values=f"compressor = {name}",
        remedy=f"did you mean compressor={near!r}?" if near else "compressor='int8'",
    )
