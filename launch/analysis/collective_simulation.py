"""Simulates an all-reduce on a network of shared links: `jaxdist simulate`."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count, format_percent, format_size
from jaxdist.launch.terminal.console import (
    console_glyphs,
    make_table,
    print_next_commands,
    print_table,
)
from jaxdist.network.concurrent import (
    halo_messages,
    schedule_messages,
    simulate_concurrent,
)
from jaxdist.network.contention_search import ContentionCandidate, minimize_contention
from jaxdist.network.lower_bound import bandwidth_lower_bound
from jaxdist.network.placement import parse_placement
from jaxdist.network.platforms.read import find_topology
from jaxdist.network.protocol_overheads import protocol_overheads
from jaxdist.network.schedules_by_name import TWO_LEVEL_SCHEDULES, schedule_by_name
from jaxdist.network.simulate import (
    NetworkModel,
    SimulatedStep,
    rank_devices,
    simulate_collective,
)
from jaxdist.network.sparse import (
    SparseEncoding,
    simulate_sparse,
    sparse_schedule_messages,
)

if TYPE_CHECKING:
    from rich.console import Console

_MAX_MIB = 1 << 30
_MAX_SWAPS = 64
"""Swaps of two ranks that are tried on networks small enough for many simulations."""
_MAX_ROWS = 24
_BAR_WIDTH = 30


@dataclass(frozen=True, kw_only=True)
class SimulationQuery:
    """What `jaxdist simulate allreduce` takes."""

    settings: Sequence[str] = ()
    """`key=value` of the topology."""
    algorithm: str = "halving_doubling"
    """Name of a collective schedule."""
    topology: str = "fat_tree"
    """Name, or path of a `.yaml` file."""
    ranks: int = 64
    mib: float = 64.0
    """Size of the array that every rank has, in MiB."""
    bandwidth_sharing: str | None = None
    """`maxmin` or `rtt`; by default what the overheads go with."""
    protocol_overheads: str = "ideal"
    """Protocol overheads: `ideal` or `smpi`."""
    synchronization: str = "steps"
    """Whether all ranks go from step to step together (`steps`), or alone (`ranks`)."""
    placement: str = "in_order"
    """Placement of the ranks on devices."""
    ranks_per_host: int | None = None
    """Ranks of a host, for lists of two levels; those of the platform by default."""
    density: float | None = None
    """Part of the numbers that are entries of sparse arrays; None sends all."""
    group: int | None = None
    """Neighbouring ranks that sum together; None is all of them."""
    halo_mib: float | None = None
    """MiB that neighbouring ranks exchange at the same time."""
    contention_search: bool = False
    """Whether schedules and placements with less contention are searched."""

    @property
    def command(self) -> str:
        """The command line of the query, without what is left to its defaults."""
        usual = SimulationQuery()
        given = {
            "algorithm": self.algorithm.replace("-", "_"),
            "topology": self.topology,
            "ranks": self.ranks,
            "mib": f"{self.mib:g}",
            "bandwidth-sharing": self.bandwidth_sharing,
            "ranks-per-host": self.ranks_per_host,
            "density": self.density,
            "group": self.group,
            "halo-mib": self.halo_mib,
        }
        for name in ("protocol_overheads", "synchronization", "placement"):
            value = getattr(self, name)
            if value != getattr(usual, name):
                given[name.replace("_", "-")] = value
        options = [
            f"--{k} {shlex.quote(str(v))}" for k, v in given.items() if v is not None
        ]
        return " ".join(("jaxdist simulate allreduce", *self.settings, *options))


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """A simulation with what it is of."""

    query: SimulationQuery
    schedule: str
    """Name of the collective schedule."""
    array_bytes: float
    """Bytes of the array that every rank has."""
    network: NetworkModel
    """Topology, factors and sharing."""
    seconds: float
    """Until the last rank has the sum."""
    phi: int
    """Contention φ: most messages on one link at once."""
    steps: tuple[SimulatedStep, ...]
    """A row a step, where all ranks go from step to step together."""
    each: tuple[tuple[str, float], ...]
    """Seconds of each collective, where there are several at once."""
    candidates: tuple[ContentionCandidate, ...]
    """Schedules and placements with less contention, best first, where asked for."""
    lower_bound_s: float
    """Seconds that no schedule is faster than, by the links of devices alone."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, in seconds and bytes."""
        query, topology = self.query, self.network.topology
        more: dict[str, Any] = {}
        if self.each:
            more["collectives"] = [dict(zip(("name", "seconds"), e)) for e in self.each]
        if self.candidates:
            best = self.candidates[0]
            # A placement that was found by swaps has no name: its devices say it.
            swapped = best.placement == "swapped"
            more["mitigated"] = {
                "algorithm": best.schedule.name,
                "per_host": best.per_host,
                "place": best.placement,
                "devices": best.devices.tolist() if swapped else None,
                "seconds": best.simulation.seconds,
                "phi_max": best.simulation.phi_max,
                "tried": len(self.candidates),
            }
        return {
            "algorithm": self.schedule,
            "topology": topology.name,
            "ranks": query.ranks,
            "bytes": self.array_bytes,
            "density": query.density,
            "place": query.placement,
            "pace": query.synchronization,
            "sharing": self.network.sharing,
            "factors": self.network.overheads.name,
            "seconds": self.seconds,
            "phi_max": self.phi,
            "bound_s": self.lower_bound_s,
            "ports": topology.ports,
            "switches": topology.switches,
            "phases": [asdict(phase) for phase in self.steps],
            **more,
        }


