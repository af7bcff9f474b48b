"""Simulations: what `jaxdist simulate` was asked for, read and run."""

import math
import shlex
from argparse import Namespace
from dataclasses import dataclass

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.network.concurrent import (
    PACES,
    CollectiveMessages,
    halos,
    of_list,
    run_together,
)
from jaxdist.network.contention_search import ContentionCandidate, mitigate
from jaxdist.network.lower_bound import nic_bound
from jaxdist.network.placement import placement
from jaxdist.network.platforms.read import find
from jaxdist.network.protocol_overheads import factors
from jaxdist.network.routes import IntArray
from jaxdist.network.schedules_by_name import TWO_LEVEL, step_list
from jaxdist.network.simulate import NetworkModel, SimulatedStep, placed, simulate
from jaxdist.network.sparse import SparseEncoding
from jaxdist.network.sparse_runs import of_sparse_list, simulate_sparse

_MOST_MIB = 1 << 30
_SWAPS = 64
"""Exchanges that are tried where a simulation takes few messages."""


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """A simulation with what it is of."""

    algorithm: str
    """Name of the step list."""
    title: str
    """The list with what was asked of it."""
    ranks: int
    """P."""
    bytes: float
    """Of the array that every rank has."""
    density: float | None
    """Part of its numbers that are entries; None where all are sent."""
    place: str
    """Placement, as it was asked for."""
    pace: str
    """`steps` or `ranks`."""
    network: NetworkModel
    """Topology, factors and sharing."""
    seconds: float
    """Until the last rank has the sum."""
    phi: int
    """Most messages on one link."""
    phases: tuple[SimulatedStep, ...]
    """A row a step, where all ranks go from step to step together."""
    each: tuple[tuple[str, float], ...]
    """Seconds of each collective, where there are several at once."""
    tried: tuple[ContentionCandidate, ...]
    """Ways with less contention, best first, where they were asked for."""
    bound: float
    """Seconds that no step list passes under, for the links of the devices."""
    words: str
    """The command behind `jaxdist simulate`, without what draws or prints."""


def answer(args: Namespace) -> SimulationReport:
    """Simulate what was asked for.

    Raises:
        BadInput: something of it cannot be.
    """
    settings = dict(_setting(word) for word in args.settings)
    size, ranks = _bytes(args.mib, "--mib"), _ranks(args.ranks)
    found = find(args.topology, ranks, settings)
    rule = args.sharing or ("rtt" if args.factors == "smpi" else "maxmin")
    network = NetworkModel(topology=found, factors=factors(args.factors), sharing=rule)
    if args.pace not in PACES:
        near = did_you_mean(args.pace, PACES)
        raise BadInput(
            f"no pace named {args.pace}",
            rule=f"--pace is one of {', '.join(PACES)}",
            remedy=f"did you mean {near}?" if near else "--pace steps",
        )
    group = _group(args.group, ranks)
    steps = step_list(args.algorithm, group, _hosts(args, network, group))
    devices = placed(ranks, found, placement(args.place, ranks, found))
    entries = None if args.density is None else SparseEncoding(density=args.density)
    seconds, phi, phases, each = _run(args, steps, size, network, devices, entries)
    return SimulationReport(
        algorithm=steps.name,
        title=_title(args, steps),
        ranks=ranks,
        bytes=size,
        density=args.density,
        place=args.place,
        pace=args.pace,
        network=network,
        seconds=seconds,
        phi=phi,
        phases=phases,
        each=each,
        tried=_tried(args, size, network),
        bound=nic_bound(found, group, size),
        words=_words(args),
    )


_RunResult = tuple[float, int, tuple[SimulatedStep, ...], tuple[tuple[str, float], ...]]


