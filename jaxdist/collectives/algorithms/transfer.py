"""A transfer: neighbouring chunks that one rank sends to another."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """Neighbouring chunks that one rank sends to another."""

    source: int
    """Rank that sends."""
    target: int
    """Rank that receives."""
    start: int
    """First chunk; it has the same place at both ranks."""
    count: int
    """Chunks, one behind the other."""
    adds: bool
    """Whether the target adds them to its own; else they replace them."""
