"""The pipeline: where a network is cut into stages, and their schedule, as data."""

from dataclasses import dataclass
from typing import Final, Literal

from jaxdist.core.errors import BadInput

ScheduleName = Literal[
    "1f1b",
    "gpipe",
    "interleaved",
    "eager-1f1b",
    "zb-h1",
    "pipedream",
    "pipedream-2bw",
]
"""Order of the work of stages; tables of it are in `jaxdist.pipeline`."""

ASYNC_SCHEDULES: Final = ("pipedream", "pipedream-2bw")
"""Orders in which weights move while later microbatches are under way."""

# Settings, what leaves them alone, and the orders that they are for.
_BELONGS: Final = (
    ("replicas", (), ("pipedream",)),
    ("weight_stashing", True, ("pipedream",)),
    ("vertical_sync", False, ("pipedream",)),
    ("microbatches_per_update", 0, ("pipedream-2bw",)),
)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How the blocks of a network are divided into stages along the pipe axis."""

    cuts: tuple[str, ...] = ()
    """The first block of each stage but the first; empty balances FLOPs."""
    # Not eager 1F1B, which is as fast or faster, but keeps twice the microbatches.
    schedule: ScheduleName = "1f1b"
    """In which order stages work on microbatches; with pipedream each microbatch moves
    the weights, while the ones behind it are under way."""
    chunks: int = 1
    """Stages that each device along the axis has."""
    replicas: tuple[int, ...] = ()
    """pipedream: devices of each stage; empty: one each."""
    weight_stashing: bool = True
    """pipedream: whether a backward pass takes the weights of its forward pass; if not,
    the newest, which is the gradient of nothing, and there to be compared with."""
    vertical_sync: bool = False
    """pipedream: whether a microbatch takes weights of one age in all stages."""
    microbatches_per_update: int = 0
    """pipedream-2bw: microbatches of an update; 0: as many as stages."""

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
        # PipeDream stashes weights of a stage for each microbatch under way; its
        # schedules are defined for one stage a device.
        if self.flows and self.chunks > 1:
            raise BadInput(
                f"{self.schedule} does not take chunks",
                rule=f"with {self.schedule} each device has one stage",
                values=f"plan.pipe.chunks = {self.chunks}",
                remedy=("plan.pipe.chunks=1", "plan.pipe.schedule=interleaved"),
            )
        for name, unset, orders in _BELONGS:
            value = getattr(self, name)
            if value != unset and self.schedule not in orders:
                shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
                raise BadInput(
                    f"plan.pipe.{name} does nothing in this schedule",
                    rule=f"plan.pipe.{name} is for plan.pipe.schedule={orders[0]}",
                    values=f"plan.pipe.{name} = {shown}, "
                    f"plan.pipe.schedule = {self.schedule}",
                    remedy=f"plan.pipe.schedule={orders[0]}",
                )

    @property
    def flows(self) -> bool:
        """Whether weights move while later microbatches are under way."""
        return self.schedule in ASYNC_SCHEDULES
