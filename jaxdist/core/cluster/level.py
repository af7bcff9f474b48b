"""A level of a cluster: the links between its units, checked for plausibility."""

from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput

SPEED_OF_LIGHT: Final = 299_792_458.0
"""Metres a second, which nothing passes."""
# Metres of a cable whose length is not given, at least.
_SHORTEST: Final = 0.01
_FULL: Final = SourcedNumber(1.0, "assumed: all that is sent gets through at once")


@dataclass(frozen=True, kw_only=True)
class Level:
    """How units of the level below are connected: devices in a host, say."""

    name: str
    """What the level makes of them: `host`, `rack`, `cluster`."""
    size: int
    """Units of the level below that are together in one of this level."""
    alpha: SourcedNumber
    """Seconds that a message takes without its bytes."""
    bandwidth: SourcedNumber
    """Bytes a second that one unit below sends in all, one way."""
    ports: int = 1
    """Links on which a unit below sends them."""
    port_bandwidth: SourcedNumber | None = None
    """Bytes a second of one of these links, as the maker says."""
    oversubscription: SourcedNumber = _FULL
    """Bytes that units may send at once, over those that get through."""
    length: SourcedNumber | None = None
    """Metres of its shortest cable."""
    lines: tuple[CollectiveCost, ...] = ()
    """Collectives that were measured; others are what alpha and bandwidth make them."""

    def __post_init__(self) -> None:
        where = f"level {self.name}"
        alpha, rate = self.alpha.value, self.bandwidth.value
        if self.size < 1 or self.ports < 1:
            raise BadInput(
                f"{where} connects nothing",
                rule="size and ports are whole numbers above 0",
                values=f"size = {self.size}, ports = {self.ports}",
                remedy="size: 1",
            )
        # A latency in the wrong unit is found by physics: no message outruns light.
        metres = self.length.value if self.length else _SHORTEST
        if alpha < metres / SPEED_OF_LIGHT:
            raise BadInput(
                f"{where} is faster than light",
                rule=f"alpha is at least length / {SPEED_OF_LIGHT:,.0f} m/s",
                values=f"alpha = {alpha:g} s over {metres:g} m",
                remedy=f"alpha: {1e9 * metres / SPEED_OF_LIGHT:.2g} ns, or what was "
                "measured",
            )
        if rate == 0 or self.oversubscription.value < 1:
            raise BadInput(
                f"{where} lets nothing through, or more than is sent",
                rule="bandwidth is above 0, oversubscription is 1 or above",
                values=f"bandwidth = {rate:g} B/s, "
                f"oversubscription = {self.oversubscription.value:g}",
                remedy="oversubscription: 2 where half of it gets through",
            )
        most = self.ports * (self.port_bandwidth or self.bandwidth).value
        if rate > most * (1 + 1e-9):  # rounding: 12.5e9 may be read as 4 x 3.125e9
            raise BadInput(
                f"{where} has more bandwidth than ports",
                rule="bandwidth is at most ports x port_bandwidth",
                values=f"{rate:g} B/s > {self.ports} x {self.port_bandwidth} B/s",
                remedy=f"bandwidth: {most / 1e9:g} GB/s",
            )
