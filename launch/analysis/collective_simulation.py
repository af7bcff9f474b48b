"""Simulations: what `jaxdist simulate` was asked for, read and run."""

import math
import shlex
from argparse import Namespace
from dataclasses import dataclass

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.network.concurrent import (
    SYNC_MODES,
    CollectiveMessages,
    halo_messages,
    schedule_messages,
    simulate_concurrent,
)
from jaxdist.network.contention_search import ContentionCandidate, minimize_contention
from jaxdist.network.lower_bound import bandwidth_lower_bound
from jaxdist.network.placement import parse_placement
from jaxdist.network.platforms.read import find_topology
from jaxdist.network.protocol_overheads import protocol_overheads
from jaxdist.network.routes import IntArray
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

_MAX_MIB = 1 << 30
_MAX_SWAPS = 64
"""Exchanges that are tried where a simulation takes few messages."""


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """A simulation with what it is of."""

    schedule: str
    """Name of the step list."""
    title: str
    """The list with what was asked of it."""
    ranks: int
    """P."""
    array_bytes: float
    """Of the array that every rank has."""
    density: float | None
    """Part of its numbers that are entries; None where all are sent."""
    placement: str
    """Placement, as it was asked for."""
    sync_mode: str
    """`steps` or `ranks`."""
    network: NetworkModel
    """Topology, factors and sharing."""
    seconds: float
    """Until the last rank has the sum."""
    phi: int
    """Most messages on one link."""
    steps: tuple[SimulatedStep, ...]
    """A row a step, where all ranks go from step to step together."""
    each: tuple[tuple[str, float], ...]
    """Seconds of each collective, where there are several at once."""
    candidates: tuple[ContentionCandidate, ...]
    """Ways with less contention, best first, where they were asked for."""
    lower_bound_s: float
    """Seconds that no step list passes under, for the links of the devices."""
    command: str
    """The command behind `jaxdist simulate`, without what draws or prints."""


def run_simulation(args: Namespace) -> SimulationReport:
    """Simulate what was asked for.

    Raises:
        BadInput: something of it cannot be.
    """
    settings = dict(_parse_setting(word) for word in args.settings)
    size, ranks = _parse_mib(args.mib, "--mib"), _check_ranks(args.ranks)
    found = find_topology(args.topology, ranks, settings)
    rule = args.sharing or ("rtt" if args.factors == "smpi" else "maxmin")
    network = NetworkModel(
        topology=found, overheads=protocol_overheads(args.factors), sharing=rule
    )
    if args.pace not in SYNC_MODES:
        near = did_you_mean(args.pace, SYNC_MODES)
        raise BadInput(
            f"no pace named {args.pace}",
            rule=f"--pace is one of {', '.join(SYNC_MODES)}",
            remedy=f"did you mean {near}?" if near else "--pace steps",
        )
    group = _check_group(args.group, ranks)
    steps = schedule_by_name(args.algorithm, group, _per_host(args, network, group))
    devices = rank_devices(ranks, found, parse_placement(args.place, ranks, found))
    entries = None if args.density is None else SparseEncoding(density=args.density)
    seconds, phi, phases, each = _run(args, steps, size, network, devices, entries)
    return SimulationReport(
        schedule=steps.name,
        title=_title(args, steps),
        ranks=ranks,
        array_bytes=size,
        density=args.density,
        placement=args.place,
        sync_mode=args.pace,
        network=network,
        seconds=seconds,
        phi=phi,
        steps=phases,
        each=each,
        candidates=_contention_candidates(args, size, network),
        lower_bound_s=bandwidth_lower_bound(found, group, size),
        command=_command(args),
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
            simulate_collective(steps, size, network, devices)
            if entries is None
            else simulate_sparse(steps, size, network, entries, devices)
        )
        return alone.seconds, alone.phi_max, alone.steps, ()
    found = _concurrent_messages(args, steps, size, network, devices, entries)
    outcome = simulate_concurrent(found, network, args.pace)
    names = [one.name for one in found]
    each = tuple(zip(names, outcome.each)) if len(names) > 1 else ()
    return outcome.seconds, outcome.phi, (), each


def _concurrent_messages(
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
        schedule_messages(steps, size, group, topology.reduce_s_per_byte)
        if entries is None
        else sparse_schedule_messages(steps, size, topology, entries, group)
        for group in groups
    ]
    if args.halo_mib is not None:
        found.append(halo_messages(devices, _parse_mib(args.halo_mib, "--halo-mib")))
    return found


def _contention_candidates(
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
    swaps = _MAX_SWAPS if args.ranks <= 32 else 0
    return tuple(minimize_contention(args.ranks, size, network, swaps))


def _per_host(args: Namespace, network: NetworkModel, group: int) -> int | None:
    """Return the ranks of a host: as asked for, or those of the platform."""
    own = network.topology.per_host
    two = args.algorithm.replace("-", "_") in TWO_LEVEL_SCHEDULES
    if args.per_host is None and two and own > 1 and group % own == 0:
        return own
    return int(args.per_host) if args.per_host is not None else None


def _check_group(group: int | None, ranks: int) -> int:
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


def _command(args: Namespace) -> str:
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


def _parse_setting(word: str) -> tuple[str, str]:
    key, sign, value = word.partition("=")
    if not (key and sign and value):
        raise BadInput(
            f"{word} is no setting",
            rule="a setting of the topology is key=value",
            values=word,
            remedy="per_leaf=32",
        )
    return key, value


def _parse_mib(mib: float, option: str) -> float:
    if not (math.isfinite(mib) and 0 < mib <= _MAX_MIB):
        raise BadInput(
            f"no array has {mib:g} MiB",
            rule="a size is above 0 and at most 1 PiB",
            values=f"{option} {mib:g}",
            remedy=f"{option} 64",
        )
    return mib * 2**20


def _check_ranks(ranks: int) -> int:
    if ranks < 1:
        raise BadInput(
            "a sum needs a rank",
            rule="the number of ranks is at least 1",
            values=f"--ranks {ranks}",
            remedy="--ranks 64",
        )
    return ranks
