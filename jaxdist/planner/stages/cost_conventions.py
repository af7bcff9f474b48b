"""The cost of a stage and of a cut, in the conventions that are in circulation.

C seconds of compute, W bytes of weights, m replicas, B bytes/s, A bytes over the cut,
o the part of the shorter of compute and sum that is hidden behind the longer:

    T = (C + S - o min(C, S)) / m      S = 4 (m - 1) W / (m B)    (ring)
                                       S = 2 (m - 1) W / B        (published)
    cut = 2 A / B (o + (1 - o) / m')   m' = replicas of the stage behind the cut

o = 1 is max(C, S) / m and 2 A / B, o = 0 is (C + S) / m and 2 A / (B m'). The two sums
agree at m = 2 alone; they differ by m / 2. (Narayanan et al. 2019, SOSP, section 3.1,
and the authors' program, github.com/msr-fiddle/pipedream.)
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CostConvention:
    """A convention for the cost of stages and cuts."""

    overlap: float = 1.0
    """o, from 0 (a sum waits for compute) to 1 (the longer one counts)."""
    sync: Literal["ring", "published"] = "ring"
    """How long m replicas take to sum their gradients."""

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 1:
            raise BadInput(
                f"no overlap of {self.overlap:g}",
                rule="an overlap is a part, from 0 (none) to 1 (all that can be)",
                values=f"--overlap {self.overlap:g}",
                remedy=f"--overlap {min(1, max(0, self.overlap)):g}"
                if self.overlap == self.overlap
                else "--overlap 1",
            )

    def stage_seconds(
        self,
        seconds: FloatArray,
        parameters: FloatArray,
        replicas: int,
        bandwidth: float,
    ) -> FloatArray:
        """Return T, seconds of a stage for a minibatch.

        Args:
            seconds: C, of any shape.
            parameters: W, bytes; of the same shape.
            replicas: m.
            bandwidth: B, bytes/s.
        """
        if replicas == 1:
            return seconds
        # Bytes over the link for each byte of weights.
        sent = 4.0 * (replicas - 1) / replicas
        if self.sync == "published":
            sent = 2.0 * (replicas - 1)
        summed = sent / bandwidth * parameters
        # Replicas work on different minibatches at the same time, so m of them are done
        # in the time of one.
        hidden = np.minimum(seconds, summed) * self.overlap
        return (seconds + summed - hidden) / replicas

    def cut_seconds(
        self, crossing_bytes: FloatArray, replicas: int, bandwidth: float
    ) -> FloatArray:
        """Return seconds that a cut takes for a minibatch, there and back.

        Args:
            crossing_bytes: A, bytes, of any shape.
            replicas: m', replicas of the stage behind the cut.
            bandwidth: B, bytes/s.
        """
        # With full overlap the link is busy for all replicas; without, each replica
        # waits for its own bytes.
        share = self.overlap + (1 - self.overlap) / replicas
        return 2.0 * share / bandwidth * crossing_bytes


COST_CONVENTIONS: Final = {
    "max": CostConvention(),
    "max_2m1": CostConvention(sync="published"),
    "sum": CostConvention(overlap=0.0),
}
"""Named forms: all of a ring sum hidden, as published, and as the authors' program."""