def run_simulation(query: SimulationQuery) -> SimulationReport:
    """Simulate an all-reduce.

    Raises:
        BadInput: no such schedule, topology or placement, or not with these numbers.
    """
    settings = parse_settings(query.settings)
    size, ranks, group = _parse_mib(query.mib, "--mib"), query.ranks, query.group
    if ranks < 1:
        raise BadInput(
            "a sum needs a rank",
            rule="the number of ranks is at least 1",
            values=f"--ranks {ranks}",
            remedy="--ranks 64",
        )
    if group is not None and (group < 1 or ranks % group):
        sizes = [s for s in range(1, ranks + 1) if ranks % s == 0]
        # The nearest size that divides the ranks.
        near = min(sizes, key=lambda size: abs(size - group))
        raise BadInput(
            f"{ranks:,} ranks do not make groups of {group}",
            rule="the ranks of a group divide all ranks",
            values=f"--ranks {ranks} --group {group}",
            remedy=f"--group {near}",
        )
    for name, given in (
        ("--density", query.density),
        ("--group", group),
        ("--halo-mib", query.halo_mib),
    ):
        if query.contention_search and given is not None:
            raise BadInput(
                f"--contention-search does not know {name}",
                rule="ways are searched for one dense sum over all ranks",
                values=f"{name} {given}",
                remedy=f"--contention-search without {name}",
            )
    topology = find_topology(query.topology, ranks, settings)
    # TCP gives a connection bandwidth in proportion to 1 / RTT: SimGrid's model of it
    # assumes that rule.
    rule = query.bandwidth_sharing or (
        "rtt" if query.protocol_overheads == "smpi" else "maxmin"
    )
    overheads = protocol_overheads(query.protocol_overheads)
    network = NetworkModel(topology=topology, overheads=overheads, sharing=rule)
    # A list of two levels sums inside hosts first, so it must know their ranks.
    members, hosted = group or ranks, topology.per_host
    per_host = query.ranks_per_host
    two_level = query.algorithm.replace("-", "_") in TWO_LEVEL_SCHEDULES
    if per_host is None and two_level and hosted > 1 and members % hosted == 0:
        per_host = hosted
    steps = schedule_by_name(query.algorithm, members, per_host)
    # Ranks are placed on devices after the topology is known: placements depend on it.
    devices = rank_devices(
        ranks, topology, parse_placement(query.placement, ranks, topology)
    )
    # Sums of sparse arrays grow from step to step, by the entries that do not meet.
    sparse = None if query.density is None else SparseEncoding(density=query.density)

    phases: tuple[SimulatedStep, ...] = ()
    each: tuple[tuple[str, float], ...] = ()
    if group is None and query.halo_mib is None and query.synchronization == "steps":
        # Ranks that go together have the same step: one simulation of messages a step.
        alone = (
            simulate_collective(steps, size, network, devices)
            if sparse is None
            else simulate_sparse(steps, size, network, sparse, devices)
        )
        seconds, phi, phases = alone.seconds, alone.phi_max, alone.steps
    else:
        # Groups and halos share links: all of their messages are in one simulation.
        found = [
            schedule_messages(steps, size, places, topology.reduce_s_per_byte)
            if sparse is None
            else sparse_schedule_messages(steps, size, topology, sparse, places)
            for places in devices.reshape(-1, steps.ranks)
        ]
        if query.halo_mib is not None:
            halo = _parse_mib(query.halo_mib, "--halo-mib")
            found.append(halo_messages(devices, halo))
        outcome = simulate_concurrent(found, network, query.synchronization)
        seconds, phi = outcome.seconds, outcome.phi
        if len(found) > 1:
            each = tuple(zip((one.name for one in found), outcome.each))
    candidates: Sequence[ContentionCandidate] = ()
    if query.contention_search:
        # Each swap is a simulation: with more ranks they would take minutes.
        swaps = _MAX_SWAPS if ranks <= 32 else 0
        candidates = minimize_contention(ranks, size, network, swaps)
    return SimulationReport(
        query=query,
        schedule=steps.name,
        array_bytes=size,
        network=network,
        seconds=seconds,
        phi=phi,
        steps=phases,
        each=each,
        candidates=tuple(candidates),
        lower_bound_s=bandwidth_lower_bound(topology, group or ranks, size),
    )


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """Return the settings of a topology by name.

    Raises:
        BadInput: a word that is none.

    >>> parse_settings(["per_leaf=32"])
    {'per_leaf': '32'}
    """
    settings = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not (key and sign and value):
            raise BadInput(
                f"{word} is no setting",
                rule="a setting of the topology is key=value",
                values=word,
                remedy="per_leaf=32",
            )
        settings[key] = value
    return settings


