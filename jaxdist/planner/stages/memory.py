"""The bytes that a device of a stage holds, and the limit on them.

With b devices behind a stage for each of its own, a device holds up to K = 1 + ceil(b)
minibatches: NOAM at the first stage, 1 at the last; the executor's table has as many.

    in-flight   K (kept + W) + W    activations and weights of each, and one gradient
    upstream    (K - 1) (made + W)  the authors' test; the minibatch that is worked on,
                                    and so all of data parallelism, is free in it

kept counts what is done in place once, made counts it twice, as profiles do.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from jaxdist.planner.stages.cost_conventions import FloatArray

MEMORY_MODELS: Final = ("in-flight", "upstream")
"""Names of the two ways to count."""


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """A limit, and how bytes are counted against it."""

    limit: float
    """Bytes of a device; infinite without a limit."""
    model: Literal["in-flight", "upstream"] = "in-flight"
    """How they are counted."""

    @property
    def is_limited(self) -> bool:
        """Whether anything may be refused."""
        return math.isfinite(self.limit)

    def stage_bytes(
        self,
        saved_bytes: FloatArray,
        output_bytes: FloatArray,
        parameter_bytes: FloatArray,
        downstream_per_replica: Fraction,
    ) -> FloatArray:
        """Return the bytes of a device of a stage, for arrays of stages.

        Args:
            saved_bytes: activations of a minibatch, what is done in place once.
            output_bytes: activations of a minibatch, the outputs of all nodes.
            parameter_bytes: bytes of weights.
            downstream_per_replica: b, devices behind for each of its own.
        """
        # The upstream test leaves out the minibatch that is worked on.
        held = minibatches_in_flight(downstream_per_replica)
        if self.model == "upstream":
            return (held - 1) * (output_bytes + parameter_bytes)
        return held * (saved_bytes + parameter_bytes) + parameter_bytes


UNLIMITED: Final = MemoryBudget(limit=math.inf)
"""Nothing is refused."""


def minibatches_in_flight(downstream_per_replica: Fraction) -> int:
    """Return K, the minibatches that a device holds at most.

    >>> tuple(minibatches_in_flight(Fraction(*f)) for f in ((1, 7), (0,), (3,)))
    (2, 1, 4)
    """
    # Its own, and one for each device behind it that still works on an earlier one.
    return 1 + math.ceil(downstream_per_replica)
