"""Optimizers and learning-rate schedules, and when a run evaluates, saves and ends."""

from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import check_range

if TYPE_CHECKING:
    import optax


REFERENCE_BATCH: Final = 256
"""Batch size of an unscaled learning rate (Goyal et al. 2017, section 2.1)."""

_NON_NEGATIVE_KEYS: Final = (
    *("lr", "weight_decay", "warmup_epochs"),
    *("clip", "skip_nonfinite"),
)


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer, with warm-up and cosine decay of its rate."""

    name: Literal[
        "sgd",
        "adamw",
        "lars",
        "lamb",
        "muon",
        "schedule_free_sgd",
        "schedule_free_adamw",
        "adafactor",
    ] = "sgd"
    """Name of the optimizer."""
    lr: float = 0.1
    """Peak learning rate, reached at the end of the warm-up; scaled, if `scaling` is.
    """
    scaling: Literal["none", "linear", "root"] = "none"
    """How `lr`, then of 256 samples, grows with the batch: times batch / 256, or its
    square root.
    """
    momentum: float = 0.9
    """Share of the old mean of gradients in the new, 0 to below 1; sgd is Nesterov's.
    adafactor has none; schedule_free: share of the average in the point at which
    gradients are taken.
    """
    beta2: float = 0.999
    """The same for squares of gradients, 0 to below 1: adamw, schedule_free_adamw, lamb
    and muon.
    """
    weight_decay: float = 0.0
    """Pulls each weight to zero; norms and biases never decay. sgd, lars: added to the
    gradient as this times the weight; others: added to the step, before the rate.
    """
    frozen: tuple[str, ...] = ()
    """Patterns of parameters that are not trained, by path: base.*. They have no
    gradient and no state of the optimizer.
    """
    clip: float = 0.0
    """Longest gradient over all parameters, longer ones are shortened to it; 0: any."""
    accumulate: int = 1
    """Parts of a batch whose gradients are added up before the parameters move."""
    ema: float = 0.0
    """Share of the old average of the weights in the new, which is what is evaluated;
    0: the weights themselves are.
    """
    skip_nonfinite: int = 0
    """Steps in a row that are skipped where the gradient is not finite, before the run
    fails; 0: it fails at the first loss that is no number.
    """
    warmup_epochs: float = 1.0
    """Epochs over which the learning rate rises to its peak."""
    milestones: tuple[int | float, ...] = ()
    """Epochs after which the rate is a tenth of what it was; none: half a cosine to 0.
    """

    def __post_init__(self) -> None:
        for key in _NON_NEGATIVE_KEYS:
            check_range(f"optim.{key}", getattr(self, key), minimum=0)
        for key in ("momentum", "beta2", "ema"):
            check_range(f"optim.{key}", getattr(self, key), minimum=0, upper_bound=1)
        check_range("optim.accumulate", self.accumulate, minimum=1)
        if self.is_schedule_free and (self.milestones or self.ema or not self.momentum):
            raise BadInput(
                f"{self.name} has a rate that stays, and an average of its own",
                rule="with a schedule-free optimizer optim.milestones and optim.ema "
                "are not set, and optim.momentum is above 0",
                values=f"optim.milestones = {','.join(map(str, self.milestones))}, "
                f"optim.ema = {self.ema}, optim.momentum = {self.momentum}",
                remedy="optim.milestones= optim.ema=0 optim.momentum=0.9",
            )
        # A milestone within the warm-up would be lost in the schedule.
        times = (self.warmup_epochs, *self.milestones)
        if any(late <= early for early, late in pairwise(times)):
            raise BadInput(
                "the milestones are out of order",
                rule="each of optim.milestones is later than the one before, "
                "the first later than optim.warmup_epochs",
                values=f"optim.warmup_epochs = {self.warmup_epochs}, "
                f"optim.milestones = {','.join(map(str, self.milestones))}",
                remedy="optim.milestones=30,60,80",
            )

    @property
    def is_schedule_free(self) -> bool:
        """Whether the rate does not decay, and the parameters are an average."""
        return self.name.startswith("schedule_free")


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """A linear warm-up of the learning rate."""

    initial_rate: float
    """Rate of the first step."""
    peak_rate: float
    """Rate after the warm-up."""
    steps: int
    """Steps of the warm-up."""


def make_warmup(
    config: OptimConfig, steps: int, steps_per_epoch: float, batch_size: int
) -> Warmup:
    """Return the warm-up of a run's learning rate.

    Args:
        config: base rate, scaling and warm-up.
        steps: steps of the whole run.
        steps_per_epoch: global batches in one pass over the data.
        batch_size: samples in a global batch.
    """
    times = batch_size / REFERENCE_BATCH
    grown = {"none": 1.0, "linear": times, "root": times**0.5}
    peak = config.lr * grown[config.scaling]
    # At least one step has the peak rate, however short the run is.
    warmup = max(min(round(config.warmup_epochs * steps_per_epoch), steps - 1), 0)
    # With a scaled rate the warm-up starts from the unscaled one, as in Goyal et al.
    # 2017, section 2.2; else, or where scaling makes it smaller, from zero.
    return Warmup(
        initial_rate=config.lr if peak > config.lr else 0.0,
        peak_rate=peak,
        steps=warmup,
    )


def make_learning_rate(
    config: OptimConfig, steps: int, steps_per_epoch: float, batch_size: int
) -> "optax.Schedule":
    """Return the rate as a function of the step: linear warm-up, then its decay.

    Args:
        config: base rate, scaling, warm-up and decay.
        steps: steps of the whole run; a cosine ends at 0 there.
        steps_per_epoch: global batches in one pass over the data.
        batch_size: samples in a global batch.
    """
    import optax

    start = make_warmup(config, steps, steps_per_epoch, batch_size)
    if config.is_schedule_free:
        # A line over no steps would stay at its first rate, and be one number for all.
        first = start.initial_rate if start.steps else start.peak_rate
        return optax.linear_schedule(first, start.peak_rate, max(start.steps, 1))
    # Without milestones the rate decays by half a cosine.
    if not config.milestones:
        return optax.warmup_cosine_decay_schedule(
            start.initial_rate, start.peak_rate, start.steps, steps
        )
    # join_schedules counts the steps of its second schedule from the boundary.
    drops = {
        round(epoch * steps_per_epoch) - start.steps: 0.1 for epoch in config.milestones
    }
    warmup = optax.linear_schedule(start.initial_rate, start.peak_rate, start.steps)
    stairs = optax.piecewise_constant_schedule(start.peak_rate, drops)
    return optax.join_schedules([warmup, stairs], [start.steps])


def make_optimizer(
    config: OptimConfig, learning_rate: "optax.Schedule"
) -> "optax.GradientTransformationExtraArgs":
    """Return the optimizer, which takes the gradient of the global loss.

    Norms and biases never decay. Where leaves are shards, its `update` takes `squares`
    and `total` (`jaxdist.train.sharded_norms`), `unshard` and `shard`
    (`jaxdist.train.muon`).
    """
    # optax is imported where it is used: configurations are read without it.
    import optax

    from jaxdist.train.nonfinite import skip_nonfinite
    from jaxdist.train.sharded_norms import clip_by_global_norm

    move = optax.with_extra_args_support(
        _OPTIMIZERS[config.name](config, learning_rate)
    )
    # Clipping comes first, and skipping is around all: a skipped step changes no
    # moment.
    if config.clip:
        move = optax.chain(clip_by_global_norm(config.clip), move)
    return skip_nonfinite(move) if config.skip_nonfinite else move


def _sgd(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """Nesterov momentum; decay is added to the gradient."""
    import optax

    # Of momentum 0 optax would keep a trace as large as the parameters.
    sgd = optax.sgd(rate, momentum=config.momentum or None, nesterov=True)
    if not config.weight_decay:
        return sgd
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay, weight_decay_mask), sgd
    )


def _adamw(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """Loshchilov and Hutter 2019, arXiv:1711.05101."""
    import optax

    return optax.adamw(
        rate,
        b1=config.momentum,
        b2=config.beta2,
        weight_decay=config.weight_decay,
        mask=weight_decay_mask,
    )


def _schedule_free_sgd(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """Defazio et al. 2024, arXiv:2405.15682; decay is added to the gradient."""
    import optax

    from jaxdist.train.schedule_free import schedule_free

    base = optax.chain(
        optax.add_decayed_weights(config.weight_decay, weight_decay_mask),
        optax.scale_by_learning_rate(rate),
    )
    return schedule_free(base, rate, config.momentum)


def _schedule_free_adamw(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """The same, each number scaled by the mean of its squared gradients."""
    import optax

    from jaxdist.train.schedule_free import schedule_free

    base = optax.chain(
        # As Adam without momentum, which would be as large as the parameters.
        optax.scale_by_rms(config.beta2, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(config.weight_decay, weight_decay_mask),
        optax.scale_by_learning_rate(rate),
    )
    return schedule_free(base, rate, config.momentum)


def _adafactor(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """`optax.adafactor`, without momentum: Shazeer and Stern 2018, arXiv:1804.04235."""
    from jaxdist.train.adafactor import adafactor

    decay = config.weight_decay
    return adafactor(rate, weight_decay=decay, mask=weight_decay_mask)


def _lars(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """`optax.lars`: You et al. 2017, arXiv:1708.03888.

    Norms and biases move as with momentum.
    """
    import optax

    from jaxdist.train.sharded_norms import scale_by_trust_ratio

    # As optax.lars, with trust ratios of whole leaves. The rate comes before the
    # momentum.
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay, weight_decay_mask),
        scale_by_trust_ratio(coefficient=0.001, mask=weight_decay_mask),
        optax.scale_by_learning_rate(rate),
        optax.trace(config.momentum),
    )


def _lamb(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """`optax.lamb`: You et al. 2020, arXiv:1904.00962."""
    import optax

    from jaxdist.train.sharded_norms import scale_by_trust_ratio

    # As optax.lamb, with trust ratios of whole leaves.
    return optax.chain(
        optax.scale_by_adam(config.momentum, config.beta2, eps=1e-6),
        optax.add_decayed_weights(config.weight_decay, weight_decay_mask),
        scale_by_trust_ratio(),
        optax.scale_by_learning_rate(rate),
    )


def _muon(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """Jordan et al. 2024: kernels move by orthogonal matrices, the rest by AdamW."""
    import optax

    from jaxdist.train.muon import matrix_labels, orthogonalize

    kernels = optax.chain(
        optax.trace(config.momentum, nesterov=True),
        orthogonalize(),
        optax.add_decayed_weights(config.weight_decay, weight_decay_mask),
        optax.scale_by_learning_rate(rate),
    )
    return optax.partition(
        {"muon": kernels, "adamw": _adamw(config, rate)}, matrix_labels
    )


def weight_decay_mask(params: Any) -> Any:
    """Return which leaves decay: no vectors, and no biases of several gates."""
    # Stages hold several vectors in one array of more dims, under the key `vectors`.
    import jax

    def decayed(path: Any, leaf: Any) -> bool:
        names = {getattr(k, "key", getattr(k, "name", "")) for k in path}
        return leaf.ndim > 1 and not names & {"bias", "vectors"}

    return jax.tree_util.tree_map_with_path(decayed, params)


_OPTIMIZERS: Final = MappingProxyType(
    {
        "sgd": _sgd,
        "adamw": _adamw,
        "lars": _lars,
        "lamb": _lamb,
        "muon": _muon,
        "schedule_free_sgd": _schedule_free_sgd,
        "schedule_free_adamw": _schedule_free_adamw,
        "adafactor": _adafactor,
    }
)


@dataclass(frozen=True, kw_only=True)
class RunSchedule:
    """When a run evaluates, saves and ends, in steps."""

    steps: int
    """Steps of the whole run."""
    samples: int
    """Training samples; an epoch is one pass over them."""
    batch_size: int
    """Samples of a step; a batch may span two epochs."""
    checkpoint_interval: int
    """Steps from one checkpoint to the next."""
    max_consecutive_skips: int = 0
    """Steps in a row that may be skipped before the run fails."""
    resume_evaluation: bool = False
    """Whether the evaluation of the restored state was interrupted."""

    def epoch_of(self, step: int) -> int:
        """Return the epoch, from 0, of the last sample of step `step`, from 1.

        >>> schedule = RunSchedule(
        ...     steps=60, samples=5, batch_size=2, checkpoint_interval=5
        ... )
        >>> schedule.epoch_of(3)
        1
        """
        return (step * self.batch_size - 1) // self.samples

    def is_evaluation_step(self, step: int) -> bool:
        """Whether this step completes an epoch, or the run."""
        # A batch larger than the data set can complete several epochs at once.
        before, now = ((s * self.batch_size) // self.samples for s in (step - 1, step))
        return now > before or step == self.steps

    def is_checkpoint_step(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % self.checkpoint_interval == 0 or step == self.steps
