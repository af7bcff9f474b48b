"""The space of a search: meshes times settings, as columns of integers.

A hundred thousand plans are rows of a few arrays; a `Plan` is made of a row only where
it is described or run.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.axes import AXES, BATCH_AXES, EXPERT_AXIS
from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import AfterSpatial, ContextForm, MeshShape, Plan, TensorSplit
from jaxdist.core.plan.pipeline import PipelineConfig, ScheduleName
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.core.plan.reduction import AlgorithmName
from jaxdist.pipeline.sync_schedule import FULL_PIPELINE_SCHEDULES, ZERO_BUBBLE_H1

Column = NDArray[Any]

SEARCH_AXES: Final = (
    *("pipe", "data", "fsdp", "expert", "context", "spatial_h", "spatial_w"),
    "tensor",
)
"""Axes over which devices are factored, outermost first."""

SCHEDULE_CHOICES: Final[tuple[tuple[ScheduleName, int], ...]] = (
    ("1f1b", 1),
    ("gpipe", 1),
    ("interleaved", 2),
    ("eager-1f1b", 1),
    ("eager-1f1b", 2),
    (ZERO_BUBBLE_H1, 1),
)
"""Orders of stages that leave the gradient as it is, and chunks of a device."""

_MAX_PERMUTED_GROUPS: Final = 4
"""Host groups up to which every order is tried."""
NON_PIPELINE_COMPRESSORS: Final = ("sign", "power")
"""Ways of summing that do not go with stages."""


@dataclass(frozen=True, kw_only=True)
class PlanChoices:
    """What a search may choose."""

    axes: tuple[str, ...] = SEARCH_AXES
    """Axes that may have more than one device."""
    microbatches: tuple[int, ...] = (1,)
    """Numbers of parts of a batch."""
    orders: tuple[tuple[ScheduleName, int], ...] = SCHEDULE_CHOICES[:1]
    """Schedules of a pipeline, and stages of each device."""
    remat: tuple[bool, ...] = (False,)
    """Whether insides of blocks are computed again."""
    ways: tuple[AlgorithmName, ...] = ("exact",)
    """Ways of summing along the data axis."""
    zeros: tuple[Literal[1, 3], ...] = (1, 3)
    """ZeRO stages of fsdp: it shards the optimizer's state alone, or parameters too."""
    weights: tuple[TensorSplit, ...] = ("pairs",)
    """How the tensor axis splits weights."""
    contexts: tuple[ContextForm, ...] = ("all_gather",)
    """How attention reads tokens of other devices."""
    inside: tuple[str, ...] = ()
    """Axes that may be moved to the inside on devices."""
    host_orders: tuple[tuple[str, ...], ...] = ()
    """Orders of the cluster's host groups that are tried beside the plan's own."""
    ends: tuple[AfterSpatial, ...] = ()
    """What devices that shared images may do behind a block where these are whole."""


@dataclass(frozen=True, kw_only=True)
class PlanSpace:
    """Plans that could be tried, each a row of the columns."""

    base: Plan
    """What stays as it is."""
    choices: PlanChoices
    """What is chosen from."""
    meshes: tuple[MeshShape, ...]
    """Ways to factor the devices into axes."""
    mesh: Column
    """Place in `meshes`."""
    micro: Column
    """Microbatches."""
    order: Column
    """Place in `choices.orders`."""
    remat: Column
    """0 or 1."""
    way: Column
    """Place in `choices.ways`."""

    def __len__(self) -> int:
        return len(self.mesh)

    def sizes(self, *axes: str) -> Column:
        """Return the devices along these axes together, of every row."""
        per_mesh = self._axis_sizes[[AXES.index(axis) for axis in axes]].prod(axis=0)
        found: Column = per_mesh[self.mesh]
        return found

    @cached_property
    def _axis_sizes(self) -> Column:
        """Devices by axis and mesh."""
        every = [[size for _, size in mesh.items()] for mesh in self.meshes]
        return np.array(every, int).reshape(-1, len(AXES)).T

    @property
    def chunks(self) -> Column:
        """Stages of each device, of every row."""
        return np.array([chunks for _, chunks in self.choices.orders])[self.order]

    @property
    def schedule_names(self) -> Column:
        """Schedule of every row."""
        return np.array([name for name, _ in self.choices.orders])[self.order]

    @cached_property
    def placed(self) -> tuple[MeshPlacement, ...]:
        """The meshes, placed on devices."""
        placed = self.base.placed
        return tuple(replace(placed, mesh=mesh) for mesh in self.meshes)

    def zero_stage(self, mesh: MeshShape) -> Literal[1, 3]:
        """Return the ZeRO stage of fsdp in a mesh.

        Stages put shared parameters together for a whole step, and hold them twice.
        """
        # Gathered for a whole step, ZeRO 3 would hold shards beside whole parameters.
        staged = mesh.pipe > 1 and mesh.fsdp > 1 and 1 in self.choices.zeros
        return 1 if staged else self.base.zero

    def plan(self, row: int) -> Plan:
        """Return the plan of a row."""
        mesh = self.meshes[self.mesh[row]]
        schedule, chunks = self.choices.orders[self.order[row]]
        one = replace(
            self.base.on(mesh),
            mesh=mesh,
            microbatches=int(self.micro[row]),
            remat=bool(self.remat[row]),
            remat_end=self.base.remat_end if self.remat[row] else "",
            zero=self.zero_stage(mesh),
            reduce=self.base.reduce.by(self.choices.ways[self.way[row]]),
        )
        # Without stages the schedule says nothing, and plans must not differ by it.
        if mesh.pipe == 1:
            return replace(one, pipe=PipelineConfig())
        return replace(one, pipe=replace(one.pipe, schedule=schedule, chunks=chunks))


