"""Prints the stages that a network was cut into."""

import math
import shlex
from typing import TYPE_CHECKING, Final

from jaxdist.core.text.formatting import format_count, format_duration, format_size
from jaxdist.launch.planning.stage_search import StageSearchResult
from jaxdist.launch.terminal.console import (
    console_glyphs,
    make_table,
    print_next_commands,
    print_table,
)
from jaxdist.launch.terminal.run_summary import NumberColumn
from jaxdist.planner.stages.stage_plan import default_microbatches

if TYPE_CHECKING:
    from rich.console import Console

_BAR_WIDTH: Final = 6
_TIME_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def print_stages(out: "Console", found: StageSearchResult) -> None:
    """Print the finding, a row a stage, and what to try next."""
    answer, asked = found.stage_plan, found.stage_plan.query
    stages, limit = answer.stages, asked.memory_budget.limit
    sizes = " x ".join(str(tier.size) for tier in asked.levels)
    rates = ", ".join(format_size(8 * tier.bandwidth, "bit/s") for tier in asked.levels)
    devices = f"{format_count(asked.devices)} device{'s' * (asked.devices > 1)}"
    # One level needs no order: the number of devices says all.
    devices += f" ({sizes}, innermost first)" * (len(asked.levels) > 1)
    title = found.profile.model if found.profile else asked.graph.source
    title += f" on {devices}, {rates}: stages {answer.config}"
    out.print(f"{title}\n", soft_wrap=True)

    one = answer.single_device_seconds / answer.seconds
    data_parallel = answer.data_parallel_seconds / answer.seconds
    facts = {
        "time": f"{format_duration(answer.seconds)} a minibatch, {one:.2f} times one "
        f"device, {data_parallel:.2f} times data parallel; predicted, overlap "
        f"{asked.cost_convention.overlap:g}"
    }
    if answer.faster_subset:
        count, seconds = answer.faster_subset
        many = f"{format_count(count)} devices are" if count > 1 else "one device is"
        facts["fewer"] = f"{many} faster: {format_duration(seconds)}"
    facts["bytes"] = f"{format_size(answer.sent_bytes)} a minibatch, all devices"
    # None where data parallelism sends nothing: on one device.
    if answer.relative_bytes is not None:
        facts["bytes"] += f", {answer.relative_bytes:.3f} of data parallel's"
    facts["flight"] = (
        f"{stages[0].in_flight} minibatches at most at the first stage (NOAM)"
    )
    facts["search"] = (
        f"{format_duration(found.search_s)}, {format_count(len(asked.graph.nodes))} "
        f"nodes, {format_count(answer.cut_point_count)} places to cut"
    )
    origins = found.provenance.items()
    facts["from"] = "; ".join(f"{number} {origin}" for number, origin in origins)
    for key, fact in facts.items():
        out.print(f"  {key:8} {fact}", soft_wrap=True)
    out.print()

    # Times are in the largest unit in which one of them has two digits.
    largest = max(stage.compute for stage in stages)
    step, unit = next((u for u in _TIME_UNITS if largest >= 10 * u[0]), _TIME_UNITS[-1])
    memory = NumberColumn(round(max(stage.memory for stage in stages)), "B")
    times = f"time, {unit}", "compute", "cut"
    heads = ("devices", *times, "in flight", f"memory, {memory.unit}")
    rows = make_table("stage", "nodes", *heads, "", right=("stage", *heads))
    glyphs = console_glyphs(out)
    for number, stage in enumerate(stages):
        # The slowest stage or cut is the beat of the pipeline. Sums of floats that
        # should be equal differ in their last bits.
        slow = max(stage.seconds, stage.cut) >= answer.seconds * (1 - 1e-9)
        first, last = stage.nodes[0], stage.nodes[-1]
        width = math.ceil(_BAR_WIDTH * stage.seconds / answer.seconds - 1e-9)
        rows.add_row(
            f"{glyphs.selected} {number}" if slow else str(number),
            first if len(stage.nodes) == 1 else f"{first} to {last}",
            str(stage.replicas),
            f"{stage.seconds / step:,.1f}",
            f"{stage.compute / step:,.1f}",
            f"{stage.cut / step:,.1f}" if number else "",
            str(stage.in_flight),
            memory.format(round(stage.memory)),
            glyphs.predicted_bar * width,
        )
    print_table(out, rows)
    # PipeDream's own test counts a minibatch less than the executor holds.
    if over := [stage.memory for stage in stages if stage.memory > limit]:
        out.print(
            f"  stages that hold more than {format_size(limit)} while they run, "
            f"by up to {format_size(max(over) - limit)}: {len(over)} "
            "(--memory-model in-flight refuses)\n",
            soft_wrap=True,
        )
    print_next_commands(out, *_next_commands(found))


def _next_commands(found: StageSearchResult) -> list[str]:
    """Return the training of what was written, another overlap, or wider cuts."""
    query, answer, commands = found.query, found.stage_plan, []
    if query.output and found.profile:
        # A profile is of one minibatch: microbatches of a step have its size.
        batch = found.profile.batch
        words = f"data.batch={batch * answer.replicas[0]}"
        if len(answer.stages) > 1:
            micro = default_microbatches(answer)
            words = f"optim.accumulate={micro} data.batch={batch * micro}"
        commands.append(f"jaxdist train EXPERIMENT --plan {query.output} {words}")
    given = {
        "profile": query.profile,
        "workers": query.workers,
        "levels": ",".join(map(str, query.levels)) if query.levels else None,
        "bandwidth": query.bandwidth,
        "cluster": query.cluster,
        "memory": query.memory,
        "memory-model": query.memory_model,
        "overlap": query.overlap,
        "cost-convention": query.cost_convention,
        "cuts": query.cuts,
        "flops-rate": query.flops_rate,
    }
    options = (
        f"--{k} {shlex.quote(str(v))}" for k, v in given.items() if v is not None
    )
    # Commands repeat all that was given, defaults left out.
    same = " ".join(("jaxdist plan stages", *options, *["--straight"] * query.straight))
    # In a chain every cut is between neighbours: there is nothing wider to try.
    if not answer.query.graph.is_chain and query.cuts != "any":
        commands.append(f"{same} --cuts any")
    if query.overlap is None and query.cost_convention is None:
        commands.append(f"{same} --overlap 0")
    if found.profile and not query.output:
        commands.append(f"{same} -o plan.json")
    return commands
