"""Simulated answers, laid out: as an object, and as lines and tables."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jaxdist.core.text.formatting import format_count, format_percent, format_size
from jaxdist.launch.analysis.collective_simulation import SimulationReport
from jaxdist.network.simulate import SimulatedStep

if TYPE_CHECKING:
    from rich.console import Console

_MAX_ROWS = 24
_BAR_WIDTH = 30


def simulation_tree(found: SimulationReport) -> dict[str, Any]:
    """Return an answer as one object; seconds and bytes are the units."""
    topology = found.network.topology
    more: dict[str, Any] = {}
    if found.each:
        more["collectives"] = [dict(zip(("name", "seconds"), e)) for e in found.each]
    if found.candidates:
        more["mitigated"] = _best_candidate(found)
    return {
        "algorithm": found.schedule,
        "topology": topology.name,
        "ranks": found.ranks,
        "bytes": found.array_bytes,
        "density": found.density,
        "place": found.placement,
        "pace": found.sync_mode,
        "sharing": found.network.sharing,
        "factors": found.network.overheads.name,
        "seconds": found.seconds,
        "phi_max": found.phi,
        "bound_s": found.lower_bound_s,
        "ports": topology.ports,
        "switches": topology.switches,
        "phases": [asdict(phase) for phase in found.steps],
        **more,
    }


def print_simulation(out: "Console", found: SimulationReport, *, plot: bool) -> None:
    """Print the finding, steps that are alike as one row, and what to try next."""
    from jaxdist.launch.terminal.console import print_next_commands

    topology = found.network.topology
    out.print(f"{found.title} on {topology.name}, {format_count(found.ranks)} ranks\n")
    for name, fact in _facts(found):
        out.print(f"  {name:8} {fact}", soft_wrap=True)
    out.print()
    if found.steps:
        _print_steps(out, found, plot)
    if found.each:
        _print_collectives(out, found)
    if found.candidates:
        _print_candidates(out, found)
    print_next_commands(out, *_next_commands(found))


def _facts(found: SimulationReport) -> Iterator[tuple[str, str]]:
    network, topology = found.network, found.network.topology
    share = (
        f": {format_percent(found.lower_bound_s / found.seconds)} of it used"
        * bool(found.seconds)
    )
    yield "time", f"{1e3 * found.seconds:.6g} ms for {format_size(found.array_bytes)}"
    if found.density is None:
        links = "by the links of devices alone"
        yield "bound", f"{1e3 * found.lower_bound_s:.6g} ms {links}{share}"
    yield "meeting", f"φ = {found.phi}, the most messages on one link"
    yield (
        "links",
        f"{network.overheads.name}, shared by {network.sharing}; "
        f"{format_count(topology.switches)} switches of up to "
        f"{format_count(topology.ports)} ports",
    )


def _print_steps(out: "Console", found: SimulationReport, plot: bool) -> None:
    from jaxdist.launch.terminal.console import console_glyphs, make_table, print_table

    heads = ("steps", "ms each", "φ", "messages", "largest")
    rows = make_table(*heads, *[""] * plot, right=heads[1:])
    alike = list(_equal_step_runs(found.steps))
    longest = max(((b - a + 1) * phase.seconds for a, b, phase in alike), default=0)
    for first, last, phase in alike[:_MAX_ROWS]:
        whole = (last - first + 1) * phase.seconds
        bar = (
            console_glyphs(out).predicted_bar * round(_BAR_WIDTH * whole / longest)
            if longest
            else ""
        )
        rows.add_row(
            f"{first}" if first == last else f"{first}-{last}",
            f"{1e3 * phase.seconds:.4g}",
            format_count(phase.phi),
            format_count(phase.messages),
            format_size(phase.bytes),
            *[bar] * plot,
        )
    print_table(out, rows)
    if len(alike) > _MAX_ROWS:
        out.print(f"  {len(alike) - _MAX_ROWS} more rows; all are in --json\n")


def _print_collectives(out: "Console", found: SimulationReport) -> None:
    from jaxdist.launch.terminal.console import make_table, print_table

    rows = make_table("collective", "ms", right=("ms",))
    for name, seconds in found.each[:_MAX_ROWS]:
        rows.add_row(name, f"{1e3 * seconds:.6g}")
    print_table(out, rows)


def _print_candidates(out: "Console", found: SimulationReport) -> None:
    from jaxdist.launch.terminal.console import make_table, print_table

    heads = ("ms", "φ", "of bound")
    rows = make_table("list", "placement", *heads, right=heads)
    for one in found.candidates[:8]:
        took = one.simulation.seconds
        rows.add_row(
            one.schedule.name + f", {one.per_host} a host" * bool(one.per_host),
            one.placement,
            f"{1e3 * took:.6g}",
            format_count(one.simulation.phi_max),
            format_percent(took / found.lower_bound_s) if found.lower_bound_s else "-",
        )
    print_table(out, rows)


def _best_candidate(found: SimulationReport) -> dict[str, Any]:
    best = found.candidates[0]
    return {
        "algorithm": best.schedule.name,
        "per_host": best.per_host,
        "place": best.placement,
        "devices": best.devices.tolist() if best.placement == "swapped" else None,
        "seconds": best.simulation.seconds,
        "phi_max": best.simulation.phi_max,
        "tried": len(found.candidates),
    }


def _equal_step_runs(
    phases: tuple[SimulatedStep, ...],
) -> Iterator[tuple[int, int, SimulatedStep]]:
    """Yield runs of steps that are the same: first, last, and one of them."""
    at = 1
    for phase, run in groupby(phases):
        many = sum(1 for _ in run)
        yield at, at + many - 1, phase
        at += many


def _next_commands(found: SimulationReport) -> tuple[str, ...]:
    words = found.command
    if found.candidates:
        best = found.candidates[0]
        name, place = best.schedule.name, best.placement
        hosts = f" --per-host {best.per_host}" * bool(best.per_host)
        swapped = ",".join(map(str, best.devices.tolist()))
        usual = place == "in_order"
        where = f" --place {swapped if place == 'swapped' else place}" * (not usual)
        plain = f"{words.split(' --algorithm ')[0]}"
        rest = words.split(f" --algorithm {found.schedule}")[1]
        return (f"jaxdist simulate {plain} --algorithm {name}{rest}{hosts}{where}",)
    other = "ring" if found.schedule != "ring" else "halving_doubling"
    swapped = words.replace(f"--algorithm {found.schedule}", f"--algorithm {other}")
    able = found.density is None and not found.each
    better = (f"jaxdist simulate {words} --mitigate",) if able else ()
    return (f"jaxdist simulate {swapped}", *better)
