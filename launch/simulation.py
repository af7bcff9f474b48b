"""Simulations: what `jaxdist simulate` was asked for, answered and laid out."""

import math
import shlex
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.core.units import count, percent, size
from jaxdist.network.bound import nic_bound
from jaxdist.network.factors import factors
from jaxdist.network.lists import TWO_LEVEL, step_list
from jaxdist.network.platforms.read import find
from jaxdist.network.simulate import Network, Simulation, simulate

if TYPE_CHECKING:
    from rich.console import Console

_ROWS = 24
_BAR = 30
_MOST_MIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A simulation with what it is of."""

    algorithm: str
    """Name of the step list."""
    ranks: int
    """P."""
    bytes: float
    """Of the array that every rank has."""
    network: Network
    """Topology, factors and sharing."""
    simulation: Simulation
    """What came out."""
    bound: float
    """Seconds that no step list passes under, for the links of the devices."""
    words: str
    """The command behind `jaxdist simulate`, without what draws or prints."""


def answer(args: Namespace) -> Answer:
    """Simulate what was asked for.

    Raises:
        BadInput: something of it cannot be.
    """
    settings = dict(_setting(word) for word in args.settings)
    bytes_ = _bytes(args.mib)
    found = find(args.topology, _ranks(args.ranks), settings)
    rule = args.sharing or ("rtt" if args.factors == "smpi" else "maxmin")
    network = Network(topology=found, factors=factors(args.factors), sharing=rule)
    hosts = args.per_host
    if hosts is None and found.per_host > 1 and _is_two_level(args.algorithm):
        hosts = found.per_host
    steps = step_list(args.algorithm, args.ranks, hosts)
    return Answer(
        algorithm=steps.name,
        ranks=args.ranks,
        bytes=bytes_,
        network=network,
        simulation=simulate(steps, bytes_, network),
        bound=nic_bound(found, args.ranks, bytes_),
        words=_words(args),
    )


def tree(found: Answer) -> dict[str, Any]:
    """Return an answer as one object; seconds and bytes are the units."""
    simulation, topology = found.simulation, found.network.topology
    return {
        "algorithm": found.algorithm,
        "topology": topology.name,
        "ranks": found.ranks,
        "bytes": found.bytes,
        "sharing": found.network.sharing,
        "factors": found.network.factors.name,
        "seconds": simulation.seconds,
        "phi_max": simulation.phi_max,
        "bound_s": found.bound,
        "ports": topology.ports,
        "switches": topology.switches,
        "phases": [asdict(phase) for phase in simulation.phases],
    }


def print_answer(out: "Console", found: Answer, *, plot: bool) -> None:
    """Print the finding, steps that are alike as one row, and what to try next."""
    from jaxdist.launch.console import marks, print_next, print_table, table

    simulation, topology = found.simulation, found.network.topology
    out.print(f"{found.algorithm} on {topology.name}, {count(found.ranks)} ranks\n")
    for name, fact in _facts(found):
        out.print(f"  {name:8} {fact}", soft_wrap=True)
    out.print()
    heads = ("steps", "ms each", "φ", "messages", "largest")
    rows = table(*heads, *[""] * plot, right=heads[1:])
    alike = list(_alike(simulation))
    longest = max((last - first + 1) * p.seconds for first, last, p in alike or _NONE)
    for first, last, phase in alike[:_ROWS]:
        whole = (last - first + 1) * phase.seconds
        bar = marks(out).predicted * round(_BAR * whole / longest) if longest else ""
        rows.add_row(
            f"{first}" if first == last else f"{first}-{last}",
            f"{1e3 * phase.seconds:.4g}",
            count(phase.phi),
            count(phase.messages),
            size(phase.bytes),
            *[bar] * plot,
        )
    print_table(out, rows)
    if len(alike) > _ROWS:
        out.print(f"  {len(alike) - _ROWS} more rows; all are in --json\n")
    print_next(out, *_next(found))


_NONE = [(0, 0, None)]


def _facts(found: Answer) -> Iterator[tuple[str, str]]:
    simulation, network = found.simulation, found.network
    topology = network.topology
    share = percent(found.bound / simulation.seconds) if simulation.seconds else "-"
    yield "time", f"{1e3 * simulation.seconds:.6g} ms for {size(found.bytes)}"
    yield (
        "bound",
        f"{1e3 * found.bound:.6g} ms by the links of devices alone: {share} of it used",
    )
    yield "meeting", f"φ = {simulation.phi_max}: messages on the busiest link"
    yield (
        "links",
        f"{network.factors.name}, shared by {network.sharing}; "
        f"{count(topology.switches)} switches of up to {count(topology.ports)} ports",
    )


def _alike(simulation: Simulation) -> Iterator[tuple[int, int, Any]]:
    """Yield runs of steps that are the same: first, last, and one of them."""
    at = 1
    for phase, run in groupby(simulation.phases):
        many = sum(1 for _ in run)
        yield at, at + many - 1, phase
        at += many


def _next(found: Answer) -> tuple[str, ...]:
    words = found.words
    other = "ring" if found.algorithm != "ring" else "halving_doubling"
    swapped = words.replace(f"--algorithm {found.algorithm}", f"--algorithm {other}")
    return (f"jaxdist simulate {swapped}", f"jaxdist simulate {words} --plot")


def _words(args: Namespace) -> str:
    """Write the command again, with what was left to defaults."""
    given = [
        ("algorithm", args.algorithm.replace("-", "_")),
        ("topology", args.topology),
        ("ranks", args.ranks),
        ("mib", f"{args.mib:g}"),
        ("sharing", args.sharing),
        ("factors", args.factors if args.factors != "ideal" else None),
        ("per-host", args.per_host),
    ]
    options = [f"--{key} {shlex.quote(str(v))}" for key, v in given if v is not None]
    return " ".join((args.collective, *args.settings, *options))


def _setting(word: str) -> tuple[str, str]:
    key, sign, value = word.partition("=")
    if not (key and sign and value):
        raise BadInput(
            f"{word} is no setting",
            rule="a setting of the topology is key=value",
            values=word,
            remedy="per_leaf=32",
        )
    return key, value


def _bytes(mib: float) -> float:
    if not (math.isfinite(mib) and 0 < mib <= _MOST_MIB):
        raise BadInput(
            f"no array has {mib:g} MiB",
            rule="a size is above 0 and at most 1 PiB",
            values=f"--mib {mib:g}",
            remedy="--mib 64",
        )
    return mib * 2**20


def _ranks(ranks: int) -> int:
    if ranks < 1:
        raise BadInput(
            "a sum needs a rank",
            rule="the number of ranks is at least 1",
            values=f"--ranks {ranks}",
            remedy="--ranks 64",
        )
    return ranks


def _is_two_level(name: str) -> bool:
    return name.replace("-", "_") in TWO_LEVEL
