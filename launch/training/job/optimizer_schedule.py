"""The schedule of an optimizer: rates, decay and statistics, before a run starts."""

import math
from dataclasses import dataclass

import jax
import numpy as np

from jaxdist.core.plan import Plan
from jaxdist.launch.config import Experiment
from jaxdist.launch.training.job.job import (
    make_model_spec,
    make_run_schedule,
    make_task,
)
from jaxdist.train.optimizers import (
    REFERENCE_BATCH,
    OptimConfig,
    RunSchedule,
    Warmup,
    make_learning_rate,
    make_warmup,
    weight_decay_mask,
)
from jaxdist.train.state import named_leaves
from jaxdist.train.task import Task


@dataclass(frozen=True, kw_only=True)
class EpochRate:
    """The rate of one epoch."""

    epoch: int
    """Its number, from 1."""
    step: int
    """Its first step, from 1."""
    rate: float
    """Learning rate of that step."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSchedule:
    """What an optimizer's settings amount to with a data set, a batch and a layout."""

    optim: OptimConfig
    """The settings."""
    ramp: Warmup
    """How the rate begins."""
    batch: int
    """Samples in a global batch."""
    replicas: int
    """Parts that the batch is divided in, each on devices of its own."""
    steps: int
    """Steps of the run."""
    milestones: tuple[int, ...]
    """First steps, from 1, at a tenth of the rate."""
    leaves: tuple[int, int]
    """Leaves of the parameters that decay, and all of them."""
    numbers: tuple[int, int]
    """The numbers in them."""
    sharing: int
    """Samples that share the statistics of a batch norm; 0: the network has none."""
    epochs: tuple[EpochRate, ...]
    """The rate, epoch by epoch."""

    @property
    def peak_rate_text(self) -> str:
        """The rate after the warm-up, and how it came to be.

        A run on 1,024 samples at 0.1 for 256 has `0.1 x 1024/256 = 0.4`.
        """
        sizes = f"{self.batch}/{REFERENCE_BATCH}"
        grown = {"none": "", "linear": f" x {sizes}", "root": f" x sqrt({sizes})"}
        if self.optim.scaling == "none":
            return f"{self.ramp.peak_rate:g}"
        how = grown[self.optim.scaling]
        return f"{self.optim.lr:g}{how} = {self.ramp.peak_rate:g}"

    @property
    def weight_decay_text(self) -> str:
        """Which leaves decay, and which samples share statistics: `10 of 25 leaves`."""
        leaves = f"{self.leaves[0]} of {self.leaves[1]} leaves"
        return leaves + f", norms of {self.sharing:,} samples" * bool(self.sharing)

    @property
    def microbatch(self) -> int:
        """Samples that a replica computes at once."""
        return self.batch // self.replicas // self.optim.accumulate


def optimizer_schedule(
    config: Experiment, plan: Plan, samples: int
) -> OptimizerSchedule:
    """Return the schedule of a configuration on so many training samples.

    Args:
        config: checked settings, the network's fitted to the data.
        plan: the layout; its devices need not be here.
        samples: training samples.
    """
    course, per_epoch = make_run_schedule(config, samples), samples / config.data.batch
    sizes = course.steps, per_epoch, course.batch_size
    task = make_task(
        config, make_model_spec(config), make_learning_rate(config.optim, *sizes)
    )
    return schedule_from_task(config, plan, task, course)


def schedule_from_task(
    config: Experiment, plan: Plan, task: Task, run_schedule: RunSchedule
) -> OptimizerSchedule:
    """Return the schedule of a job's parts; arguments are as a `Job` has them."""
    steps, batch = run_schedule.steps, run_schedule.batch_size
    per_epoch, params = run_schedule.samples / batch, task.state.params
    marked = jax.tree.leaves(weight_decay_mask(params))
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    decaying = [size for size, decays in zip(sizes, marked) if decays]

    # A batch norm has the statistics of a replica's microbatch, or of a part of it; a
    # global one averages them over all replicas, which is the same as one large batch.
    sharing = 0
    others = task.frozen_params | task.routing_stats
    if set(named_leaves(task.state.stats)) - others:
        sharing = config.data.batch // plan.batch_shards // config.optim.accumulate
        is_global = config.model.norm == "global"
        sharing *= plan.mesh.batch_shards if is_global else config.model.norm_group

    # The rate at the first step of each epoch, all in one call of a compiled function.
    # Steps are int32 as in the state, so that rounding is that of the run.
    rate = make_learning_rate(config.optim, steps, per_epoch, batch)
    first = [round(epoch * per_epoch) for epoch in range(math.ceil(config.epochs))]
    counts = np.array([step for step in first if step < steps], np.int32)
    # optax counts in int32 and has jax promote, also where strict promotion is asked
    # for.
    with jax.numpy_dtype_promotion("standard"):
        rates = np.asarray(jax.jit(rate)(counts))
    epochs = tuple(
        EpochRate(epoch=number, step=int(step) + 1, rate=float(rate))
        for number, (step, rate) in enumerate(zip(counts, rates), start=1)
    )
    return OptimizerSchedule(
        optim=config.optim,
        ramp=make_warmup(config.optim, steps, per_epoch, batch),
        batch=batch,
        replicas=plan.batch_shards,
        steps=steps,
        # Counted from 1, as steps are shown everywhere.
        milestones=tuple(round(e * per_epoch) + 1 for e in config.optim.milestones),
        leaves=(len(decaying), len(sizes)),
        numbers=(sum(decaying), sum(sizes)),
        sharing=sharing,
        epochs=epochs,
    )
