"""A line: what one kind of collective takes among so many, as a level measured it.

    seconds = messages x alpha + share x sent / bandwidth

alpha and bandwidth are the level's own, so that asking about another link asks about
all of its lines.
"""

from dataclasses import dataclass

from jaxdist.core.errors import BadInput
from jaxdist.core.number import Number


@dataclass(frozen=True, kw_only=True)
class Line:
    """What collectives of a kind and group size take, beside their level's numbers."""

    kind: str
    """As the compiler names it: `all-gather`."""
    devices: int
    """Of a group."""
    messages: Number
    """As many times the level's alpha pass before and between its bytes."""
    share: Number
    """Seconds of its bytes, over those at the level's bandwidth."""

    def __post_init__(self) -> None:
        if self.devices < 2:
            raise BadInput(
                f"a line of {self.kind} among {self.devices}",
                rule="a collective has at least two devices",
                values=f"devices = {self.devices}",
                remedy="devices: 2",
            )

    @property
    def name(self) -> str:
        """As it stands in a path: `all-gather/4`."""
        return f"{self.kind}/{self.devices}"
