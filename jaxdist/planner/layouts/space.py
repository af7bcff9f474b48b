"""The space of a search: meshes times settings, as columns of whole numbers.

A hundred thousand plans are rows of a few arrays; a plan is made of a row only where it
is described or run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.axes import BATCH_AXES
from jaxdist.core.plan import AfterSpatial, MeshShape, Plan, TensorSplit
from jaxdist.core.plan.pipeline import PipelineConfig, ScheduleName
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.core.plan.reduction import AlgorithmName
from jaxdist.planner.layouts.meshes import SEARCH_AXES, enumerate_layouts

Column = NDArray[Any]

SCHEDULE_CHOICES: Final[tuple[tuple[ScheduleName, int], ...]] = (
    ("1f1b", 1),
    ("gpipe", 1),
    ("interleaved", 2),
    ("eager-1f1b", 1),
    ("eager-1f1b", 2),
)
"""Orders of stages that leave the gradient as it is, and chunks of a device."""

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
    """What fsdp shares out: the optimizer's state alone, or parameters as well."""
    weights: tuple[TensorSplit, ...] = ("pairs",)
    """How the tensor axis splits weights."""
    inside: tuple[str, ...] = ()
    """Axes that may be moved to the inside on devices."""
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
    """Ways to deal devices out over axes."""
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
        per_mesh = np.array([mesh.size(*axes) for mesh in self.meshes])
        return per_mesh[self.mesh]

    @property
    def chunks(self) -> Column:
        """Stages of each device, of every row."""
        return np.array([chunks for _, chunks in self.choices.orders])[self.order]

    @property
    def placed(self) -> tuple[MeshPlacement, ...]:
        """The meshes on devices."""
        order = self.base.placed.order
        return tuple(MeshPlacement(mesh=mesh, order=order) for mesh in self.meshes)

    def zero(self, mesh: MeshShape) -> Literal[1, 3]:
        """Return what fsdp shares out in a mesh.

        Stages put shared parameters together for a whole step, and hold them twice.
        """
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
            remat_until=self.base.remat_until if self.remat[row] else "",
            zero=self.zero(mesh),
            reduce=self.base.reduce.by(self.choices.ways[self.way[row]]),
        )
        if mesh.pipe == 1:
            return replace(one, pipe=PipelineConfig())
        return replace(one, pipe=replace(one.pipe, schedule=schedule, chunks=chunks))


def plan_space(
    base_plan: Plan,
    devices: int,
    choices: PlanChoices,
    *,
    batch: int,
    blocks: int,
    fixed_axes: Mapping[str, int] = MappingProxyType({}),
) -> PlanSpace:
    """List what could be tried, but for what cannot be run at a glance.

    Args:
        base_plan: what stays as it is: the shuffle, how the fsdp axis shares.
        devices: the product of the axes of every mesh.
        choices: what may be chosen.
        batch: samples of a global batch, which every microbatch divides.
        blocks: blocks of the network: a stage has one at least.
        fixed_axes: devices of axes that are not chosen.
    """
    free = devices // math.prod(fixed_axes.values())
    meshes = tuple(
        replace(plan.mesh, **fixed_axes)
        for plan in enumerate_layouts(base_plan, free, choices.axes)
    )
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
    return select_rows(every, np.flatnonzero(_is_feasible(every, batch, blocks)))


def select_rows(space: PlanSpace, rows: Column | Sequence[int]) -> PlanSpace:
    """Return a space of some of the rows."""
    names = ("mesh", "micro", "order", "remat", "way")
    return replace(space, **{name: getattr(space, name)[rows] for name in names})


def _is_feasible(space: PlanSpace, batch: int, blocks: int) -> Column:
    """Tell which rows divide the batch and the network."""
    pipe, stages = space.sizes("pipe"), space.sizes("pipe") * space.chunks
    chunked, first = space.chunks > 1, space.order == 0
    parts = space.sizes("replica", *BATCH_AXES) * space.micro
    summed = space.sizes("data") > 1
    unstaged = np.isin(space.way, _algorithm_indices(space, NON_PIPELINE_COMPRESSORS))
    possible: Column = (
        (batch % parts == 0)
        & np.where(pipe == 1, first, stages <= blocks)
        & ~(chunked & (space.micro % pipe != 0))
        & (summed | (space.way == 0))
        & ~(unstaged & (pipe > 1))
    )
    return possible


def _algorithm_indices(space: PlanSpace, ways: Sequence[str]) -> list[int]:
    return [place for place, way in enumerate(space.choices.ways) if way in ways]
