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
"""Compressors without error feedback."""


@dataclass(frozen=True, kw_only=True)
class ReductionConfig:
    """The all-reduce of gradients, and the compressors of sharded parameters."""

    algorithm: AlgorithmName = "exact"
    """All-reduce algorithm or compressor of gradients along the data axis: whole, in
    fewer bits, a part of them, or whole by a named collective schedule; auto: what a
    measurement at the start finds to be the fastest of `candidates`."""
    # Exact ones: who asks for speed has not asked for another training.
    candidates: tuple[str, ...] = (
        *("exact", "ring", "recursive_doubling", "halving_doubling"),
    )
    """What auto chooses from, by preference; lossy ones only where they are named."""
    density: float = 0.01
    """Share of the elements that sparse compressors send (random_k, top_k, sparse,
    aligned, hierarchical)."""
    rank: int = 4
    """Columns of the thin matrices of `power`."""
    ranks: tuple[str, ...] = ()
    """The same for parts of the network: `block3:8,head:2`; the longest path counts."""
    block_size: int = 256
    """Elements that share a scale (fp8, int8, int4), at most."""
    bucket_mib: float = 16.0
    """Gradients are joined until they have so many MiB, and each bucket is summed by
    itself."""
    min_compressed_elements: int = 1024
    """Arrays of fewer elements are summed exactly, as vectors always are."""
    error_feedback: bool = True
    """Whether what is not sent is added to the next step's gradients."""
    momentum: float = 0.0
    """Nesterov momentum of all gradients, gathered before they are compressed (momentum
    correction); in place of the optimizer's."""
    warmup_steps: int = 0
    """First steps whose gradients are summed exactly over the data axis."""
    reduce_scatter: StatelessCompressor = "exact"
    """Compressor of the gradients' reduce-scatter along the fsdp axis."""
    all_gather: StatelessCompressor = "exact"
    """Compressor of the parameters' all-gather along the fsdp axis."""

    def by(self, algorithm: Any) -> "ReductionConfig":
        """Return the same settings for another algorithm.

        >>> ReductionConfig(density=0.1).by("sparse").algorithm
        'sparse'
        """
        return replace(self, algorithm=algorithm)