def distinct_rows(*columns: Column) -> tuple[Column, Column]:
    """Return the rows that some columns of counts have, each once, and where they are.

    Args:
        columns: integers from 0, [plan].

    Returns:
        Sorted rows, [row, column], and the place of each plan's among them.

    >>> rows, place = distinct_rows(np.array([2, 1, 2]), np.array([3, 5, 3]))
    >>> rows.tolist(), place.tolist()
    ([[1, 5], [2, 3]], [1, 0, 1])
    """
    # One number stands for a row: numbers are sorted ten times as fast as rows are.
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        key = key * (1 + int(column.max(initial=0))) + column
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return np.stack(columns, axis=1)[first], place


def enumerate_layouts(
    plan: Plan, devices: int, axes: Sequence[str] = SEARCH_AXES
) -> Iterator[Plan]:
    """Yield a plan for every way to factor a number of devices into axes.

    Args:
        plan: its other settings: the reduction, the shuffle, the schedule.
        devices: the product of the sizes.
        axes: that may have more than one device.

    >>> [p.title for p in enumerate_layouts(Plan(), 2, ("data", "tensor"))]
    ['tensor 2', 'data 2']
    """
    # Every way to write the number as a product of so many factors, in their order.
    every: list[tuple[int, ...]] = [()]
    # All axes but the last take a divisor of what is left, and the last takes the rest.
    for _ in axes[1:]:
        pairs = ((some, devices // math.prod(some)) for some in every)
        every = [
            (*some, n)
            for some, left in pairs
            for n in range(1, left + 1)
            if left % n == 0
        ]
    if axes:
        every = [(*some, devices // math.prod(some)) for some in every]
    elif devices > 1:
        every = []
    for sizes in every:
        mesh = MeshShape(**dict(zip(axes, sizes, strict=True)))
        yield replace(plan.on(mesh), mesh=mesh)


def single_axis_layouts(
    plan: Plan, devices: int, axes: Sequence[str] = SEARCH_AXES
) -> Iterator[Plan]:
    """Yield the pure layouts: all devices along one axis."""
    for axis in axes:
        mesh = MeshShape(**{axis: devices})
        yield replace(plan.on(mesh), mesh=mesh)


def multi_host_layouts(
    plan: Plan, devices: int, host_devices: int, axes: Sequence[str] = SEARCH_AXES
) -> Iterator[Plan]:
    """Yield the published layouts for many hosts.

    Tensor parallelism within a host and data parallelism between hosts (Shoeybi et al.
    2019, arXiv 1909.08053), with stages between hosts as well (Narayanan et al. 2021,
    arXiv 2104.04473), and shards within a host, copies between (Zhao et al. 2023, arXiv
    2304.11277, "hybrid sharding").

    Args:
        plan: its other settings.
        devices: of all hosts.
        host_devices: devices of one.
        axes: that may have more than one device.

    >>> [p.title for p in multi_host_layouts(Plan(), 128, 8)]
    ['data 16 x tensor 8', 'pipe 8 x data 2 x tensor 8', 'data 16 x fsdp 8']
    """
    hosts, left = divmod(devices, host_devices)
    if left or hosts == 1 or host_devices == 1:
        return
    # As many stages as divide the hosts, at most the devices of a host.
    stages = math.gcd(hosts, host_devices)
    for sizes in (
        {"data": hosts, "tensor": host_devices},
        {"pipe": stages, "data": hosts // stages, "tensor": host_devices},
        {"data": hosts, "fsdp": host_devices},
    ):
        if {axis for axis, size in sizes.items() if size > 1} <= {*axes}:
            mesh = MeshShape(**sizes)
            yield replace(plan.on(mesh), mesh=mesh)


def host_group_orders(cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    """Return the orders of a cluster's host groups, but for that of its file.

    Each is written as short as it can be: groups behind the last name keep their order.
    Of more than four groups each comes first once.
    """
    names = tuple(group.name for group in cluster.groups)
    # The orders of n groups are n!, and each is a plan that has to be described.
    if len(names) > _MAX_PERMUTED_GROUPS:
        return tuple((name,) for name in names[1:])
    found = []
    for order in itertools.permutations(names):
        short = next(
            order[:end]
            for end in range(len(names) + 1)
            if (*order[:end], *(x for x in names if x not in order[:end])) == order
        )
        found.append(short)
    return tuple(short for short in found if short)


def plan_space(
    base_plan: Plan,
    devices: int,
    choices: PlanChoices,
    *,
    batch: int,
    blocks: int,
    tokens: int = 0,
    experts: int = 0,
    fixed_axes: Mapping[str, int] = MappingProxyType({}),
) -> PlanSpace:
    """List what could be tried, but for what cannot be run at a glance.

    Args:
        base_plan: what stays as it is: the shuffle, how the fsdp axis shares.
        devices: the product of the axes of every mesh.
        choices: what may be chosen.
        batch: samples of a global batch, which every microbatch divides.
        blocks: blocks of the network: a stage has one at least.
        tokens: of a sample, of which a device has two equal chunks.
        experts: of the network, of which devices have equal parts; 0: it has none.
        fixed_axes: devices of axes that are not chosen.
    """
    # Typed axes take their devices; the others are factored.
    free = devices // math.prod(fixed_axes.values())
    meshes = tuple(
        replace(plan.mesh, **fixed_axes)
        for plan in enumerate_layouts(base_plan, free, choices.axes)
    )
    # The product of all choices as columns, which is filtered afterwards: a loop that
    # makes a hundred thousand objects would take longer than their estimate.
    columns = np.meshgrid(
        np.arange(len(meshes)),
        np.array(choices.microbatches),
        np.arange(len(choices.orders)),
        np.arange(len(choices.remat)),
        np.arange(len(choices.ways)),
        indexing="ij",
    )
    mesh, micro, order, remat, way = (column.ravel() for column in columns)
    every = PlanSpace(
        base=base_plan,
        choices=choices,
        meshes=meshes,
        mesh=mesh,
        micro=micro,
        order=order,
        remat=np.array(choices.remat, int)[remat],
        way=way,
    )
    pipe, chunked, first = every.sizes("pipe"), every.chunks > 1, every.order == 0
    parts = every.sizes("replica", *BATCH_AXES) * every.micro
    expert = every.sizes(EXPERT_AXIS)
    ways = choices.ways
    unstaged = [i for i, way in enumerate(ways) if way in NON_PIPELINE_COMPRESSORS]
    possible = (
        # Devices run one program, so all have as many samples of a microbatch.
        (batch % parts == 0)
        # A device has chunks i and 2 n - 1 - i of the tokens, so that causal attention
        # is as much work on all of them.
        & ((every.sizes("context") == 1) | (tokens % (2 * every.sizes("context")) == 0))
        # Devices have as many experts each.
        & ((expert == 1) | ((experts > 0) & (experts % expert == 0)))
        # Without stages all schedules are the same plan: the first stands for them.
        & np.where(pipe == 1, first, pipe * every.chunks <= blocks)
        # Interleaved microbatches go round the devices in groups of their number.
        & ~(chunked & (every.micro % pipe != 0))
        # With fewer microbatches than stages no gradient of weights fills a bubble.
        & ~(
            np.isin(every.schedule_names, [*FULL_PIPELINE_SCHEDULES])
            & (every.micro < pipe)
        )
        # Without data parallelism no way of summing is better than the first.
        & ((every.sizes("data") > 1) | (every.way == 0))
        & ~(np.isin(every.way, unstaged) & (pipe > 1))
    )
    names = ("mesh", "micro", "order", "remat", "way")
    return replace(every, **{name: getattr(every, name)[possible] for name in names})
