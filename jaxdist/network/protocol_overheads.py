"""Factors: what a protocol makes of a link's latency and bandwidth.

`ideal` takes links as they are. `smpi` is the model of SimGrid's MPI over TCP: latency
and bandwidth depend on the size of a message, a flow loads its way back with 5 % of its
bytes, a window bounds its rate, and links are shared by 1 / (latency + Σ 8775 B /
bandwidth) of each flow's way.

Source: SimGrid 3.19, `network/model:SMPI` (defaults of `src/surf/network_smpi.cpp`);
Bédaride et al. 2013, "Toward better simulation of MPI applications on Ethernet/TCP
networks", PMBS.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from jaxdist.core.errors import unknown_name_error
from jaxdist.network.routes import FloatArray

_SIZES: Final = (0, 257, 732, 1426, 3484, 5776, 9376, 15424, 65472)
_LATENCY: Final = (
    2.01467,
    1.95341,
    1.9503,
    1.61075,
    1.88101,
    2.18796,
    2.59299,
    3.48845,
    11.6436,
)
_BANDWIDTH: Final = (
    0.812084,
    0.338112,
    0.341987,
    0.608902,
    0.77493,
    1.08739,
    0.58729,
    0.697866,
    0.940694,
)


@dataclass(frozen=True, kw_only=True)
class ProtocolOverheads:
    """What a message of a size meets, beside the links themselves."""

    name: str
    """`ideal` or `smpi`."""
    sizes: tuple[float, ...] = (0,)
    """Bytes from which on the factors below hold."""
    latency_factors: tuple[float, ...] = (1.0,)
    """Factor of latency."""
    bandwidth_factors: tuple[float, ...] = (1.0,)
    """Factor of the rate that a single flow reaches."""
    usable_bandwidth: float = 1.0
    """Part of a link's bandwidth that all flows on it have together."""
    reverse_load: float = 0.0
    """Part of its bytes with which a flow loads its way back."""
    window_bytes: float = float("inf")
    """Bytes on the way at most: rate <= window / (2 latency)."""
    hop_bytes: float = 0.0
    """Bytes: each link adds per_hop / bandwidth to the latency that shares weigh."""

    def latency_factor(self, size: FloatArray) -> FloatArray:
        """Return the factor of latency for messages of these bytes."""
        return np.array(self.latency_factors)[self._row(size)]

    def bandwidth_factor(self, size: FloatArray) -> FloatArray:
        """Return the factor of a flow's own rate for messages of these bytes."""
        return np.array(self.bandwidth_factors)[self._row(size)]

    def _row(self, size: FloatArray) -> np.ndarray:
        return np.searchsorted(np.array(self.sizes), size, side="right") - 1


PROTOCOLS: Final = MappingProxyType(
    {
        "ideal": ProtocolOverheads(name="ideal"),
        "smpi": ProtocolOverheads(
            name="smpi",
            sizes=_SIZES,
            latency_factors=_LATENCY,
            bandwidth_factors=_BANDWIDTH,
            usable_bandwidth=0.97,
            reverse_load=0.05,
            window_bytes=4_194_304,
            hop_bytes=8775,
        ),
    }
)
"""By name."""


def protocol_overheads(name: str) -> ProtocolOverheads:
    """Return factors by name.

    Raises:
        BadInput: there are none of that name.

    >>> protocol_overheads("smpi").latency_factor(np.array([100.0, 65472.0]))
    array([ 2.01467, 11.6436 ])
    """
    if name not in PROTOCOLS:
        raise unknown_name_error("factors", name, PROTOCOLS, "ideal")
    return PROTOCOLS[name]
