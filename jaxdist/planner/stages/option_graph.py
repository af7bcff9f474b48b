"""A graph whose nodes may be run in several ways, and the stages that are sought in it.

The model is Piper's (Tarnawski et al. 2021, "Piper: Multidimensional Planner for DNN
Parallelization", NeurIPS, section 3). A stage S has t-fold tensor parallelism, d
replicas, and of each node v one option o; its seconds for a microbatch are

    1 / d (sum of p_o + 2 / B sum of (c_e + sync_oe) over edges e that leave S or enter)
    + 4 (d - 1) / d w_o / (N B)

with p the seconds of both passes, c the bytes of an edge, sync what tensor parallelism
moves besides where that edge is cut, w the bytes of weights, B the bandwidth of a
device and N the microbatches of a batch. A device holds the sum of A_o y + B_o, with
y = ceil(D / d) microbatches in flight, D the replicas of this stage and of all behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxdist.core.errors import BadInput
from jaxdist.planner.stages.graph import LayerGraph, Node


@dataclass(frozen=True, kw_only=True)
class NodeOption:
    """A way to run a node at one degree of tensor parallelism; of one device."""

    name: str
    """`vanilla`, `activation recomp`, ..."""
    seconds: float
    """p: both passes of a microbatch, with what tensor parallelism moves inside."""
    parameters: float
    """w: bytes of weights that replicas sum."""
    memory_per_microbatch: float
    """A: bytes for each microbatch in flight."""
    memory_fixed: float
    """B: bytes that are held anyway."""
    input_sync: Mapping[str, float]
    """Bytes beside an edge's own where it is cut, by the node that it comes from."""
    output_sync: Mapping[str, float]
    """The same, by the node that it goes to."""


@dataclass(frozen=True, kw_only=True)
class OptionNode:
    """A node with what may be chosen for it."""

    name: str
    """Its name in edges."""
    label: str
    """Its kind, for people."""
    options: Mapping[int, tuple[NodeOption, ...]]
    """By degree of tensor parallelism."""


@dataclass(frozen=True, kw_only=True)
class OptionGraph:
    """Nodes with their options, and the bytes of each edge.

    Raises:
        BadInput: what `LayerGraph` refuses.
    """

    source: str
    """Where it was read, for errors."""
    nodes: tuple[OptionNode, ...]
    """In the order they were given."""
    edges: Mapping[tuple[str, str], float]
    """Bytes one way, by (maker, reader)."""
    devices: int
    """Devices that the file gives."""
    bandwidth: float
    """Bytes a second of a device."""
    memory: float
    """Bytes of a device."""
    microbatches: int
    """N: microbatches of a batch."""

    layers: LayerGraph = field(init=False, repr=False, compare=False)
    """The graph alone: each node at its least device seconds, tensor degree 1."""

    def __post_init__(self) -> None:
        # What one node needs of devices bounds what is behind or before a cut.
        graph = LayerGraph(
            source=self.source,
            nodes=tuple(
                Node(
                    name=node.name,
                    label=node.label,
                    forward=0.0,
                    backward=min(
                        # Device seconds: a node of degree t keeps t devices busy.
                        degree * option.seconds
                        for degree, options in node.options.items()
                        for option in options
                    ),
                    output=0.0,
                    kept=0.0,
                    parameters=0.0,
                )
                for node in self.nodes
            ),
            edges=tuple(self.edges),
        )
        # The class is frozen.
        object.__setattr__(self, "layers", graph)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees of tensor parallelism that any node has."""
        return tuple(sorted({t for node in self.nodes for t in node.options}))


@dataclass(frozen=True, kw_only=True)
class OptionStageQuery:
    """What stages are sought in a graph of options."""

    graph: OptionGraph
    """What is cut."""
    devices: int
    """K: devices, of which some may stay idle."""
    bandwidth: float
    """B: bytes a second of a device."""
    memory: float
    """Bytes of a device."""
    microbatches: int
    """N: microbatches of a batch. Replicas of a stage divide it."""
    cuts: Literal["order", "any", "widest"] = "widest"
    """As `StageQuery.cuts`; `widest` is `any` where there are few enough places."""

    def __post_init__(self) -> None:
        for name, value in (
            ("devices", self.devices),
            ("bandwidth", self.bandwidth),
            ("memory", self.memory),
            ("microbatches", self.microbatches),
        ):
            # Infinite memory and bandwidth are allowed: they leave a bound out.
            if not value > 0:  # nan is not, either
                raise BadInput(
                    f"{value:g} {name}",
                    rule="devices, links, memory and microbatches are above 0",
                    values=f"{self.graph.source}: {name} = {value:g}",
                    remedy=f"{name} above 0",
                )


@dataclass(frozen=True, kw_only=True)
class OptionStage:
    """A stage with what was chosen for each of its nodes."""

    nodes: tuple[str, ...]
    """Their names, in the order of the graph."""
    options: tuple[str, ...]
    """The option of each."""
    replicas: int
    """d."""
    tensor: int
    """t."""
    in_flight: int
    """y: microbatches that a device holds at most."""
    seconds: float
    """Of a microbatch: compute, transfers and sums of gradients, over all replicas."""
    compute: float
    """Its part that is computing."""
    transfer: float
    """Its part that is activations and gradients over cuts."""
    all_reduce: float
    """Its part that is the sum of gradients."""
    memory: float
    """Bytes of a device."""

    @property
    def devices(self) -> int:
        """Devices of the stage."""
        return self.replicas * self.tensor


@dataclass(frozen=True, kw_only=True)
class OptionStagePlan:
    """The stages whose slowest takes the least seconds for a microbatch."""

    query: OptionStageQuery
    """What was asked."""
    stages: tuple[OptionStage, ...]
    """First to last."""
    cuts: Literal["order", "any"]
    """Where cuts were looked for."""
    cut_point_count: int
    """Places that cuts were looked for at, both ends included."""

    @property
    def seconds(self) -> float:
        """Of a microbatch in the steady state: the slowest stage's."""
        return max(stage.seconds for stage in self.stages)

    @property
    def devices(self) -> int:
        """Devices that are used."""
        return sum(stage.devices for stage in self.stages)
