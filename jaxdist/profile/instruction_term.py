"""A part: what an instruction of a compiled step is there for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class InstructionLabel:
    """What an instruction of a program is a part of."""

    term: str
    """`compute`, `packing`, `update` or `collective, axes`."""
    wait_term: str = ""
    """Term of the time that a collective waits for others; empty: it computes."""
    layer: str = ""
    """Path of the layer that it computes; empty where none is known."""
    is_backward: bool = False
    """Whether it belongs to the backward pass."""
    stage_work: tuple[str, int] | None = None
    """Kind of the work and stage that it belongs to, where there are stages."""
