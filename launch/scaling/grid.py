"""The grid of a scaling study: which runs it makes, as data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Literal, cast, get_args

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import AlgorithmName
from jaxdist.launch.config.resolve import nearest_multiples, smaller_divisors
from jaxdist.launch.config.tree import flatten_config, format_value
from jaxdist.launch.launchers.local import MAX_LOCAL_PROCESSES
from jaxdist.launch.launchers.program import check_option_range

ScalingMode = Literal["strong", "weak"]
"""strong: the global batch is fixed, each process has ever less to do; weak: the batch
of each process is fixed, a step has ever more samples."""
InputSource = Literal["real", "synthetic"]
NO_REDUCE: Final = "none"
"""The algorithm of a run on one process: there is nothing to reduce."""


@dataclass(frozen=True, kw_only=True)
class ScalingGrid:
    """What is varied: each value with each other one."""

    processes: tuple[int, ...]
    """Numbers of processes, ascending."""
    batches: tuple[int, ...]
    """Samples a step: of all processes (strong) or of each (weak)."""
    reductions: tuple[str, ...]
    """Algorithms of the all-reduce, as `plan.reduce.algorithm` names them."""
    inputs: tuple[InputSource, ...] = ("real",)
    """The experiment's own data, random samples, or both."""
    scaling: ScalingMode = "strong"
    """What is fixed as processes are added."""


@dataclass(frozen=True, kw_only=True)
class ScalingRun:
    """One run."""

    processes: int
    """How many, each with one device."""
    batch: int
    """Samples a step, of all processes."""
    grid_batch: int
    """The batch as the grid has it."""
    reduction: str
    """Algorithm of the all-reduce; `NO_REDUCE` on one process."""
    input: InputSource
    """Where samples come from."""

    @property
    def name(self) -> str:
        """Name of its run folder: `p4-b64-ring-real`."""
        return f"p{self.processes}-b{self.batch}-{self.reduction}-{self.input}"

    @property
    def title(self) -> str:
        """The same in words."""
        many = f"{self.processes} process{'es' * (self.processes > 1)}"
        way = "" if self.reduction == NO_REDUCE else f", {self.reduction}"
        return f"{many}, batch {self.batch}{way}, {self.input} input"


def parse_grid(
    *,
    processes: str,
    batches: str,
    reductions: str,
    inputs: str,
    scaling: ScalingMode,
    accumulate: int = 1,
) -> ScalingGrid:
    """Read a grid as it is typed, lists with commas.

    Args:
        processes: numbers of processes.
        batches: samples a step.
        reductions: algorithms of the all-reduce.
        inputs: real, synthetic or both.
        scaling: what is fixed.
        accumulate: parts that a process computes its batch in.

    Raises:
        BadInput: a value that no run could take, or a batch that the processes cannot
            share equally.
    """
    grid = ScalingGrid(
        processes=tuple(
            sorted(_parse_numbers("--processes", processes, MAX_LOCAL_PROCESSES))
        ),
        batches=_parse_numbers("--batch", batches, 2**31 - 1),
        reductions=_parse_names("--algorithms", reductions, get_args(AlgorithmName)),
        inputs=cast(
            tuple[InputSource, ...],
            _parse_names("--input", inputs, get_args(InputSource)),
        ),
        scaling=scaling,
    )
    # In weak scaling a process has the whole batch that is typed, in strong a share.
    shared = scaling == "strong"
    also = f", optim.accumulate = {accumulate}" if accumulate > 1 else ""
    for batch, count in product(grid.batches, grid.processes):
        parts = accumulate * (count if shared else 1)
        if batch % parts == 0:
            continue
        sizes = (f"--batch {size}" for size in nearest_multiples(batch, parts))
        remedy = " or ".join(sizes)
        if shared and count > 1 and batch % accumulate == 0:
            fewer = smaller_divisors(batch // accumulate, count)
            options = " or ".join(map(str, fewer))
            remedy += f", or {options} processes" if fewer else ""
        raise BadInput(
            f"{count} processes do not share a batch of {batch}",
            rule="a batch is a multiple of the processes"
            + (" x optim.accumulate" if accumulate > 1 else ""),
            values=f"--processes {','.join(map(str, grid.processes))}, --batch {batch}"
            + also,
            remedy=remedy,
        )
    return grid


def scaling_runs(grid: ScalingGrid) -> tuple[ScalingRun, ...]:
    """Return the runs of a grid, each once, those on fewer processes first.

    On one process all algorithms are the same run.

    >>> sizes = {"processes": (1, 2), "batches": (64,)}
    >>> found = scaling_runs(ScalingGrid(**sizes, reductions=("ring", "int8")))
    >>> [cell.name for cell in found]
    ['p1-b64-none-real', 'p2-b64-ring-real', 'p2-b64-int8-real']
    """
    made = (
        ScalingRun(
            processes=count,
            batch=batch if grid.scaling == "strong" else batch * count,
            grid_batch=batch,
            reduction=way if count > 1 else NO_REDUCE,
            input=source,
        )
        for source in grid.inputs
        for batch in grid.batches
        for count in grid.processes
        for way in grid.reductions
    )
    # Equal on one process, whatever the algorithm: a dict leaves each once, in order.
    return tuple(dict.fromkeys(made))


def plan_overrides(plan: Plan, run: ScalingRun) -> tuple[str, ...]:
    """Return the overrides that put a plan on a run's processes, along `data` alone.

    Args:
        plan: of the experiment.
        run: the run.

    >>> sizes = {"processes": 2, "batch": 64, "grid_batch": 64}
    >>> cell = ScalingRun(**sizes, reduction="ring", input="real")
    >>> plan_overrides(Plan(mesh=MeshShape(data=4, spatial_h=2)), cell)
    ('plan.mesh.data=2', 'plan.mesh.spatial_h=1', 'plan.reduce.algorithm=ring')
    """
    # A plan always names an algorithm: on one process the plain all-reduce.
    way = "exact" if run.reduction == NO_REDUCE else run.reduction
    placed = plan.on(MeshShape(data=run.processes))
    now = flatten_config(plan)
    then = flatten_config(replace(placed, reduce=plan.reduce.by(way)))
    return tuple(
        f"plan.{key}={format_value(value)}"
        for key, value in then.items()
        # `mesh.data` is typed even where it is the experiment's own: a mesh that is
        # typed is never shrunk to the devices there are.
        if value != now[key] or key == "mesh.data"
    )


def _parse_numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    # A minus passes here: such numbers are refused as out of range, further on.
    wrong = next((word for word in words if not word.lstrip("-").isdigit()), None)
    if wrong is not None or not words:
        raise BadInput(
            f"{option} {text or 'empty'} is no list of numbers",
            rule=f"{option} is whole numbers with commas between",
            values=f"{option} {text}",
            remedy=f"{option} 1,2,4" if option == "--processes" else f"{option} 64,128",
        )
    for word in words:
        check_option_range(option, int(word), most)
    # Repeated values would be the same run twice.
    return tuple(dict.fromkeys(int(word) for word in words))


def _parse_names(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = [word.strip() for word in text.split(",") if word.strip()]
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None or not names:
        near = did_you_mean(wrong or "", known)
        raise BadInput(
            f"{option} {wrong or 'empty'} is not known",
            rule=f"{option} is of {', '.join(known)}",
            remedy=f"did you mean {near}?" if near else f"{option} {known[0]}",
        )
    return tuple(dict.fromkeys(names))
