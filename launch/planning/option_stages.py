"""Stages of a graph with options, in Piper's format: the search, what it prints."""

import shlex
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count, format_duration, format_size
from jaxdist.core.text.parsing import parse_bandwidth, parse_bytes
from jaxdist.launch.terminal.console import (
    console_glyphs,
    make_table,
    print_next_commands,
    print_table,
)
from jaxdist.launch.terminal.run_summary import NumberColumn
from jaxdist.planner.stages.option_graph import (
    OptionGraph,
    OptionStagePlan,
    OptionStageQuery,
)
from jaxdist.planner.stages.option_search import partition_options

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.planning.stage_search import StagePlanQuery

_OTHER_FORMATS: Final = {
    "cluster": "--bandwidth and --memory say what a device has",
    "levels": "all devices have one --bandwidth",
    "straight": "--microbatches 1 leaves no replicas",
    "overlap": "nothing is hidden in Piper's model",
    "cost_convention": "Piper's model is the only one",
    "memory_model": "the file says what a microbatch in flight takes",
    "flops_rate": "the file has seconds",
    "output": "--json has the stages; its nodes are no network of ours",
}
"""Options of PipeDream's and our profiles, and what takes their place."""


@dataclass(frozen=True, kw_only=True)
class OptionSearchResult:
    """Stages of a graph with options, and what they are of."""

    query: "StagePlanQuery"
    stage_plan: OptionStagePlan
    """The stages."""
    search_s: float
    """Seconds that the search took."""
    provenance: dict[str, str] = field(default_factory=dict)
    """Where its numbers are from."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, in seconds and bytes."""
        answer, asked = self.stage_plan, self.stage_plan.query
        return {
            "profile": asked.graph.source,
            "format": "piper",
            "origins": self.provenance,
            "workers": asked.devices,
            "workers_used": answer.devices,
            "bandwidth": asked.bandwidth,
            "memory_limit": asked.memory,
            "microbatches": asked.microbatches,
            "seconds": answer.seconds,
            "replicas": [stage.replicas for stage in answer.stages],
            "tensor": [stage.tensor for stage in answer.stages],
            "cuts": [stage.nodes[0] for stage in answer.stages[1:]],
            "in_flight": [stage.in_flight for stage in answer.stages],
            "stage_seconds": [stage.seconds for stage in answer.stages],
            "memory_bytes": [stage.memory for stage in answer.stages],
            "stages": [asdict(stage) for stage in answer.stages],
            "places": answer.cuts,
            "search_seconds": self.search_s,
        }


def search_option_stages(
    query: "StagePlanQuery", graph: OptionGraph
) -> OptionSearchResult:
    """Find the stages of a graph with options whose slowest is fastest.

    Args:
        query: its devices, bandwidth, memory, microbatches are instead of the file's.
        graph: read from its profile.

    Raises:
        BadInput: an option of other formats, or no stages fit.
    """
    for name, instead in _OTHER_FORMATS.items():
        # An overlap of 0 is given, too.
        value = getattr(query, name)
        if value is not None and value is not False:
            option = "-o" if name == "output" else f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{option} is not for Piper's graphs",
                rule="devices, bandwidth, memory and microbatches are in the file; "
                "--workers, --bandwidth, --memory and --microbatches are instead of it",
                values=f"--profile {query.profile}, {option}",
                remedy=f"no {option}: {instead}",
            )
    given = {
        "devices": query.workers is not None,
        "links": query.bandwidth is not None,
        "memory": query.memory is not None,
        "microbatches": query.microbatches is not None,
    }
    asked = OptionStageQuery(
        graph=graph,
        devices=graph.devices if query.workers is None else query.workers,
        bandwidth=graph.bandwidth
        if query.bandwidth is None
        else parse_bandwidth(query.bandwidth, "--bandwidth"),
        memory=graph.memory
        if query.memory is None
        else parse_bytes(query.memory, "--memory"),
        microbatches=graph.microbatches
        if query.microbatches is None
        else query.microbatches,
        # `widest` is `any` where there are few enough places to cut, else `order`.
        cuts="widest"
        if query.cuts is None
        else ("any" if query.cuts == "any" else "order"),
    )
    begun = time.perf_counter()
    found = partition_options(asked)
    took = time.perf_counter() - begun
    provenance = {"times": "in the file"}
    provenance |= {
        name: "given" if own else "in the file" for name, own in given.items()
    }
    return OptionSearchResult(
        query=query, stage_plan=found, search_s=took, provenance=provenance
    )


