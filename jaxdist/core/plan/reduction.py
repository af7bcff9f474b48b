"""The gradient reduction: how gradients are summed over devices, as plain data."""

from dataclasses import dataclass, replace
from typing import Any, Literal

AlgorithmName = Literal[
    "exact",
    "bf16",
    "fp8",
    "int8",
    "int4",
    "sign",
    "random_k",
    "top_k",
    "sparse",
    "aligned",
    "hierarchical",
    "power",
    "ring",
    "recursive_doubling",
    "halving_doubling",
    "halving_doubling_far",
    "swing",
    "striped_halving_doubling",
    "double_binary_tree",
    "two_level_ring",
    "two_level_halving",
    "bucket_2d",
    "parameter_server",
    "sharded_parameter_server",
    "auto",
]

StatelessCompressor = Literal["exact", "bf16", "fp8", "int8", "int4"]
"""Ways that need no memory of what was not sent."""


@dataclass(frozen=True, kw_only=True)
class ReductionConfig:
    """How gradients are summed, and how shared parameters travel."""

    via: AlgorithmName = "exact"
    """The way gradients travel along the data axis: whole, in fewer bits, a part of
    them, or whole by the steps of a named algorithm; auto: what a measurement at the
    start finds to be the fastest of `among`."""
    among: tuple[str, ...] = ("exact", "ring", "recursive_doubling", "halving_doubling")
    """What auto chooses from, by preference; lossy ways only where they are named."""
    density: float = 0.01
    """Part of the numbers that sparse ways send (random_k, top_k, sparse, aligned,
    hierarchical)."""
    rank: int = 4
    """Columns of the thin matrices of `power`."""
    ranks: tuple[str, ...] = ()
    """The same for parts of the network: `block3:8,head:2`; the longest path counts."""
    block: int = 256
    """Numbers that share a scale (fp8, int8, int4), at most."""
    bucket_mib: float = 16.0
    """Gradients are joined until they have so many MiB, and each bucket is summed by
    itself."""
    dense_below: int = 1024
    """Arrays of fewer numbers are summed exactly, as vectors always are."""
    feedback: bool = True
    """Whether what is not sent is added to the next step's gradients."""
    momentum: float = 0.0
    """Nesterov momentum of all gradients, gathered before they are packed (momentum
    correction); in place of the optimizer's."""
    warm_up: int = 0
    """First steps whose gradients are summed exactly over the data axis."""
    scatter: StatelessCompressor = "exact"
    """The way gradients travel along the fsdp axis, to those who keep the parameter."""
    gather: StatelessCompressor = "exact"
    """The way parameters that fsdp shares out travel to where they are used."""

    def by(self, algorithm: Any) -> "ReductionConfig":
        """Return the same settings for another way.

        >>> ReductionConfig(density=0.1).by("sparse").via
        'sparse'
        """
        return replace(self, via=algorithm)
