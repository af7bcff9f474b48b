"""Protocol overheads: the latency and bandwidth of a link as messages see them.

`ideal` takes links as they are. `smpi` is the model of SimGrid's MPI over TCP: latency
and bandwidth depend on the size of a message, a flow loads its way back with 5 % of its
bytes, a window bounds its rate, and links are shared by 1 / (latency + Σ 8775 B /
bandwidth) of each flow's route.

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

# From a size in bytes on: the factors of latency and of bandwidth.
_SMPI_FACTORS: Final = (
    (0, 2.01467, 0.812084),
    (257, 1.95341, 0.338112),
    (732, 1.9503, 0.341987),
    (1426, 1.61075, 0.608902),
    (3484, 1.88101, 0.77493),
    (5776, 2.18796, 1.08739),
    (9376, 2.59299, 0.58729),
    (15424, 3.48845, 0.697866),
    (65472, 11.6436, 0.940694),
)


@dataclass(frozen=True, kw_only=True)
class ProtocolOverheads:
    """Factors on the latency and bandwidth of links."""

    name: str
    """`ideal` or `smpi`."""
    factor_table: tuple[tuple[float, float, float], ...] = ((0, 1.0, 1.0),)
    """From so many bytes on: factors of latency, and of the rate of a single flow."""
    usable_bandwidth: float = 1.0
    """Share of a link's bandwidth that all flows on it have together."""
    reverse_load: float = 0.0
    """Share of its bytes with which a flow loads its way back: acknowledgements."""
    window_bytes: float = float("inf")
    """Bytes in transit at most: rate <= window / (2 latency)."""
    hop_bytes: float = 0.0
    """Bytes: each link adds hop_bytes / bandwidth to the latency that weights use."""

    def factors(self, size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the factors of latency and of bandwidth for messages of these bytes.

        >>> PROTOCOLS["smpi"].factors(np.array([100.0, 65472.0]))[0]
        array([ 2.01467, 11.6436 ])
        """
        sizes, latency, bandwidth = np.array(self.factor_table).T
        row = np.searchsorted(sizes, size, side="right") - 1
        return latency[row], bandwidth[row]


PROTOCOLS: Final = MappingProxyType(
    {
        "ideal": ProtocolOverheads(name="ideal"),
        "smpi": ProtocolOverheads(
            name="smpi",
            factor_table=_SMPI_FACTORS,
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
    """
    if name not in PROTOCOLS:
        raise unknown_name_error("factors", name, PROTOCOLS, "ideal")
    return PROTOCOLS[name]
