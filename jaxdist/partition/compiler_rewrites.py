"""What a compiler may make of a planned collective, by platform, as data.

The audit holds the bytes of a compiled program against a ledger. Compilers of
accelerators send some arrays in other forms than they were written in. Each such form
is a named rewrite with the bytes of both, and the sums must still be exact:

    16 bits     float32 that is rounded to bfloat16 before or after it is sent anyway,
                by the default precision of matrix units, is sent as bfloat16
    as a sum    an all-gather of S bytes is an all-reduce of S with zeros elsewhere; a
                reduce-scatter to S bytes over g devices is an all-reduce of g S, of
                which a device keeps its part
    padded      the parts of a reduce-scatter over g devices are padded by P bytes each;
                a permute of (g - 1) P bytes moves the rows to where they belong

The second is what a compiler does with small arrays, whose latency is all that counts.
With large ones it takes memory and time that the plan does not have: then it is an
error.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from types import MappingProxyType
from typing import Final

from jax.sharding import AbstractMesh, Mesh

from jaxdist.collectives.hlo_collectives import COLLECTIVE_KINDS, CollectiveOp
from jaxdist.partition.traffic import TrafficKey

_PERMUTE: Final = "collective-permute"


@dataclass(frozen=True, kw_only=True)
class CompilerRules:
    """What the compiler of a platform may do to collectives."""

    half_precision: bool = False
    """Whether it may send float32 in 16 bits."""
    sum_bytes: int = 0
    """Bytes a device, for each set of axes, that it may hold in excess because it sums
    where it could gather or scatter."""
    sums_over_all: bool = False
    """Whether a reduce-scatter over all devices becomes an all-reduce of the whole
    array; over some of them it stays what it is."""
    max_gather: int = 0
    """Devices up to which an all-gather over all of them stays one, and is no
    all-reduce of the whole array; 0 sets no bound."""
    pads_parts: bool = False
    """Whether it may pad the parts of a reduce-scatter."""
    lanes: int = 1
    """Numbers of the last dim that lie side by side in memory. A reduce-scatter along
    that dim stays what it is where each part is a multiple of them."""

    def scatter_inner(self, devices: int) -> int:
        """Return how a reduce-scatter over all devices is written in two steps.

        Returns:
            Neighbours of the second step, after one over devices that are so far
            apart; 1 leaves it in one step.

        >>> rules_for("tpu").scatter_inner(64), rules_for("cpu").scatter_inner(64)
        (8, 1)
        """
        return self._inner(devices) if self.sums_over_all else 1

    def gather_inner(self, devices: int) -> int:
        """Return how an all-gather over all devices is written in two steps.

        Returns:
            Neighbours of the first step, before one over devices that are so far apart;
            1 leaves it in one step.

        >>> [rules_for("tpu").gather_inner(n) for n in (32, 64)]
        [1, 8]
        """
        return self._inner(devices) if 0 < self.max_gather < devices else 1

    def _inner(self, devices: int) -> int:
        # The two steps are as alike as divisors allow; a prime number has one step.
        sizes = (n for n in range(2, devices) if devices % n == 0 and n * n >= devices)
        return next(sizes, 1)


NO_REWRITES: Final = CompilerRules()
"""A compiler that sends what was planned, or merges and splits it."""

COMPILER_RULES: Final[Mapping[str, CompilerRules]] = MappingProxyType(
    # A TPU's link sends 1 MiB in about 10 us, a few times the latency of a message.
    {
        "tpu": CompilerRules(
            half_precision=True,
            sum_bytes=2**20,
            sums_over_all=True,
            max_gather=32,
            pads_parts=True,
            lanes=128,
        )
    }
)
"""By the platform of the devices; others have none."""


def rules_for(platform: str) -> CompilerRules:
    """Return what the compiler of a platform may do."""
    return COMPILER_RULES.get(platform, NO_REWRITES)


def mesh_rules(mesh: Mesh | AbstractMesh) -> CompilerRules:
    """Return what the compiler of a mesh's devices may do."""
    # A mesh that is only described has no devices.
    described = isinstance(mesh, AbstractMesh)
    return NO_REWRITES if described else rules_for(mesh.devices.flat[0].platform)


def mesh_platform(mesh: Mesh | AbstractMesh) -> str:
    """Return the platform that a mesh's programs are compiled for: cpu, gpu or tpu."""
    if isinstance(mesh, AbstractMesh):
        device = mesh.abstract_device
        return "cpu" if device is None else str(device.platform)
    return str(mesh.devices.flat[0].platform)


@dataclass(frozen=True, kw_only=True)
class CompilerRewrite:
    """One form in which the compiler sends what was planned in another."""

    name: str
    """What it is: `sent in 16 bits`, `all-gather as all-reduce`."""
    kind: str
    """The planned collective."""
    axes: tuple[str, ...]
    """Axes it runs over."""
    planned: int
    """Payload bytes a device by the plan."""
    program: int
    """Payload bytes a device of the same in the program."""


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """A program's collectives in the forms of the plan."""

    payload: Counter[TrafficKey]
    """Payload bytes a device by kind and axes, with all rewrites undone."""
    rewrites: tuple[CompilerRewrite, ...]
    """What was undone."""


