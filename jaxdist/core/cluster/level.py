"""A level of a cluster: how units are connected, and what no machine can be."""

from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput

SPEED_OF_LIGHT: Final = 299_792_458.0
"""Metres a second, which nothing passes."""
_SHORTEST: Final = 0.01
"""Metres of a cable whose length is not given, at least."""
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
        _check_level(self)


def _check_level(level: Level) -> None:
    """Refuse what no machine is."""
    where = f"level {level.name}"
    if level.size < 1 or level.ports < 1:
        raise BadInput(
            f"{where} connects nothing",
            rule="size and ports are whole numbers above 0",
            values=f"size = {level.size}, ports = {level.ports}",
            remedy="size: 1",
        )
    metres = level.length.value if level.length else _SHORTEST
    if level.alpha.value < metres / SPEED_OF_LIGHT:
        raise BadInput(
            f"{where} is faster than light",
            rule=f"alpha is at least length / {SPEED_OF_LIGHT:,.0f} m/s",
            values=f"alpha = {level.alpha.value:g} s over {metres:g} m",
            remedy=f"alpha: {1e9 * metres / SPEED_OF_LIGHT:.2g} ns, or what was "
            "measured",
        )
    if level.bandwidth.value == 0 or level.oversubscription.value < 1:
        raise BadInput(
            f"{where} lets nothing through, or more than is sent",
            rule="bandwidth is above 0, oversubscription is 1 or above",
            values=f"bandwidth = {level.bandwidth.value:g} B/s, "
            f"oversubscription = {level.oversubscription.value:g}",
            remedy="oversubscription: 2 where half of it gets through",
        )
    most = level.ports * (level.port_bandwidth or level.bandwidth).value
    if level.bandwidth.value > most * (1 + 1e-9):
        raise BadInput(
            f"{where} has more bandwidth than ports",
            rule="bandwidth is at most ports x port_bandwidth",
            values=f"{level.bandwidth.value:g} B/s > {level.ports} x "
            f"{level.port_bandwidth} B/s",
            remedy=f"bandwidth: {most / 1e9:g} GB/s",
        )
