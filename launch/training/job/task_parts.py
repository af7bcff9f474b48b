"""Parts of a task that a program hands over as values: no file can hold them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput

if TYPE_CHECKING:
    import optax

    from jaxdist.train.objective import Objective

LossFunction = Callable[[Any, Mapping[str, Any]], Any]
"""`loss(outputs, batch)`, to the loss of each sample, [B]."""
MetricFunction = Callable[[Any, Mapping[str, Any]], Any]
"""`metric(outputs, batch)`, to one number a sample, [B]."""
RateFunction = Callable[[Any], Any]
"""From steps, or updates, to the learning rate of each."""

_OWN_METRICS: Final = ("loss", "accuracy", "correct", "answers", "samples")


@dataclass(frozen=True, kw_only=True)
class TaskParts:
    """What takes the place of settings; None leaves it to them."""

    optimizer: "optax.GradientTransformation | Callable[[Any], Any] | None" = None
    """A transform of optax in place of `optim`, or a function from the learning rate,
    a schedule, to one."""
    learning_rate: "float | RateFunction | None" = None
    """Learning rate by step in place of that of `optim`; recorded for each step."""
    objective: "Objective | LossFunction | None" = None
    """What is trained; a function has the loss of each sample, [B]."""
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)
    """Further numbers of an evaluation by name, their means over held-out samples."""

    def __post_init__(self) -> None:
        taken = [name for name in self.metrics if name in _OWN_METRICS]
        if taken:
            raise BadInput(
                f"an evaluation has its own {taken[0]}",
                rule=f"metrics have other names than {', '.join(_OWN_METRICS)}",
                values=f"metrics: {', '.join(self.metrics)}",
                remedy=f"metrics={{'my_{taken[0]}': ...}}",
            )
        rate = self.learning_rate
        if rate is not None and not callable(rate) and not rate > 0:
            raise BadInput(
                "nothing would be learnt",
                rule="learning_rate is above zero, or a schedule of optax",
                values=f"learning_rate = {rate}",
                remedy="learning_rate=0.1",
            )

    def rate_or(self, default: RateFunction) -> RateFunction:
        """Return the learning rate of an array of steps.

        Args:
            default: that of the settings.
        """
        import jax.numpy as jnp

        rate = self.learning_rate
        if rate is not None:
            constant = rate
            follow = rate if callable(rate) else lambda step: constant
            # A schedule may forget the step, and need not take an array of them.
            return lambda step: jnp.asarray(follow(step), jnp.float32)
        if self.optimizer is None or callable(self.optimizer):
            return default
        # A transform does not say at which rate it moves the parameters.
        return lambda steps: jnp.full(jnp.shape(steps), jnp.nan, jnp.float32)


NO_PARTS: Final = TaskParts()
"""What a command hands over: all is in its settings."""