def undo_rewrites(
    collectives: Sequence[CollectiveOp],
    planned: Mapping[TrafficKey, int],
    rules: CompilerRules,
) -> Reconciliation:
    """Undo the rewrites that rules allow, where the plan's bytes are then exact.

    Args:
        collectives: of the compiled program.
        planned: payload bytes a device by kind and axes.
        rules: what the compiler may do.

    Returns:
        The program's bytes; as they are where no rewrites explain them.
    """
    found, half = Counter[TrafficKey](), Counter[TrafficKey]()
    groups: dict[tuple[str, ...], int] = {}
    for move in collectives:
        key = move.kind, move.axes
        found[key] += move.payload
        half[key] += move.half_payload
        groups[move.axes] = move.group_size
    rewrites = [
        *(_undo_padding(collectives, planned, found) if rules.pads_parts else ())
    ]
    for axes, devices in groups.items():
        own = {kind: found[kind, axes] for kind in COLLECTIVE_KINDS}
        wanted = {kind: planned.get((kind, axes), 0) for kind in COLLECTIVE_KINDS}
        # Any of the kinds may be in 16 bits because the plan has them so, or not: as
        # few rewrites as make all sums exact are the ones that happened.
        short = [k for k in COLLECTIVE_KINDS if half[k, axes] and rules.half_precision]
        for widened in chain.from_iterable(
            combinations(short, count) for count in range(len(short) + 1)
        ):
            # What the program sends in 16 bits has twice the bytes in the plan.
            wide = {k: n + half[k, axes] * (k in widened) for k, n in own.items()}
            sums = _find_sums(wide, wanted, devices, rules)
            if sums is None:
                continue
            # Counter.update adds: this sets each sum to what was planned.
            found.update({(k, axes): wanted[k] - n for k, n in own.items()})
            rewrites += [
                _rewrite("sent in 16 bits", k, axes, wide[k], own[k]) for k in widened
            ]
            rewrites += [
                _rewrite(f"{k} as all-reduce", k, axes, before, after)
                for k, (before, after) in sums.items()
            ]
            break
    return Reconciliation(payload=found, rewrites=tuple(rewrites))


def _undo_padding(
    collectives: Sequence[CollectiveOp],
    planned: Mapping[TrafficKey, int],
    found: Counter[TrafficKey],
) -> Iterator[CompilerRewrite]:
    """Yield the reduce-scatters whose parts are padded; in place without permutes."""
    padded = [move for move in collectives if move.padding]
    # A permute is over whole axes, also where the groups are parts of one.
    whole = {tuple(a.partition("[")[0] for a in move.axes) for move in padded}
    for axes in whole:
        own = [m for m in padded if axes == tuple(a.partition("[")[0] for a in m.axes)]
        moved, key = sum((m.group_size - 1) * m.padding for m in own), (_PERMUTE, axes)
        # Permutes that padding does not explain to the byte are left, as a difference.
        if found[key] - planned.get(key, 0) != moved:
            continue
        found[key] -= moved
        for parts in {m.axes for m in own}:
            sent = [m for m in own if m.axes == parts]
            payload = sum(m.payload for m in sent)
            yield _rewrite(
                "padded to whole tiles",
                "reduce-scatter",
                parts,
                payload,
                payload + sum(m.group_size * m.padding for m in sent),
            )


def _find_sums(
    found: Mapping[str, int],
    planned: Mapping[str, int],
    devices: int,
    rules: CompilerRules,
) -> dict[str, tuple[int, int]] | None:
    """Find which bytes of gathers and scatters are in all-reduces over the same axes.

    Args:
        found: payload bytes of the program by kind.
        planned: those of the plan.
        devices: in a group.
        rules: what the compiler may do.

    Returns:
        Bytes as planned and in the program, by kind; None where the two differ in
        another way, or by more than the rules allow.
    """
    gathered, scattered, excess = (
        planned["all-gather"] - found["all-gather"],
        planned["reduce-scatter"] - found["reduce-scatter"],
        found["all-reduce"] - planned["all-reduce"],
    )
    others = ("all-to-all", _PERMUTE)
    is_exact = excess == gathered + devices * scattered
    is_alike = all(found[kind] == planned[kind] for kind in others)
    if min(gathered, scattered) < 0 or not is_exact or not is_alike:
        return None
    # A gather holds as much as the sum and sends half of it; a scatter holds 1/g.
    if gathered + (devices - 1) * scattered > rules.sum_bytes:
        return None
    undone = {
        "all-gather": (gathered, gathered),
        "reduce-scatter": (scattered, devices * scattered),
    }
    return {kind: pair for kind, pair in undone.items() if pair[0]}


def _rewrite(
    name: str, kind: str, axes: tuple[str, ...], planned: int, program: int
) -> CompilerRewrite:
    return CompilerRewrite(
        name=name, kind=kind, axes=axes, planned=planned, program=program
    )
