"""Frequencies of rotary positions, stretched for contexts longer than those trained.

A rotary position turns pair i of D features by position x rate_i, rate_i =
base**(-2 i / D). A network that was trained on L tokens has never seen the larger
angles of longer contexts; stretched rates keep them within those it knows.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxdist.models.config import RopeScalingKind


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How the rates of rotary positions are stretched.

    linear   rate / factor for all pairs (Chen et al. 2023, arXiv:2306.15595).
    dynamic  for T > L tokens the base is (factor T/L - factor + 1)**(D / (D - 2)) times
             as large: slow pairs are stretched and fast ones kept (NTK-aware; Peng et
             al. 2023, arXiv:2309.00071, section 3.3).
    llama3   pairs that turn more than `high_factor` times within L tokens are kept,
             those that turn less than `low_factor` times are divided by the factor, and
             between the two both are mixed (Llama 3.1).
    """

    kind: "RopeScalingKind"
    """Which of them."""
    factor: float
    """How many times longer contexts are."""
    context: int
    """L, the tokens that the network was trained on before."""
    low_factor: float = 1.0
    """Turns within L below which a pair is stretched whole."""
    high_factor: float = 4.0
    """Turns within L above which a pair is kept."""

    def stretch(self, rates: np.ndarray, tokens: int) -> np.ndarray:
        """Return the stretched rates.

        Args:
            rates: radians a token by pair of features, `[D / 2]`.
            tokens: of a sample, T.

        >>> one = RopeScaling(kind="linear", factor=4.0, context=16)
        >>> one.stretch(np.array([1.0, 0.1]), 16).tolist()
        [0.25, 0.025]
        """
        if self.kind == "linear":
            return rates / self.factor
        if self.kind == "dynamic":
            longer = max(tokens, self.context) / self.context
            growth = self.factor * longer - (self.factor - 1)
            # (growth ** (D / (D - 2))) ** (-2 i / D), the factor of each rate.
            pairs = len(rates)
            return np.asarray(rates * growth ** (-np.arange(pairs) / max(pairs - 1, 1)))
        turns = self.context * rates / (2 * math.pi)
        span = self.high_factor - self.low_factor
        kept = np.clip((turns - self.low_factor) / span, 0.0, 1.0)
        return np.asarray(kept * rates + (1 - kept) * rates / self.factor)
