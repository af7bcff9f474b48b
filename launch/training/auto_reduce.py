"""Settling: what `plan.reduce.via=auto` becomes as a run starts, for the whole run."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from jaxdist.calibrate.reduction_timings import measure_reduction_link
from jaxdist.collectives.autotune import select_fastest
from jaxdist.collectives.link import Link
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS, make_algorithm
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.core.text.formatting import format_size
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.config.tree import replace_values
from jaxdist.launch.devices.prepare import PreparedDevices
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import read_config_lock
from jaxdist.launch.training.job.job import make_job
from jaxdist.partition.gradient_buckets import DATA_AXIS, plan_reduction
from jaxdist.train.layout import Layout

if TYPE_CHECKING:
    from jaxdist.input.sources import Source

_ALGORITHM_KEY = "plan.reduce.via"


@dataclass(frozen=True, kw_only=True)
class AutoReduceResult:
    """A configuration in which nothing is left to a measurement."""

    resolved: ResolvedConfig
    """The settings."""
    prepared: PreparedDevices
    """The devices, with the plan of the same settings."""
    message: str = ""
    """What was measured and chosen, as one line; empty where nothing was."""


def recorded_algorithm(
    resolved: ResolvedConfig, prepared: PreparedDevices, folder: RunFolder
) -> AutoReduceResult:
    """Return the configuration with the way that the run has chosen at its start."""
    if resolved.config.plan.reduce.via != "auto" or not folder.exists:
        return AutoReduceResult(resolved=resolved, prepared=prepared)
    via = read_config_lock(folder).resolved.config.plan.reduce.via
    return _with_algorithm(resolved, prepared, via, said=f"{via}, as this run began")


def select_algorithm(previous: AutoReduceResult, train: "Source") -> AutoReduceResult:
    """Measure and choose, where the configuration asks for it.

    Args:
        previous: a configuration, of a run that has not begun where it asks.
        train: the training samples.

    Raises:
        BadInput: ways that cannot be chosen.
    """
    resolved, prepared = previous.resolved, previous.prepared
    plan = prepared.plan
    if plan.reduce.via != "auto":
        return previous
    check_candidates(plan)
    if plan.mesh.size(DATA_AXIS) == 1:
        return _with_algorithm(
            resolved, prepared, "exact", said="exact: one device along data"
        )
    ways = [make_algorithm(plan.reduce.by(via)) for via in plan.reduce.among]
    layout = make_job(resolved.config, plan, train).layout
    link = measure_reduction_link(layout.mesh, DATA_AXIS, ways)
    sums = _bucket_shapes(layout)
    dtype = np.dtype(layout.task.param_dtype)
    sizes = {DATA_AXIS: link.devices}
    way = select_fastest(ways, sums, dtype, sizes, link) if sums else ways[0]
    return _with_algorithm(
        resolved, prepared, way.name, said=_choice_line(way.name, link, plan)
    )


def check_candidates(plan: Plan) -> None:
    """Refuse ways that cannot be chosen.

    Raises:
        BadInput: naming them.
    """
    among = plan.reduce.among
    able = [name for name in ALL_REDUCE_ALGORITHMS if name != "hierarchical"]
    wrong = [name for name in among if name not in able]
    if not wrong and "exact" in among:
        return
    near = did_you_mean(wrong[0], able) if wrong else None
    fixed = [near or "int8" if name in wrong else name for name in among]
    words = fixed if "exact" in fixed else ["exact", *fixed]
    raise BadInput(
        "these ways to sum cannot be chosen from",
        rule="plan.reduce.among names ways over one axis, exact among them",
        values=f"plan.reduce.among = {','.join(among)}; there are {', '.join(able)}",
        remedy=f"plan.reduce.among={','.join(dict.fromkeys(words))}",
    )


def _with_algorithm(
    resolved: ResolvedConfig, prepared: PreparedDevices, via: str, *, said: str
) -> AutoReduceResult:
    config = replace_values(resolved.config, {_ALGORITHM_KEY: via})
    plan = replace_values(prepared.plan, {"reduce.via": via})
    return AutoReduceResult(
        resolved=replace(resolved, config=config),
        prepared=replace(prepared, plan=plan),
        message=said,
    )


def _bucket_shapes(layout: Layout) -> list[list[tuple[int, ...]]]:
    """Return the shapes of each bucket, as a way that sends all of them has them."""
    plan = layout.plan
    by = replace_values(plan, {"reduce.via": "ring"})
    buckets = plan_reduction(by, layout.param_shardings).buckets
    return [
        [
            layout.param_shardings[place].local_shape(plan)
            for place in bucket.leaf_indices
        ]
        for bucket in buckets
    ]


def _choice_line(via: str, link: Link, plan: Plan) -> str:
    """Say what was measured and chosen."""
    return (
        f"{via}, out of {', '.join(plan.reduce.among)}; {link.devices} devices along "
        f"{DATA_AXIS}, {format_size(round(link.bytes_per_s))}/s each, measured"
    )
