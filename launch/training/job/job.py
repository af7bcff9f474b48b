"""A job: a checked configuration turned into the values that the engine runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxdist.calibrate.reduction_timings import measure_reduction_link
from jaxdist.collectives.registry import (
    ALL_REDUCE_ALGORITHMS,
    make_algorithm,
    select_fastest,
)
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.metric_goal import MetricGoal
from jaxdist.core.plan import Plan
from jaxdist.core.text.formatting import format_size
from jaxdist.input.local_shuffle.partial import order_from_config
from jaxdist.input.order import SampleOrder
from jaxdist.input.registry import is_packed
from jaxdist.input.sources import sample_template
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.config.tree import replace_values
from jaxdist.launch.devices.prepare import describe_devices
from jaxdist.launch.run_folder.lockfile import ConfigChange, RunOptions
from jaxdist.launch.training.job.batch_spec import (
    batch_shapes,
    fit_model_config,
    source_vocabulary,
)
from jaxdist.launch.training.job.task_parts import NO_PARTS, RateFunction, TaskParts
from jaxdist.meshes.build import build_mesh
from jaxdist.models.registry import is_user_model, objective_for
from jaxdist.partition.gradient_buckets import DATA_AXIS, plan_reduction
from jaxdist.partition.spatial_layers import check_flax_layers, check_spatial_split
from jaxdist.pipeline.plan_schedule import updates_per_step
from jaxdist.profile.trace import TraceCache
from jaxdist.train.build_layout import build_layout
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.lora import ADAPTER_PATTERNS
from jaxdist.train.objective import (
    NextToken,
    Objective,
    PackedNextToken,
    cast_floats,
    function_objective,
)
from jaxdist.train.optimizers import RunSchedule, make_learning_rate, make_optimizer
from jaxdist.train.segmentation import Segmentation
from jaxdist.train.sharded_optimizer import check_optimizer_dims
from jaxdist.train.task import ModelSpec, Task

if TYPE_CHECKING:
    from jaxdist.input.sources import Source
    from jaxdist.launch.training.job.setup import ClusterState
    from jaxdist.launch.training.start_weights import StartWeights


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """A difference between the plan that was asked for and the plan that runs."""

    key: str
    """The setting, or the group of settings, that was changed: `plan.mesh`."""
    text: str
    """What it became and why, in a line."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What `jaxdist train` runs, with nothing left to decide."""

    config: Experiment
    """The configuration as it runs: the network fitted to the data, and the plan."""
    model_spec: ModelSpec
    """How its network is made, as data."""
    layout: Layout
    """Network, loss and optimizer, laid out on devices as the plan says."""
    order: SampleOrder
    """Which samples a step takes."""
    run_schedule: RunSchedule
    """When to evaluate, to save and to end."""
    learning_rates: RateFunction
    """Learning rates of an array of steps."""
    vocabulary: Sequence[str]
    """Characters or words that tokens stand for; empty where there are none."""
    resolved: ResolvedConfig
    """The configuration as it was asked for, with who set each value."""
    platform: str = "cpu"
    """Kind of device: cpu, gpu or tpu."""
    adjustments: tuple[Adjustment, ...] = ()
    """How the plan differs from the one that was asked for, in order."""
    warnings: tuple[str, ...] = ()
    """What to tell the user of the machine, a sentence each."""
    sources: "tuple[Source, ...]" = ()
    """Training and held-out samples."""
    sample_fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the same, where the job continues or begins a run."""
    cluster: "ClusterState | None" = None
    """The cluster that it is said to run on."""
    weights: "StartWeights | None" = None
    """Weights that it starts from, where its run has no checkpoint yet."""
    parts: TaskParts = field(default_factory=TaskParts)
    """What a program has handed over in place of settings."""
    command: tuple[str, ...] = ()
    """What was typed."""
    options: RunOptions = field(default_factory=RunOptions)
    """What its run has beside its configuration."""
    changes: "tuple[ConfigChange, ...]" = ()
    """What is changed of a run that is resumed."""

    @property
    def plan(self) -> Plan:
        """The plan that runs; there is no other one."""
        return self.layout.plan

    @property
    def devices(self) -> str:
        """Number and kind of its devices: `8 devices (cpu, fake)`."""
        return describe_devices(self.plan, self.platform)

    @property
    def is_chain(self) -> bool:
        """Whether the network says which blocks it is made of."""
        return hasattr(task_network(self.layout.task), "chain")

    @property
    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A global evaluation batch: padded to the mesh, with weights."""
        shards = self.plan.mesh.size(*self.plan.sample_axes)
        size = -(-self.config.data.eval_batch_size // shards) * shards
        shapes = {
            key: jax.ShapeDtypeStruct((size, *s.shape[1:]), s.dtype)
            for key, s in self.layout.batch_shapes.items()
        }
        # The weight is 0 for what pads the last batch, and 1 for samples.
        return {**shapes, "weight": jax.ShapeDtypeStruct((size,), jnp.float32)}


def make_job(
    config: Experiment,
    plan: Plan,
    train: "Source",
    parts: TaskParts = NO_PARTS,
) -> Job:
    """Turn a configuration into a job.

    Args:
        config: checked settings.
        plan: the layout to run, fitted to the devices.
        train: the training samples.
        parts: what a program hands over in place of settings.

    Raises:
        BadInput: more devices than there are, a network for other images, a plan that
            it or an optimizer of one's own cannot take, or more steps than can be
            counted.
    """
    asked = ResolvedConfig(experiment=config.name, config=config, sources={})
    # What devices and data decided is written into the configuration, so that
    # `job.config.plan` is the plan that runs.
    config = replace(config, plan=plan, model=fit_model_config(config, train))
    order = make_sample_order(config, len(train))
    schedule = make_run_schedule(config, len(train))
    epoch_steps = len(train) / order.batch
    rate = parts.rate_or(
        make_learning_rate(config.optim, schedule.steps, epoch_steps, config.data.batch)
    )
    # The optimizer counts updates. A pipeline schedule without a flush makes several in
    # a step, and the rate goes from that of the step to that of the next meanwhile.
    updates = updates_per_step(plan, config.optim.accumulate)
    update_rate = rate if updates == 1 else lambda count: rate(count / updates)
    # How the network is made is data, so that a checkpoint can be read without the
    # experiment.
    model_spec = make_model_spec(config)
    task = make_task(config, model_spec, update_rate)
    task = _with_parts(task, parts, update_rate, train)
    _check_best_metric(config.checkpoint.goal, task)
    shapes = batch_shapes(config, task.objective, train)
    layout = lay_out(config, task, plan, build_mesh(plan), shapes)
    if parts.optimizer is not None:
        _check_optimizer(layout)
    return Job(
        config=config,
        model_spec=model_spec,
        layout=layout,
        parts=parts,
        order=order,
        run_schedule=schedule,
        # Compiled: without it each operation of the rate would be a program of its own.
        # A rate that a program hands over is a function of one step.
        learning_rates=jax.jit(rate if parts.learning_rate is None else jax.vmap(rate)),
        vocabulary=source_vocabulary(train),
        resolved=asked,
    )


def _with_parts(
    task: Task, parts: TaskParts, rate: RateFunction, train: "Source"
) -> Task:
    """Return a task with what a program has handed over."""
    objective, optimizer = parts.objective, parts.optimizer
    if objective is None:
        objective = task.objective
    elif not isinstance(objective, Objective):
        objective = function_objective(objective, sample_template(train))
    if optimizer is None:
        optimizer = task.optimizer
    # An optax transformation is a tuple and not callable; a function makes one of the
    # rate.
    elif callable(optimizer):
        optimizer = optimizer(rate)
    return replace(
        task, objective=objective, optimizer=optimizer, metrics=dict(parts.metrics)
    )


def _check_best_metric(goal: MetricGoal | None, task: Task) -> None:
    """Refuse a best checkpoint by a metric that no evaluation has.

    Raises:
        BadInput: naming the metrics there are.
    """
    known = ["loss", *task.objective.score_names, *task.metrics]
    if task.objective.has_answers:
        known.insert(0, "accuracy")
    if goal is None or goal.metric in known:
        return
    near = did_you_mean(goal.metric, known)
    raise BadInput(
        f"no evaluation has the metric {goal.metric}",
        rule=f"checkpoint.best names one of {', '.join(known)}",
        values=f"checkpoint.best = {goal.metric}",
        remedy=f"did you mean {near}?" if near else f"checkpoint.best={known[0]}",
    )


def _check_optimizer(layout: Layout) -> None:
    """Refuse an optimizer of one's own that takes a shard for the whole.

    Raises:
        BadInput: naming the operation.
    """
    params = layout.replica_state_shapes.params
    dims = [
        # Slots of a pipeline have several parameters in one array.
        frozenset(range(x.ndim) if layout.slot_layout else _split_dims(leaf.spec()))
        for leaf, x in zip(layout.param_shardings, jax.tree.leaves(params), strict=True)
    ]
    axes = [
        a for a in ("fsdp", "expert", "tensor", "pipe") if layout.plan.mesh.size(a) > 1
    ]
    check_optimizer_dims(
        layout.task.optimizer,
        params,
        dims,
        remedy=" ".join(f"plan.mesh.{axis}=1" for axis in axes),
    )


def _split_dims(spec: Sequence[str | None]) -> set[int]:
    return {dim for dim, axis in enumerate(spec) if axis}


def lay_out(
    config: Experiment,
    task: Task,
    plan: Plan,
    mesh: Mesh,
    shapes: BatchShapes,
    trace_cache: TraceCache | None = None,
) -> Layout:
    """Lay a task out by a plan, or refuse a plan that it cannot be trained by.

    The one check of `train`, `plan`, `predict` and `compile`: what a search ranks is
    what a run takes.

    Args:
        config: says whose network it is.
        task: what is trained.
        plan: how it is split.
        mesh: the plan's axes on devices, or on none.
        shapes: of a global training batch.
        trace_cache: traces of the same network and batch, to lay it out many times.

    Raises:
        BadInput: the network, the samples or the batch do not fit the plan.
    """
    if is_user_model(config.model):
        # The layers of this package are tested under every layout; a user's network may
        # hold one that is right on whole batches alone.
        network = task_network(task)
        check_flax_layers(network)
        inputs = cast_floats(task.objective.model_inputs(shapes), task.dtype)
        check_spatial_split(plan, network, inputs, task.objective.is_dense)
    return build_layout(task, plan, mesh, shapes, trace_cache)


def choose_all_reduce(layout: Layout) -> tuple[str, str]:
    """Choose an all-reduce, for `plan.reduce.algorithm=auto`, by measurements.

    Args:
        layout: the step on the devices that will run it.

    Returns:
        The name of the algorithm, and what was measured and chosen in a line.

    Raises:
        BadInput: algorithms that cannot be chosen from.
    """
    plan, among = layout.plan, layout.plan.reduce.candidates
    # A hierarchical sum is over two axes, and the link is measured along one.
    able = [name for name in ALL_REDUCE_ALGORITHMS if name != "hierarchical"]
    wrong = [name for name in among if name not in able]
    if wrong or "exact" not in among:
        near = did_you_mean(wrong[0], able) if wrong else None
        fixed = [near or "int8" if name in wrong else name for name in among]
        words = fixed if "exact" in fixed else ["exact", *fixed]
        raise BadInput(
            "these all-reduce algorithms cannot be chosen from",
            rule="plan.reduce.candidates are algorithms over one axis, with exact",
            values=f"plan.reduce.candidates = {','.join(among)}; there are "
            f"{', '.join(able)}",
            remedy=f"plan.reduce.candidates={','.join(dict.fromkeys(words))}",
        )
    if plan.mesh.size(DATA_AXIS) == 1:
        return "exact", "exact: one device along data"

    algorithms = [make_algorithm(plan.reduce.by(name)) for name in among]
    # Measured on the very devices that will sum, with each algorithm's own messages.
    link = measure_reduction_link(layout.mesh, DATA_AXIS, algorithms)
    # `auto` puts no gradients into buckets, so those of an algorithm that sends all of
    # them stand for the sizes of the messages.
    ring = replace_values(plan, {"reduce.algorithm": "ring"})
    shapes = [
        [layout.param_shardings[leaf].local_shape(plan) for leaf in bucket.leaf_indices]
        for bucket in plan_reduction(ring, layout.param_shardings).buckets
    ]
    chosen = algorithms[0]
    if shapes:
        dtype, sizes = np.dtype(layout.task.param_dtype), {DATA_AXIS: link.devices}
        chosen = select_fastest(algorithms, shapes, dtype, sizes, link)
    rate = format_size(round(link.bytes_per_s))
    text = (
        f"{chosen.name}, out of {', '.join(among)}; {link.devices} devices along "
        f"{DATA_AXIS}, {rate}/s each, measured"
    )
    return chosen.name, text


def make_sample_order(config: Experiment, samples: int) -> SampleOrder:
    """Return which of `samples` training samples each step takes.

    Raises:
        BadInput: a batch or partitions that the samples cannot fill.
    """
    asked, batch = config.plan.shuffle, config.data.batch
    shards = config.plan.mesh.batch_shards * config.optim.accumulate
    # The order is cut into whole batches: with fewer samples there would be no step.
    if samples < batch:
        raise BadInput(
            "there are fewer training samples than a batch has",
            rule="a step draws different samples",
            values=f"{samples:,} training samples, data.batch = {batch:,}",
            remedy=f"data.batch={max(samples // shards, 1) * shards}",
        )
    return order_from_config(asked, num_samples=samples, batch=batch, seed=config.seed)


def make_run_schedule(config: Experiment, samples: int) -> RunSchedule:
    """Return when to evaluate, save and end, with `samples` training samples.

    Raises:
        BadInput: more steps than can be counted.
    """
    steps = make_sample_order(config, samples).steps(config.epochs)
    # The state counts steps in an int32.
    if steps >= 2**31:
        raise BadInput(
            "the run has too many steps",
            rule="a run has fewer than 2,147,483,648 steps",
            values=f"epochs = {config.epochs}, {samples} samples, "
            f"data.batch = {config.data.batch}",
            remedy="epochs=100",
        )
    saving, epoch_steps = config.checkpoint, samples / config.data.batch
    return RunSchedule(
        steps=steps,
        samples=samples,
        batch_size=config.data.batch,
        checkpoint_interval=saving.every_steps
        or max(1, round(saving.every_epochs * epoch_steps)),
        max_consecutive_skips=config.optim.skip_nonfinite,
    )


def make_model_spec(config: Experiment) -> ModelSpec:
    """Return how the configuration's network is made, in its precision."""
    return ModelSpec(
        maker="jaxdist.models.registry:make_model",
        settings=asdict(config.model),
        # None follows input and parameters, which have the precision of the run.
        dtype="bfloat16" if config.precision == "bfloat16" else None,
        lora=asdict(config.lora) if config.lora.rank else {},
    )


def make_task(config: Experiment, model_spec: ModelSpec, rate: RateFunction) -> Task:
    """Return the configuration's task, with this learning rate.

    In bfloat16 only activations are narrow: parameters stay float32, since most updates
    are smaller than the last bit of a bfloat16.
    """
    full = jnp.float64 if config.precision == "float64" else jnp.float32
    narrow = config.precision == "bfloat16"
    return Task(
        model=model_spec,
        optimizer=make_optimizer(config.optim, rate),
        objective=objective_of(config),
        microbatches=config.optim.accumulate,
        average=config.optim.ema,
        gradient_norm=config.run.gradient_norm,
        frozen=config.optim.frozen,
        trained=ADAPTER_PATTERNS if config.lora.rank else (),
        seed=config.seed,
        dtype=jnp.bfloat16 if narrow else full,
        param_dtype=full,
    )


def objective_of(config: Experiment) -> Objective:
    """Return what a configuration's network is trained on, given its data."""
    objective = objective_for(config.model)
    # A network of the user's own says itself whether it reads segments, and which
    # pixels count for nothing.
    if isinstance(objective, NextToken) and not is_user_model(config.model):
        objective = PackedNextToken() if is_packed(config.data) else objective
    is_own = isinstance(objective, Segmentation) and is_user_model(config.model)
    if isinstance(objective, NextToken | Segmentation) and not is_own:
        return replace(objective, ignore_value=config.data.ignore_value)
    return objective


def task_network(task: Task) -> nnx.Module:
    """Return a task's network on shapes alone."""
    return nnx.merge(task.graph, task.state.params, task.state.stats)
