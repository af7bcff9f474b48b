"""A job: a checked configuration turned into the values that the engine runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.input.local_shuffle.partial import order_from_config
from jaxdist.input.order import SampleOrder
from jaxdist.launch.config import Experiment
from jaxdist.launch.training.job.batch_spec import (
    batch_shapes,
    fit_model_config,
    source_vocabulary,
)
from jaxdist.meshes.build import build_mesh
from jaxdist.models.registry import is_user_model, objective_for
from jaxdist.partition.spatial_check import check_flax_layers, check_spatial_split
from jaxdist.pipeline.plan_schedule import updates_per_step
from jaxdist.train.build_layout import build_layout
from jaxdist.train.layout import Layout
from jaxdist.train.objective import cast_floats
from jaxdist.train.optimizers import make_learning_rate, make_optimizer
from jaxdist.train.run_schedule import RunSchedule
from jaxdist.train.task import ModelSpec, Task

if TYPE_CHECKING:
    from jaxdist.input.sources import Source


RateFunction = Callable[[Any], Any]
"""From steps, or updates, to the learning rate of each."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What `jaxdist train` runs, with nothing left to decide."""

    config: Experiment
    """The configuration it was made of, the network's settings fitted to the data."""
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

    @property
    def is_chain(self) -> bool:
        """Whether the network says which blocks it is made of."""
        return hasattr(task_network(self.layout.task), "chain")

    @property
    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A global evaluation batch: padded to the mesh, with weights."""
        plan = self.layout.plan
        shards = plan.mesh.size(*plan.sample_axes)
        size = -(-self.config.data.eval_batch_size // shards) * shards
        sized = {
            k: _shape_struct(size, *s.shape[1:], dtype=s.dtype)
            for k, s in self.layout.batch_shapes.items()
        }
        return {**sized, "weight": _shape_struct(size, dtype=jnp.float32)}


def make_job(config: Experiment, plan: Plan, train: "Source") -> Job:
    """Turn a configuration into a job.

    Args:
        config: checked settings.
        plan: the layout to run, fitted to the devices.
        train: the training samples.

    Raises:
        BadInput: more devices than there are, a network for other images, a plan that
            it cannot take, or more steps than can be counted.
    """
    config = replace(config, model=fit_model_config(config, train))
    order = make_sample_order(config, len(train))
    course, per_epoch = make_run_schedule(config, len(train)), len(train) / order.batch
    rate = make_learning_rate(config.optim, course.steps, per_epoch, config.data.batch)
    each = rate_per_update(plan, config.optim.accumulate, rate)
    task = make_task(config, recipe := make_model_spec(config), each)
    shapes = batch_shapes(config, task.objective, train)
    if is_user_model(config.model):
        _check_user_model(task, plan, shapes)
    return Job(
        config=config,
        model_spec=recipe,
        layout=build_layout(task, plan, build_mesh(plan), shapes),
        order=order,
        run_schedule=course,
        learning_rates=jax.jit(rate),
        vocabulary=source_vocabulary(train),
    )


def make_sample_order(config: Experiment, samples: int) -> SampleOrder:
    """Return which samples of so many each step takes.

    Raises:
        BadInput: a batch or partitions that the samples cannot fill.
    """
    asked, batch = config.plan.shuffle, config.data.batch
    shards = config.plan.mesh.batch_shards * config.optim.accumulate
    if samples < batch:
        raise BadInput(
            "there are fewer training samples than a batch has",
            rule="a step draws different samples",
            values=f"{samples:,} training samples, data.batch = {batch:,}",
            remedy=f"data.batch={max(samples // shards, 1) * shards}",
        )
    return order_from_config(asked, num_samples=samples, batch=batch, seed=config.seed)


def make_run_schedule(config: Experiment, samples: int) -> RunSchedule:
    """Return when things happen in a run over so many training samples.

    Raises:
        BadInput: more steps than can be counted.
    """
    order = make_sample_order(config, samples)
    if order.steps(config.epochs) >= 2**31:
        raise BadInput(
            "the run has too many steps",
            rule="a run has fewer than 2,147,483,648 steps",
            values=f"epochs = {config.epochs}, {samples} samples, "
            f"data.batch = {config.data.batch}",
            remedy="epochs=100",
        )
    return RunSchedule(
        steps=order.steps(config.epochs),
        samples=samples,
        batch_size=config.data.batch,
        checkpoint_interval=config.checkpoint.interval(samples / config.data.batch),
        max_consecutive_skips=config.optim.skip_nonfinite,
    )


def rate_per_update(plan: Plan, microbatches: int, rate: RateFunction) -> RateFunction:
    """Return the rate of an update, counted from the first of the run.

    In a step of a schedule without a flush weights move several times: the rate then
    goes from that of the step to that of the next.

    Args:
        plan: the layout.
        microbatches: of a step.
        rate: rate of each step, from 0.
    """
    most = updates_per_step(plan, microbatches)
    return rate if most == 1 else lambda count: rate(count / most)


def make_model_spec(config: Experiment) -> ModelSpec:
    """Return how the configuration's network is made, in its precision."""
    return ModelSpec(
        maker="jaxdist.models.registry:make_model",
        settings=asdict(config.model),
        dtype="bfloat16" if config.precision == "bfloat16" else None,
    )


def make_task(config: Experiment, model_spec: ModelSpec, rate: RateFunction) -> Task:
    """Return the configuration's task, its parameters moved at this rate."""
    full = jnp.float64 if config.precision == "float64" else jnp.float32
    narrow = config.precision == "bfloat16"
    return Task(
        model=model_spec,
        optimizer=make_optimizer(config.optim, rate),
        objective=objective_for(config.model),
        microbatches=config.optim.accumulate,
        average=config.optim.ema,
        seed=config.seed,
        dtype=jnp.bfloat16 if narrow else full,
        param_dtype=full,
    )


def _check_user_model(
    task: Task, plan: Plan, shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> None:
    """Refuse a network that is right on whole batches alone; ours are held to laws."""
    network = task_network(task)
    check_flax_layers(network)
    inputs = cast_floats(task.objective.model_inputs(shapes), task.dtype)
    check_spatial_split(plan, network, inputs)


def task_network(task: Task) -> nnx.Module:
    """Return a task's network on shapes alone."""
    return nnx.merge(task.graph, task.state.params, task.state.stats)


def _shape_struct(*shape: int, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)
