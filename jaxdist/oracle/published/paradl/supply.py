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

    reader_samples: float
    """Samples that one reader makes ready."""
    total: float
    """Samples that all read."""


def input_seconds(demand: InputDemand, compute: float, system: ParadlSystem) -> float:
    """Return the seconds until the samples of a step are there.

    Args:
        demand: what is read.
        compute: seconds that the reader's devices compute.
        system: with its loaders and its file system.
    """
    own = min(compute, demand.reader_samples / system.loader_rate.value)
    return own + (demand.total - demand.reader_samples) / system.filesystem_rate.value


def input_stall(
    demand: InputDemand, compute: float, step_seconds: float, system: ParadlSystem
) -> float:
    """Return the seconds that a step waits for its samples, beyond `step_seconds`."""
    return max(input_seconds(demand, compute, system) - step_seconds, 0.0)
