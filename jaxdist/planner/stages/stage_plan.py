"""An answer: what stages were asked for, and the best there are, as data."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.planner.stages.cost_conventions import COST_CONVENTIONS, CostConvention
from jaxdist.planner.stages.graph import LayerGraph
from jaxdist.planner.stages.link_hierarchy import LinkLevel
from jaxdist.planner.stages.memory import UNLIMITED, MemoryBudget


@dataclass(frozen=True, kw_only=True)
class StageQuery:
    """What stages are asked for."""

    graph: LayerGraph
    """What is cut."""
    levels: tuple[LinkLevel, ...]
    """Devices, innermost first."""
    cost_convention: CostConvention = COST_CONVENTIONS["max"]
    """What stages and cuts cost."""
    memory_budget: MemoryBudget = UNLIMITED
    """What a device has."""
    straight_pipeline: bool = False
    """Whether each stage is on one device."""
    cuts: Literal["order", "any"] = "order"
    """Between neighbours in one order of the nodes, or around any set of them."""

    @property
    def devices(self) -> int:
        """Devices in all."""
        return math.prod(tier.size for tier in self.levels)


@dataclass(frozen=True, kw_only=True)
class StageAllocation:
    """Nodes that are on the same devices."""

    nodes: tuple[str, ...]
    """Their names, in the order of the graph."""
    replicas: int
    """Devices that take minibatches in turn."""
    seconds: float
    """For a minibatch: compute and sums, over all replicas."""
    compute: float
    """Seconds of compute of a minibatch on one device."""
    parameters: float
    """Bytes of weights."""
    in_flight: int
    """Minibatches that a device holds at most."""
    memory: float
    """Bytes that a device holds then: activations and weights of each, one gradient."""
    cut: float
    """Seconds of the cut in front of it for a minibatch; 0 at the first."""
    crossing: float
    """Bytes over that cut, one way."""
    after: int
    """Nodes in front of it and in it."""


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """The best stages, by PipeDream's recurrences."""

    query: StageQuery
    """What was asked."""
    stages: tuple[StageAllocation, ...]
    """First to last."""
    config: str
    """As PipeDream writes it: `7-1`; with tiers `3x(4)-1x(1-2-1)`, outermost first."""
    seconds: float
    """Of a minibatch."""
    single_device_seconds: float
    """Of a minibatch on one device."""
    data_parallel_seconds: float
    """Of a minibatch with all nodes on all devices, under the same form."""
    sent_bytes: float
    """Sent for a minibatch by all devices."""
    data_parallel_bytes: float
    """The same with all nodes on all devices."""
    faster_subset: tuple[int, float] | None
    """Fewer devices that are faster, and their seconds; None where all are best."""
    cut_point_count: int
    """Places that cuts were looked for at, both ends included."""

    @property
    def replicas(self) -> tuple[int, ...]:
        """Devices of each stage."""
        return tuple(stage.replicas for stage in self.stages)

    @property
    def cuts(self) -> tuple[str, ...]:
        """The first node of each stage but the first."""
        return tuple(stage.nodes[0] for stage in self.stages[1:])

    @property
    def relative_bytes(self) -> float | None:
        """Bytes as a part of data parallelism's; None where that sends none."""
        if self.sent_bytes == self.data_parallel_bytes:
            return 1.0
        # One device sends nothing in either plan.
        whole = self.data_parallel_bytes
        return self.sent_bytes / whole if whole else None


def stages_to_plan(stage_plan: StagePlan) -> Plan:
    """Return the plan of some stages: one alone is data parallelism.

    Nodes are the blocks of a network: its cuts are named by them. Others run without a
    flush, as PipeDream does, which is what their times are of.
    """
    # A pipeline of one stage is data parallelism, which needs no schedule.
    if len(stage_plan.stages) == 1:
        return Plan(mesh=MeshShape(data=stage_plan.replicas[0]))
    pipe = PipelineConfig(
        cuts=stage_plan.cuts, schedule="pipedream", replicas=stage_plan.replicas
    )
    return Plan(mesh=MeshShape(pipe=sum(stage_plan.replicas)), pipe=pipe)


def default_microbatches(stage_plan: StagePlan) -> int:
    """Return microbatches of a step that divide over all replicas and fill the stages.

    With M of them S - 1 of M + S - 1 turns are waited for.
    """
    # Microbatches go to the replicas of each stage in turn, so all counts divide them.
    round_ = math.lcm(*stage_plan.replicas)
    # Four a device: stages wait less than a fifth of the turns.
    wanted = 4 * sum(stage_plan.replicas)
    return -(-wanted // round_) * round_