def print_option_stages(out: "Console", found: OptionSearchResult) -> None:
    """Print the stages, a row each, and what to try next."""
    answer, asked, stages = (
        found.stage_plan,
        found.stage_plan.query,
        found.stage_plan.stages,
    )
    splits = "-".join(f"{s.replicas}x{s.tensor}" for s in stages)
    out.print(
        f"{asked.graph.source} on {format_count(asked.devices)} devices, "
        f"{format_size(8 * asked.bandwidth, 'bit/s')}: stages {splits}\n",
        soft_wrap=True,
    )
    origins: dict[str, list[str]] = {}
    for name, origin in found.provenance.items():
        origins.setdefault(origin, []).append(name)
    where = "any set of first nodes" if answer.cuts == "any" else "one order of nodes"
    facts = {
        "time": f"{format_duration(answer.seconds)} a microbatch of "
        f"{format_count(asked.microbatches)}, {format_count(answer.devices)} devices "
        "used; predicted, nothing hidden",
        "memory": f"{format_size(max(s.memory for s in stages))} of "
        f"{format_size(asked.memory)} a device at most",
        "search": f"{format_duration(found.search_s)}, "
        f"{format_count(len(asked.graph.nodes))} nodes, "
        f"{format_count(answer.cut_point_count)} places to cut: {where}",
        "from": "; ".join(
            f"{', '.join(names)} {origin}" for origin, names in origins.items()
        ),
    }
    for key, fact in facts.items():
        out.print(f"  {key:8} {fact}", soft_wrap=True)
    out.print()

    memory = NumberColumn(round(max(stage.memory for stage in stages)), "B")
    heads = (
        "replicas x tensor",
        "ms",
        "compute",
        "moving",
        "in flight",
        f"memory, {memory.unit}",
    )
    rows = make_table("stage", "nodes", "options", *heads, right=("stage", *heads))
    glyphs = console_glyphs(out)
    for number, stage in enumerate(stages):
        # Several stages may be the slowest; seconds that differ by rounding alone are
        # equal.
        slow = stage.seconds >= answer.seconds * (1 - 1e-9)
        names = stage.nodes[0], stage.nodes[-1]
        # Most nodes of a stage take one option: counts say how many take another.
        counts = Counter(stage.options).most_common()
        moving = stage.transfer + stage.all_reduce
        rows.add_row(
            f"{glyphs.selected} {number}" if slow else str(number),
            names[0] if len(stage.nodes) == 1 else f"{names[0]} to {names[1]}",
            "\n".join(f"{count} {option}" for option, count in counts),
            f"{stage.replicas} x {stage.tensor}",
            *(f"{1e3 * s:,.1f}" for s in (stage.seconds, stage.compute, moving)),
            str(stage.in_flight),
            memory.format(round(stage.memory)),
        )
    print_table(out, rows)
    words = ["--profile", str(found.query.profile)]
    # A limit below what these stages need, so that the command finds others.
    tighter = max(stage.memory for stage in stages) * 0.9
    print_next_commands(
        out,
        f"jaxdist plan stages {shlex.join(words)} --workers {2 * asked.devices}",
        f"jaxdist plan stages {shlex.join(words)} --workers {asked.devices} "
        f"--memory {tighter:.3g}",
    )
