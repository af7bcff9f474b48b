"""Execution traces of all ranks, replayed on a topology, and what is printed of it."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.text.formatting import format_count, format_percent, format_size
from jaxdist.launch.analysis.collective_simulation import parse_settings
from jaxdist.launch.terminal.console import (
    make_table,
    print_next_commands,
    print_table,
)
from jaxdist.network.chakra.files import read_traces
from jaxdist.network.placement import parse_placement
from jaxdist.network.platforms.read import find_topology
from jaxdist.network.simulate import NetworkModel
from jaxdist.network.trace_replay import TraceReplay, replay_trace

if TYPE_CHECKING:
    from rich.console import Console

_MAX_ROWS = 24


@dataclass(frozen=True, kw_only=True)
class ReplayQuery:
    """What `jaxdist simulate traces` takes."""

    folder: Path
    """Traces of all ranks."""
    settings: Sequence[str] = ()
    """`key=value` of the topology."""
    algorithm: str = "halving_doubling"
    """Name of the schedule of all-reduces."""
    topology: str = "fat_tree"
    """Name, or path of a `.yaml` file."""
    placement: str = "in_order"
    """Placement of the ranks on devices."""


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """A replay with what it is of."""

    query: ReplayQuery
    topology: str
    """Description of the network."""
    ranks: int
    """Ranks of the trace."""
    nodes: int
    """Nodes of all ranks."""
    replay: TraceReplay
    """Its times."""

    def to_dict(self) -> dict[str, Any]:
        """Return the replay as plain values, in seconds and bytes."""
        return {
            "folder": str(self.query.folder),
            "topology": self.topology,
            "algorithm": self.query.algorithm,
            "place": self.query.placement,
            "ranks": self.ranks,
            "nodes": self.nodes,
            **asdict(self.replay),
        }


def run_replay(query: ReplayQuery) -> ReplayReport:
    """Read execution traces and replay them.

    Raises:
        BadInput: traces that cannot be read or replayed, or no such topology, placement
            or schedule.
    """
    trace = read_traces(query.folder)
    ranks = len(trace.ranks)
    topology = find_topology(query.topology, ranks, parse_settings(query.settings))
    places = parse_placement(query.placement, ranks, topology)
    network = NetworkModel(topology=topology)
    return ReplayReport(
        query=query,
        topology=topology.name,
        ranks=ranks,
        nodes=sum(map(len, trace.ranks)),
        replay=replay_trace(trace, network, query.algorithm, places),
    )


def print_replay(out: "Console", found: ReplayReport) -> None:
    """Print the times of a replay, then its collectives by kind and size."""
    replay, query = found.replay, found.query
    ranks, nodes = format_count(found.ranks), format_count(found.nodes)
    out.print(f"{query.folder} on {found.topology}, {ranks} ranks, {nodes} nodes\n")
    whole = replay.seconds or 1.0
    out.print(
        f"  step     {1e3 * replay.seconds:,.6g} ms until the last rank is done\n"
        f"  compute  {1e3 * replay.compute_s:,.6g} ms of the rank that computes "
        f"longest: {format_percent(replay.compute_s / whole)}\n"
        f"  network  {1e3 * replay.communication_s:,.6g} ms in use: "
        f"{format_percent(replay.communication_s / whole)}\n",
        soft_wrap=True,
    )
    heads = ("ranks", "result", "count", "ms each")
    rows = make_table("collective", *heads, right=heads)
    for one in replay.collectives[:_MAX_ROWS]:
        rows.add_row(
            one.kind,
            format_count(one.ranks),
            format_size(one.size),
            format_count(one.count),
            f"{1e3 * one.seconds:.4g}",
        )
    print_table(out, rows)
    if len(replay.collectives) > _MAX_ROWS:
        more = len(replay.collectives) - _MAX_ROWS
        out.print(f"  {more} more rows; all are in --json\n")
    other = "ring" if query.algorithm != "ring" else "halving_doubling"
    words = [str(query.folder), *query.settings, "--topology", query.topology]
    if query.placement != "in_order":
        words += ["--placement", query.placement]
    again = f"jaxdist simulate traces {shlex.join(words)}"
    print_next_commands(out, f"{again} --algorithm {other}")