def _parse_mib(mib: float, option: str) -> float:
    """Return the bytes of a size in MiB."""
    if not (math.isfinite(mib) and 0 < mib <= _MAX_MIB):
        raise BadInput(
            f"no array has {mib:g} MiB",
            rule="a size is above 0 and at most 1 PiB",
            values=f"{option} {mib:g}",
            remedy=f"{option} 64",
        )
    return mib * 2**20


def print_simulation(out: "Console", found: SimulationReport, *, plot: bool) -> None:
    """Print the finding, steps that are alike as one row, and what to try next.

    Args:
        out: where to print.
        found: the simulation.
        plot: whether the time of each step is drawn as a bar.
    """
    query, network, topology = found.query, found.network, found.network.topology
    title, bound_s = [found.schedule], found.lower_bound_s
    if query.group is not None:
        title.append(f"{query.ranks // query.group} groups of {query.group} at once")
    if query.halo_mib is not None:
        title.append(f"halos of {query.halo_mib:g} MiB beside it")
    if query.density is not None:
        title.append(f"density {query.density:g}")
    ranks = format_count(query.ranks)
    out.print(f"{', '.join(title)} on {topology.name}, {ranks} ranks\n")
    array = format_size(found.array_bytes)
    out.print(f"  time     {1e3 * found.seconds:.6g} ms for {array}", soft_wrap=True)
    # The bound is of dense arrays: sparse ones send less.
    if query.density is None:
        used = f": {format_percent(bound_s / (found.seconds or 1))} of it used"
        links = f"by the links of devices alone{used * bool(found.seconds)}"
        out.print(f"  bound    {1e3 * bound_s:.6g} ms {links}", soft_wrap=True)
    out.print(
        f"  meeting  φ = {found.phi}, the most messages on one link\n"
        f"  links    {network.overheads.name}, shared by {network.sharing}; "
        f"{format_count(topology.switches)} switches of up to "
        f"{format_count(topology.ports)} ports\n",
        soft_wrap=True,
    )
    if found.steps:
        _print_steps(out, found, plot)
    if found.each:
        rows = make_table("collective", "ms", right=("ms",))
        for name, seconds in found.each[:_MAX_ROWS]:
            rows.add_row(name, f"{1e3 * seconds:.6g}")
        print_table(out, rows)
    if found.candidates:
        heads = ("ms", "φ", "of bound")
        rows = make_table("list", "placement", *heads, right=heads)
        for one in found.candidates[:8]:
            took = one.simulation.seconds
            rows.add_row(
                one.schedule.name + f", {one.per_host} a host" * bool(one.per_host),
                one.placement,
                f"{1e3 * took:.6g}",
                format_count(one.simulation.phi_max),
                format_percent(took / bound_s) if bound_s else "-",
            )
        print_table(out, rows)
        best = found.candidates[0]
        place = best.placement
        if place == "swapped":
            place = ",".join(map(str, best.devices.tolist()))
        # The same question again: only the algorithm and the placement differ.
        better = replace(
            query,
            algorithm=best.schedule.name,
            ranks_per_host=best.per_host,
            placement=place,
        )
        print_next_commands(out, better.command)
        return
    other = "ring" if found.schedule != "ring" else "halving_doubling"
    # A search is of one dense sum over all ranks.
    able = query.density is None and not found.each
    again = [f"{query.command} --contention-search"] * able
    # Lists of one level refuse ranks of a host.
    plain = replace(query, algorithm=other, ranks_per_host=None)
    print_next_commands(out, plain.command, *again)


def _print_steps(out: "Console", found: SimulationReport, plot: bool) -> None:

    # Neighbouring steps that are alike, as those of a ring, are one row.
    alike, first = [], 1
    for phase, run in groupby(found.steps):
        count = sum(1 for _ in run)
        alike.append((first, first + count - 1, phase))
        first += count
    longest = max((b - a + 1) * phase.seconds for a, b, phase in alike) or 1.0
    heads = ("steps", "ms each", "φ", "messages", "largest")
    rows = make_table(*heads, *[""] * plot, right=heads[1:])
    for first, last, phase in alike[:_MAX_ROWS]:
        width = round(_BAR_WIDTH * (last - first + 1) * phase.seconds / longest)
        rows.add_row(
            f"{first}" if first == last else f"{first}-{last}",
            f"{1e3 * phase.seconds:.4g}",
            format_count(phase.phi),
            format_count(phase.messages),
            format_size(phase.bytes),
            *[console_glyphs(out).predicted_bar * width] * plot,
        )
    print_table(out, rows)
    if len(alike) > _MAX_ROWS:
        out.print(f"  {len(alike) - _MAX_ROWS} more rows; all are in --json\n")
