"""The outer loop: how replicas that train on their own average their parameters."""

from dataclasses import dataclass

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.reduction import StatelessCompressor


@dataclass(frozen=True, kw_only=True)
class OuterConfig:
    """When replicas average what they learned, and how the average is followed.

    DiLoCo (Douillard et al. 2023, arXiv:2311.08105) is `sync_interval=50` and more
    with the numbers below; local SGD (Stich 2018, arXiv:1805.09767) is
    `learning_rate=1` and `momentum=0`: every replica goes on from the mean of their
    parameters.
    """

    sync_interval: int = 0
    """Steps of a replica from one outer step to the next; 0: there is no outer loop."""
    learning_rate: float = 0.7
    """Part of the way to the mean of the replicas that an outer step goes."""
    momentum: float = 0.9
    """Share of the last outer step's velocity in the next."""
    nesterov: bool = True
    """Whether an outer step looks ahead along its velocity."""
    fragments: int = 1
    """Parts of the network, each averaged at a time of its own in the period."""
    compressor: StatelessCompressor = "exact"
    """Compressor of the differences of matrices along the replica axis."""

    def __post_init__(self) -> None:
        legal = {
            "sync_interval": self.sync_interval >= 0,
            "learning_rate": self.learning_rate > 0,
            "momentum": 0 <= self.momentum < 1,
            # Each fragment has a step of its own in the period.
            "fragments": 1 <= self.fragments <= max(self.sync_interval, 1),
        }
        for name, holds in legal.items():
            if not holds:
                raise BadInput(
                    f"plan.outer.{name} is out of range",
                    rule="sync_interval >= 1, or 0 without an outer loop; "
                    "learning_rate > 0; 0 <= momentum < 1; "
                    "1 <= fragments <= sync_interval",
                    values=f"plan.outer.{name} = {getattr(self, name)}"
                    + f", plan.outer.sync_interval = {self.sync_interval}"
                    * (name == "fragments"),
                    remedy=f"plan.outer.{name}="
                    f"{getattr(OuterConfig(sync_interval=50), name)}",
                )