def _run(
    args: Namespace,
    steps: CollectiveSchedule,
    size: float,
    network: NetworkModel,
    devices: IntArray,
    entries: SparseEncoding | None,
) -> _RunResult:
    if args.group is None and args.halo_mib is None and args.pace == "steps":
        alone = (
            simulate(steps, size, network, devices)
            if entries is None
            else simulate_sparse(steps, size, network, entries, devices)
        )
        return alone.seconds, alone.phi_max, alone.phases, ()
    found = _several(args, steps, size, network, devices, entries)
    outcome = run_together(found, network, args.pace)
    names = [one.name for one in found]
    each = tuple(zip(names, outcome.each)) if len(names) > 1 else ()
    return outcome.seconds, outcome.phi, (), each


def _several(
    args: Namespace,
    steps: CollectiveSchedule,
    size: float,
    network: NetworkModel,
    devices: IntArray,
    entries: SparseEncoding | None,
) -> list[CollectiveMessages]:
    """Return the sums of all groups, and the halos beside them."""
    topology = network.topology
    groups = devices.reshape(-1, steps.ranks)
    found = [
        of_list(steps, size, group, topology.reducing)
        if entries is None
        else of_sparse_list(steps, size, topology, entries, group)
        for group in groups
    ]
    if args.halo_mib is not None:
        found.append(halos(devices, _bytes(args.halo_mib, "--halo-mib")))
    return found


def _tried(
    args: Namespace, size: float, network: NetworkModel
) -> tuple[ContentionCandidate, ...]:
    if not args.mitigate:
        return ()
    for option in ("density", "group", "halo_mib"):
        if getattr(args, option) is not None:
            name = "--" + option.replace("_", "-")
            raise BadInput(
                f"--mitigate does not know {name}",
                rule="ways are searched for one dense sum over all ranks",
                values=f"{name} {getattr(args, option)}",
                remedy=f"--mitigate without {name}",
            )
    swaps = _SWAPS if args.ranks <= 32 else 0
    return tuple(mitigate(args.ranks, size, network, swaps))


def _hosts(args: Namespace, network: NetworkModel, group: int) -> int | None:
    """Return the ranks of a host: as asked for, or those of the platform."""
    own = network.topology.per_host
    two = args.algorithm.replace("-", "_") in TWO_LEVEL
    if args.per_host is None and two and own > 1 and group % own == 0:
        return own
    return int(args.per_host) if args.per_host is not None else None


def _group(group: int | None, ranks: int) -> int:
    if group is None:
        return ranks
    if group < 1 or ranks % group:
        sizes = [s for s in range(1, ranks + 1) if ranks % s == 0]
        near = min(sizes, key=lambda size: abs(size - group))
        raise BadInput(
            f"{ranks:,} ranks do not make groups of {group}",
            rule="the ranks of a group divide all ranks",
            values=f"--ranks {ranks} --group {group}",
            remedy=f"--group {near}",
        )
    return group


def _title(args: Namespace, steps: CollectiveSchedule) -> str:
    parts = [steps.name]
    if args.group is not None:
        parts.append(f"{args.ranks // args.group} groups of {args.group} at once")
    if args.halo_mib is not None:
        parts.append(f"halos of {args.halo_mib:g} MiB beside it")
    if args.density is not None:
        parts.append(f"density {args.density:g}")
    return ", ".join(parts)


def _words(args: Namespace) -> str:
    """Write the command again, with what was left to defaults."""
    plain = {"factors": "ideal", "pace": "steps", "place": "in_order"}
    given = [
        ("algorithm", args.algorithm.replace("-", "_")),
        ("topology", args.topology),
        ("ranks", args.ranks),
        ("mib", f"{args.mib:g}"),
        ("sharing", args.sharing),
        *(
            (key, getattr(args, key))
            for key, usual in plain.items()
            if getattr(args, key) != usual
        ),
        ("per-host", args.per_host),
        ("density", args.density),
        ("group", args.group),
        ("halo-mib", args.halo_mib),
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


def _bytes(mib: float, option: str) -> float:
    if not (math.isfinite(mib) and 0 < mib <= _MOST_MIB):
        raise BadInput(
            f"no array has {mib:g} MiB",
            rule="a size is above 0 and at most 1 PiB",
            values=f"{option} {mib:g}",
            remedy=f"{option} 64",
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
