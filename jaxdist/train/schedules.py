"""The optimizer and its learning rate over the steps of a run."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from jaxdist.core.ranges import check_range

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer, with warm-up and cosine decay of its rate."""

    name: Literal["sgd", "adamw", "lars", "lamb"] = "sgd"
    """How a gradient moves the parameters."""
    lr: float = 0.1
    """Peak learning rate, reached at the end of the warm-up."""
    momentum: float = 0.9
    """Share of the old mean of gradients in the new, 0 to below 1; sgd is Nesterov's.
    """
    beta2: float = 0.999
    """The same for squares of gradients, 0 to below 1: adamw and lamb."""
    weight_decay: float = 0.0
    """Pulls each weight to zero; norms and biases never decay. sgd, lars: added to the
    gradient as this times the weight; adamw, lamb: added to the step, before the rate.
    """
    clip: float = 0.0
    """Longest gradient over all parameters, longer ones are shortened to it; 0: any."""
    warmup_epochs: float = 1.0
    """Epochs over which the learning rate rises from 0 to `lr`."""

    def __post_init__(self) -> None:
        for key in ("lr", "weight_decay", "warmup_epochs", "clip"):
            check_range(f"optim.{key}", getattr(self, key), least=0)
        for key in ("momentum", "beta2"):
            check_range(f"optim.{key}", getattr(self, key), least=0, below=1)


def learning_rate(
    config: OptimConfig, steps: int, steps_per_epoch: float
) -> "optax.Schedule":
    """Return the rate as a function of the step: linear warm-up, then half a cosine.

    Args:
        config: peak rate and warm-up.
        steps: steps of the whole run; the rate ends at 0 there.
        steps_per_epoch: global batches in one pass over the data.
    """
    import optax

    warmup = min(round(config.warmup_epochs * steps_per_epoch), steps - 1)
    return optax.warmup_cosine_decay_schedule(0.0, config.lr, max(warmup, 0), steps)


def optimizer(
    config: OptimConfig, rate: "optax.Schedule"
) -> "optax.GradientTransformation":
    """Return what moves the parameters, on the gradient of the global loss.

    Norms and biases never decay.
    """
    import optax

    move = _KINDS[config.name](config, rate)
    if not config.clip:
        return move
    return optax.chain(optax.clip_by_global_norm(config.clip), move)


def _sgd(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """Nesterov momentum; decay is added to the gradient."""
    import optax

    sgd = optax.sgd(rate, momentum=config.momentum or None, nesterov=True)
    if not config.weight_decay:
        return sgd
    return optax.chain(optax.add_decayed_weights(config.weight_decay, _kernels), sgd)


def _adamw(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """Loshchilov and Hutter 2019, arXiv:1711.05101."""
    import optax

    return optax.adamw(
        rate,
        b1=config.momentum,
        b2=config.beta2,
        weight_decay=config.weight_decay,
        mask=_kernels,
    )


def _lars(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """You et al. 2017, arXiv:1708.03888; norms and biases move as with momentum."""
    import optax

    return optax.lars(
        rate,
        weight_decay=config.weight_decay,
        weight_decay_mask=_kernels,
        trust_ratio_mask=_kernels,
        momentum=config.momentum,
    )


def _lamb(config: OptimConfig, rate: "optax.Schedule") -> Any:
    """You et al. 2020, arXiv:1904.00962."""
    import optax

    return optax.lamb(
        rate,
        b1=config.momentum,
        b2=config.beta2,
        weight_decay=config.weight_decay,
        mask=_kernels,
    )


def _kernels(params: Any) -> Any:
    """Mark the leaves that decay: no vectors, and no biases of several gates."""
    import jax

    def decays(path: Any, leaf: Any) -> bool:
        return leaf.ndim > 1 and "bias" not in [getattr(k, "key", "") for k in path]

    return jax.tree_util.tree_map_with_path(decays, params)


_KINDS: Final = MappingProxyType(
    {"sgd": _sgd, "adamw": _adamw, "lars": _lars, "lamb": _lamb}
)
