"""Input: seconds until the samples of a step are there, and what of it is waited for.

    step  = max(train, input)
    input = min(compute, b / loader) + (B - b) / shared

Loaders of a device work while it computes, and are at least as fast as it: no run on
one device waited. Each sample is a file, and the file system that all share opens the
others' files in between: b of this reader, B of all.
"""

from dataclasses import dataclass

from jaxdist.oracle.published.paradl.system import ParadlSystem


@dataclass(frozen=True, kw_only=True)
class InputDemand:
    """What a step reads."""

    batch: float
    """Samples that one reader makes ready."""
    total: float
    """Samples that all read."""


def input_seconds(reading: InputDemand, compute: float, system: ParadlSystem) -> float:
    """Return the seconds until the samples of a step are there.

    Args:
        reading: what is read.
        compute: seconds that the reader's devices compute.
        system: with its loaders and its file system.
    """
    own = min(compute, reading.batch / system.loader.value)
    return own + (reading.total - reading.batch) / system.shared.value


def input_stall(
    reading: InputDemand, compute: float, train: float, system: ParadlSystem
) -> float:
    """Return the seconds that a step waits for its samples: what `train` is shorter."""
    return max(input_seconds(reading, compute, system) - train, 0.0)
