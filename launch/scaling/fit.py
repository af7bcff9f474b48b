"""A least-squares fit of a step as a serial, a parallel and a communication part.

    t = serial + parallel x n p / min(p, c) + communication x s

with p processes on c cores, n samples a process and step, and s bytes that a device
sends in a step, by the plan's ledger. With a core a process and a global batch B it is

    t(p) = serial + parallel B / p + communication s(p)

the time of Amdahl's law (G. Amdahl, 1967, "Validity of the single processor approach to
achieving large scale computing capabilities", AFIPS) with a term for communication. For
S bytes of gradients s is 2 S (p-1)/p in a ring, and 2 (p-1) S with a parameter server,
whose link carries p-1 gradients and then p-1 sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

FIT_EQUATION: Final = (
    "t = serial + parallel x samples a core + communication x bytes sent"
)
FIT_UNKNOWNS: Final = 3


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """A measured step."""

    processes: int
    """Number of processes."""
    each: float
    """Samples of each process."""
    sent_bytes: float
    """Bytes that a device sent."""
    seconds: float
    """Median of a steady step."""
    cores: int
    """Cores for all processes together."""

    @property
    def samples_per_core(self) -> float:
        """Samples that each busy core has to compute."""
        # More processes than cores take turns: a core has the samples of several.
        return self.each * self.processes / min(self.processes, self.cores)


@dataclass(frozen=True, kw_only=True)
class ScalingFit:
    """The three parts, and how far the points are from them."""

    serial: float
    """Seconds of a step that no number of processes reduces."""
    parallel: float
    """Seconds a sample on a core."""
    communication: float
    """Seconds a byte that a device sends."""
    points: int
    """Measured steps in the fit."""
    rms_residual: float
    """Root mean square of measured minus fitted seconds."""
    max_relative_error: float
    """Largest distance of a point, as a share of its measured seconds."""

    @property
    def degrees_of_freedom(self) -> int:
        """Points beyond the unknowns; with none the residual is always zero."""
        return self.points - FIT_UNKNOWNS

    def component_seconds(self, point: ScalingPoint) -> dict[str, float]:
        """Return the seconds of each part at a point."""
        return {
            "serial": self.serial,
            "parallel": self.parallel * point.samples_per_core,
            "communication": self.communication * point.sent_bytes,
        }

    def component_shares(self, point: ScalingPoint) -> dict[str, float]:
        """Return the same as shares of the fitted step; `serial` is Amdahl's."""
        parts = self.component_seconds(point)
        whole = sum(parts.values())
        return {name: seconds / whole for name, seconds in parts.items()}


@dataclass(frozen=True, kw_only=True)
class ScalingFitFailure:
    """Points from which the parts cannot be told apart."""

    reason: str
    """What is missing."""
    remedy: str
    """What to type as well."""


def fit(points: Sequence[ScalingPoint]) -> ScalingFit | ScalingFitFailure:
    """Fit the three parts to measured steps.

    Args:
        points: at least three, in which no part is a linear combination of the others.
    """
    # Fewer equations than unknowns have many solutions, all without a residual.
    if len(points) < FIT_UNKNOWNS:
        return ScalingFitFailure(
            reason=f"{len(points)} points for {FIT_UNKNOWNS} unknowns",
            remedy="more --processes, or a second --batch",
        )
    # Columns differ by many orders of magnitude (1, samples, bytes): scaled to one, the
    # rank tells mixtures of columns and not their sizes.
    columns = np.array(
        [(1.0, point.samples_per_core, point.sent_bytes) for point in points]
    )
    scale = np.abs(columns).max(axis=0)
    if not scale.all() or np.linalg.matrix_rank(columns / scale, 1e-6) < FIT_UNKNOWNS:
        return ScalingFitFailure(
            reason="the parts change alike from point to point",
            remedy="a second --batch tells them apart",
        )
    seconds = np.array([point.seconds for point in points])
    # Non-negative least squares: a negative time would only fit noise.
    found, _ = nnls(columns / scale, seconds)
    off = seconds - columns / scale @ found
    serial, parallel, communication = (float(part) for part in found / scale)
    return ScalingFit(
        serial=serial,
        parallel=parallel,
        communication=communication,
        points=len(points),
        rms_residual=float(np.sqrt(np.mean(off**2))),
        max_relative_error=float(np.max(np.abs(off) / seconds)),
    )
