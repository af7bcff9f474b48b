"""Pipe: where a network is cut into stages and in which order they work, as data."""

from dataclasses import dataclass
from typing import Literal

from jaxdist.core.errors import BadInput

Order = Literal["1f1b", "gpipe", "interleaved"]
"""Order of the work of stages; tables of it are in `jaxdist.pipeline.schedule`."""


@dataclass(frozen=True, kw_only=True)
class Pipe:
    """How the blocks of a network are dealt out along the pipe axis."""

    cuts: tuple[str, ...] = ()
    """The first block of each stage but the first; empty balances FLOPs."""
    schedule: Order = "1f1b"
    """In which order stages work on microbatches."""
    chunks: int = 1
    """Stages that each device along the axis has."""

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise BadInput(
                "plan.pipe.chunks is out of range",
                rule="a device along the pipe axis has at least one stage",
                values=f"plan.pipe.chunks = {self.chunks}",
                remedy="plan.pipe.chunks=1",
            )
        twice = sorted({cut for cut in self.cuts if self.cuts.count(cut) > 1})
        if twice:
            raise BadInput(
                f"the network is cut twice before {twice[0]}",
                rule="each of plan.pipe.cuts begins a stage of its own",
                values=f"plan.pipe.cuts = {','.join(self.cuts)}",
                remedy=f"plan.pipe.cuts={','.join(dict.fromkeys(self.cuts))}",
            )
