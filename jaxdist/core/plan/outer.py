"""The outer loop: how replicas that train on their own average their parameters."""

from dataclasses import dataclass
from typing import Final, Literal

from jaxdist.core.errors import BadInput

OuterCompressor = Literal["exact", "bf16", "fp8", "int8", "int4", "chunked_top_k"]
"""How differences of parameters are summed over replicas."""

_SPARSE_SETTINGS: Final = ("density", "quantize", "feedback_decay")
"""What `chunked_top_k` alone reads."""


@dataclass(frozen=True, kw_only=True)
class OuterConfig:
    """When replicas average what they learned, and how the average is followed.

    DiLoCo (Douillard et al. 2023, arXiv:2311.08105) is `sync_interval=50` and more
    with the numbers below; local SGD (Stich 2018, arXiv:1805.09767) is
    `learning_rate=1` and `momentum=0`: every replica goes on from the mean of their
    parameters. SparseLoCo (Sarfi et al. 2025, arXiv:2508.15706) is local SGD with
    `compressor="chunked_top_k"`, which has error feedback in place of the momentum.
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
    compressor: OuterCompressor = "exact"
    """Compressor of the differences of matrices along the replica axis."""
    density: float = 1 / 64
    """Share of each chunk of 4,096 numbers that `chunked_top_k` sends."""
    quantize: bool = True
    """Whether `chunked_top_k` sends 2 bits a number, or whole numbers."""
    feedback_decay: float = 0.95
    """Part of what `chunked_top_k` has not sent that joins the next differences."""

    def __post_init__(self) -> None:
        legal = {
            "sync_interval": self.sync_interval >= 0,
            "learning_rate": self.learning_rate > 0,
            "momentum": 0 <= self.momentum < 1,
            # Each fragment has a step of its own in the period.
            "fragments": 1 <= self.fragments <= max(self.sync_interval, 1),
            "density": 0 < self.density <= 1,
            "feedback_decay": 0 <= self.feedback_decay <= 1,
        }
        for name, holds in legal.items():
            if not holds:
                raise BadInput(
                    f"plan.outer.{name} is out of range",
                    rule="sync_interval >= 1, or 0 without an outer loop; "
                    "learning_rate > 0; 0 <= momentum < 1; "
                    "1 <= fragments <= sync_interval; 0 < density <= 1; "
                    "0 <= feedback_decay <= 1",
                    values=f"plan.outer.{name} = {getattr(self, name)}"
                    + f", plan.outer.sync_interval = {self.sync_interval}"
                    * (name == "fragments"),
                    remedy=f"plan.outer.{name}="
                    f"{getattr(OuterConfig(sync_interval=50), name)}",
                )
        if self.has_feedback and self.momentum:
            raise BadInput(
                "an outer step would have two momenta",
                rule="with chunked_top_k what a replica has not sent comes again, as "
                "momentum does: plan.outer.momentum is 0",
                values=f"plan.outer.compressor = {self.compressor}, "
                f"plan.outer.momentum = {self.momentum}, "
                f"plan.outer.feedback_decay = {self.feedback_decay}",
                remedy=(
                    "plan.outer.momentum=0 plan.outer.learning_rate=1",
                    "or another compressor: plan.outer.compressor=int4",
                ),
            )

        default = type(self).__dataclass_fields__
        for name in _SPARSE_SETTINGS:
            value = getattr(self, name)
            if value != default[name].default and not self.has_feedback:
                raise BadInput(
                    f"plan.outer.{name} would do nothing",
                    rule=f"plan.outer.{name} is a setting of chunked_top_k",
                    values=f"plan.outer.{name} = {value}, plan.outer.compressor = "
                    f"{self.compressor}",
                    remedy=(
                        "plan.outer.compressor=chunked_top_k plan.outer.momentum=0 "
                        "plan.outer.learning_rate=1",
                        f"no plan.outer.{name}",
                    ),
                )

    @property
    def has_feedback(self) -> bool:
        """Whether replicas keep what they have not sent for the next outer step."""
        return self.compressor == "chunked_top_k"
