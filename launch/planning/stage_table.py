"""Stages, laid out: as an object, and as lines and a table."""

import math
import shlex
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.text.formatting import format_count, format_duration, format_size
from jaxdist.launch.planning.stage_search import StageSearchResult
from jaxdist.planner.stages.stage_plan import (
    StageAllocation,
    StagePlan,
    default_microbatches,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BAR_WIDTH: Final = 6
_TIME_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def stage_tree(found: StageSearchResult) -> dict[str, Any]:
    """Return the answer as one object; seconds and bytes are the units."""
    answer, asked = found.stage_plan, found.stage_plan.query
    limit = asked.memory_budget.limit
    return {
        "profile": asked.graph.source,
        "origins": found.provenance,
        "workers": asked.devices,
        "levels": [tier.size for tier in asked.levels],
        "bandwidth": [tier.bandwidth for tier in asked.levels],
        "overlap": asked.cost_convention.overlap,
        "sync": asked.cost_convention.sync,
        "memory_limit": limit if math.isfinite(limit) else None,
        "memory_model": asked.memory_budget.model,
        "config": answer.config,
        "replicas": list(answer.replicas),
        "cuts": list(answer.cuts),
        "splits": [stage.after for stage in answer.stages],
        "seconds": answer.seconds,
        "stage_seconds": [stage.seconds for stage in answer.stages],
        "cut_seconds": [stage.cut for stage in answer.stages[1:]],
        "speedup_over_one": answer.single_device_seconds / answer.seconds,
        "speedup_over_data_parallel": answer.data_parallel_seconds / answer.seconds,
        "bytes": answer.sent_bytes,
        "bytes_over_data_parallel": answer.relative_bytes,
        "faster_with_fewer": answer.faster_subset,
        "noam": answer.stages[0].in_flight,
        "in_flight": [stage.in_flight for stage in answer.stages],
        "memory_bytes": [stage.memory for stage in answer.stages],
        "stages": [asdict(stage) for stage in answer.stages],
        "search_seconds": found.search_s,
    }


def print_stages(out: "Console", found: StageSearchResult, args: Namespace) -> None:
    """Print the finding, a row a stage, and what to try next."""
    from jaxdist.launch.terminal.console import (
        console_glyphs,
        print_next_commands,
        print_table,
    )

    answer, asked = found.stage_plan, found.stage_plan.query
    out.print(f"{_title_line(found)}\n", soft_wrap=True)
    for name, fact in _fact_lines(found):
        out.print(f"  {name:8} {fact}", soft_wrap=True)
    out.print()
    signs = console_glyphs(out)
    print_table(out, _stage_table(answer, signs.selected, signs.predicted_bar))
    over = [s for s in answer.stages if s.memory > asked.memory_budget.limit]
    if over:
        most = max(stage.memory for stage in over) - asked.memory_budget.limit
        out.print(
            f"  stages that hold more than {format_size(asked.memory_budget.limit)} "
            "while "
            "they run, "
            f"by up to {format_size(most)}: {len(over)} (--memory-model in-flight "
            "refuses)\n",
            soft_wrap=True,
        )
    print_next_commands(out, *_next_commands(found, args))


def _title_line(found: StageSearchResult) -> str:
    asked = found.stage_plan.query
    levels = " x ".join(str(tier.size) for tier in asked.levels)
    rates = ", ".join(format_size(8 * tier.bandwidth, "bit/s") for tier in asked.levels)
    devices = f"{format_count(asked.devices)} device{'s' * (asked.devices > 1)}"
    grouped = f" ({levels}, innermost first)" * (len(asked.levels) > 1)
    name = found.profile.model if found.profile else asked.graph.source
    return f"{name} on {devices}{grouped}, {rates}: stages {found.stage_plan.config}"


def _fact_lines(found: StageSearchResult) -> Iterator[tuple[str, str]]:
    answer, asked = found.stage_plan, found.stage_plan.query
    one = answer.single_device_seconds / answer.seconds
    all_ = answer.data_parallel_seconds / answer.seconds
    yield (
        "time",
        f"{format_duration(answer.seconds)} a minibatch, {one:.2f} times one device, "
        f"{all_:.2f} times data parallel; predicted, overlap "
        f"{asked.cost_convention.overlap:g}",
    )
    if answer.faster_subset:
        devices, seconds = answer.faster_subset
        many = (
            f"{format_count(devices)} devices are" if devices > 1 else "one device is"
        )
        yield "fewer", f"{many} faster: {format_duration(seconds)}"
    part = answer.relative_bytes
    beside = f", {part:.3f} of data parallel's" if part is not None else ""
    yield "bytes", f"{format_size(answer.sent_bytes)} a minibatch, all devices{beside}"
    yield (
        "flight",
        f"{answer.stages[0].in_flight} minibatches at most at the first stage (NOAM)",
    )
    yield (
        "search",
        f"{format_duration(found.search_s)}, {format_count(len(asked.graph.nodes))} "
        "nodes, "
        f"{format_count(answer.cut_point_count)} places to cut",
    )
    said = (f"{name} {origin}" for name, origin in found.provenance.items())
    yield "from", "; ".join(said)


def _stage_table(answer: StagePlan, this: str, bar: str) -> "Table":
    from jaxdist.launch.terminal.console import make_table
    from jaxdist.launch.terminal.number_column import NumberColumn

    step, unit = _time_unit([stage.compute for stage in answer.stages])
    held = NumberColumn(round(max(stage.memory for stage in answer.stages)), "B")
    times = f"time, {unit}", "compute", "cut"
    heads = ("devices", *times, "in flight", f"memory, {held.unit}")
    rows = make_table("stage", "nodes", *heads, "", right=("stage", *heads))
    for number, stage in enumerate(answer.stages):
        slow = max(stage.seconds, stage.cut) >= answer.seconds * (1 - 1e-9)
        rows.add_row(
            f"{this} {number}" if slow else str(number),
            _node_range(stage),
            str(stage.replicas),
            f"{stage.seconds / step:,.1f}",
            f"{stage.compute / step:,.1f}",
            f"{stage.cut / step:,.1f}" if number else "",
            str(stage.in_flight),
            held.format(round(stage.memory)),
            bar * math.ceil(_BAR_WIDTH * stage.seconds / answer.seconds - 1e-9),
        )
    return rows


def _time_unit(times: list[float]) -> tuple[float, str]:
    """Return the unit in which the largest time has digits before the point."""
    largest = max(times)
    return next((s for s in _TIME_UNITS if largest >= 10 * s[0]), _TIME_UNITS[-1])


def _node_range(stage: StageAllocation) -> str:
    first, last, many = stage.nodes[0], stage.nodes[-1], len(stage.nodes)
    return first if many == 1 else f"{first} to {last}"


def _next_commands(found: StageSearchResult, args: Namespace) -> Iterator[str]:
    """Yield the training of what was written, another overlap, or wider cuts."""
    if args.output and found.profile:
        yield f"jaxdist train EXPERIMENT --plan {args.output}{_batch_overrides(found)}"
    same = f"jaxdist plan stages {_option_text(args)}"
    if not found.stage_plan.query.graph.is_chain and args.cuts == "order":
        yield f"{same} --cuts any"
    if args.overlap is None and args.form is None:
        yield f"{same} --overlap 0"
    if found.profile and not args.output:
        yield f"{same} -o plan.json"


def _batch_overrides(found: StageSearchResult) -> str:
    """Say the batch of a step whose microbatches are the minibatches of the profile."""
    assert found.profile
    one, answer = found.profile.batch, found.stage_plan
    if len(answer.stages) == 1:
        return f" data.batch={one * answer.replicas[0]}"
    micro = default_microbatches(answer)
    return f" optim.accumulate={micro} data.batch={one * micro}"


def _option_text(args: Namespace) -> str:
    given = [
        ("profile", args.profile),
        ("workers", args.workers),
        ("levels", ",".join(map(str, args.levels)) if args.levels else None),
        ("bandwidth", args.bandwidth),
        ("cluster", args.cluster),
        ("memory", args.memory),
        ("memory-model", args.memory_model),
        ("overlap", args.overlap),
        ("form", args.form),
        ("cuts", None if args.cuts == "order" else args.cuts),
        ("flops-rate", args.flops_rate),
    ]
    words = [f"--{key} {shlex.quote(str(v))}" for key, v in given if v is not None]
    return " ".join([*words, *["--straight"] * args.straight])
