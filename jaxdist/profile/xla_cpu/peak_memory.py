"""The heap: the bytes of a program's temporary arrays at the moment of most.

Kernels run breadth first, as XLA's CPU backend schedules them: each as soon as what it
reads is there, in the order in which that happens. So what a backward pass needs of a
forward pass alone (a copy with its dims in another order, a mean taken away) is made
during the forward pass, and kept.

    peak = max over kernels of  arrays made and still to be read + workspace of a loop

A donated argument that is still read after its new value may be written is copied, and
its place is then free for other arrays until the new value comes.

Source: BFScheduler of xla/service/hlo_memory_scheduler.cc; buffer assignments.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.core import Jaxpr

from jaxdist.profile.flat_jaxpr import ArrayId, FlatOp, FlatProgram, flatten_jaxpr
from jaxdist.profile.xla_cpu.fusion_groups import (
    FusionGroups,
    find_fusion_groups,
    op_users,
    remove_views,
)
from jaxdist.profile.xla_cpu.xla_fusion import ELEMENTWISE, INPUT_OPS
from jaxdist.profile.xla_cpu.xla_rewrites import ancestor_masks, apply_xla_rewrites

_IN_PLACE = ELEMENTWISE | {
    "while",
    "scan",
    "cond",
    "dynamic_update_slice",
    "scatter",
    "scatter-add",
}
_MIN_REUSE_BYTES = 256
"""Bytes below which an array's place is not looked for."""


@dataclass(frozen=True, kw_only=True)
class _FreedBuffer:
    """The place of a donated argument that was copied."""

    nbytes: int
    """Its size."""
    copy: int
    """The operation after which it is free."""
    new_value: ArrayId
    """What is written there in the end."""


@dataclass(frozen=True, kw_only=True)
class _Liveness:
    """When the arrays of a program are made, and read for the last time."""

    order: tuple[int, ...]
    """Kernels as they run."""
    defined_at: Mapping[ArrayId, int]
    """The turn that makes an array."""
    last_use: Mapping[ArrayId, int]
    """The last turn that reads it."""


def peak_temporary_bytes(
    jaxpr: Jaxpr, donated_args: Sequence[tuple[int, int]] = ()
) -> int:
    """Return the bytes of the temporary arrays that a program has at most.

    Arguments and results are not counted.

    Args:
        jaxpr: a traced program of one device.
        donated_args: arguments whose place results take: positions of both.
    """
    flat = flatten_jaxpr(jaxpr)
    _prepare(flat)
    rooms = list(_copy_donated(flat, donated_args))
    kernels = find_fusion_groups(flat)
    times = _liveness(kernels)
    placed = {*flat.outs, *_assign_freed_buffers(kernels, times, rooms)}
    return _peak_bytes(kernels, times, placed, ())


def _body_bytes(op: FlatOp, flat: FlatProgram) -> int:
    """Return the bytes that a loop's body needs beside what the loop carries."""
    args, outs = flat.args, flat.outs
    _prepare(flat)
    carried: Sequence[ArrayId] = ()
    placed = set(flat.outs)
    kernels = find_fusion_groups(flat)
    if op.name == "scan":
        first, many = op.params["num_consts"], op.params["num_carry"]
        carried = args[first : first + many]
        stacked = set(flat.outs[many:]) - set(flat.outs[:many])
        placed = {v for v in stacked if kernels.is_loop_fusion(v[0])}
    elif op.name == "while":
        carried, placed = args[-len(outs) :], set()
    return _peak_bytes(kernels, _liveness(kernels), placed, carried)


def _prepare(flat: FlatProgram) -> None:
    apply_xla_rewrites(flat)
    remove_views(flat)


def _copy_donated(
    flat: FlatProgram, donated: Sequence[tuple[int, int]]
) -> Iterator[_FreedBuffer]:
    """Copy donated arguments that may be read after they were written over."""
    readers = op_users(flat)
    marked = sorted(
        {n for arg, _ in donated for n in readers.get(flat.args[arg][0], ())}
    )
    bits = {number: 1 << k for k, number in enumerate(marked)}
    needs = ancestor_masks(flat, marked)
    for arg, out in donated:
        old, new = flat.args[arg], flat.outs[out]
        alike = flat.array_type(old).nbytes == flat.array_type(new).nbytes
        if old == new or not alike or old[0] not in readers:
            continue
        if all(needs[new[0]] & bits[number] for number in readers[old[0]]):
            continue
        copy = flat.append_op("copied", [old], flat.array_type(old))
        for number in readers[old[0]]:
            op = flat.ops[number]
            op.ins = [(copy, 0) if v == old else v for v in op.ins]
        yield _FreedBuffer(nbytes=flat.array_type(old).nbytes, copy=copy, new_value=new)


def _liveness(kernels: FusionGroups) -> _Liveness:
    """Run kernels breadth first."""
    order = tuple(_breadth_first(kernels.reads))
    turn = {number: k for k, number in enumerate(order)}
    made = {
        (number, k): turn[number]
        for number in order
        for k in range(len(kernels.flat.ops[number].outs))
    }
    last = dict(made)
    for number in order:
        last |= dict.fromkeys(kernels.reads[number], turn[number])
    return _Liveness(order=order, defined_at=made, last_use=last)


def _breadth_first(reads: Mapping[int, Sequence[ArrayId]]) -> Iterator[int]:
    needs = {number: {v[0] for v in values} for number, values in reads.items()}
    waiting: dict[int, list[int]] = {number: [] for number in reads}
    for number in sorted(reads):
        for one in needs[number]:
            waiting[one].append(number)
    ready = deque(number for number in sorted(reads) if not needs[number])
    missing = {number: len(found) for number, found in needs.items()}
    while ready:
        done = ready.popleft()
        yield done
        for number in waiting[done]:
            missing[number] -= 1
            if not missing[number]:
                ready.append(number)


def _assign_freed_buffers(
    kernels: FusionGroups, times: _Liveness, rooms: Sequence[_FreedBuffer]
) -> Iterator[ArrayId]:
    """Yield arrays that find a place where an argument was, the largest first."""
    size = {v: kernels.flat.array_type(v).nbytes for v in times.defined_at}
    turn = {number: k for k, number in enumerate(times.order)}
    returned = set(kernels.outs)
    free: list[tuple[_FreedBuffer, list[tuple[int, int]]]] = [
        (room, []) for room in sorted(rooms, key=lambda room: room.nbytes)
    ]
    for value in sorted(size, key=lambda v: -size[v]):
        name = kernels.flat.ops[value[0]].name
        if name in INPUT_OPS or size[value] < _MIN_REUSE_BYTES or value in returned:
            continue
        made, last = times.defined_at[value], times.last_use[value]
        for room, taken in free:
            if size[value] > room.nbytes or room.copy not in turn:
                continue
            inside = turn[room.copy] < made and last <= turn[room.new_value[0]]
            if inside and all(last < a or made > b for a, b in taken):
                taken.append((made, last))
                yield value
                break


def _peak_bytes(
    kernels: FusionGroups,
    times: _Liveness,
    placed: set[ArrayId],
    carried: Sequence[ArrayId],
) -> int:
    """Return the bytes of the moment of most, without those that are carried.

    Args:
        kernels: of the program.
        times: of its arrays.
        placed: arrays that have a place elsewhere.
        carried: arguments whose places are free once they have been read.
    """
    flat, returned = kernels.flat, set(kernels.outs)
    live = {v: flat.array_type(v).nbytes for v in carried if v in times.last_use}
    start = now = most = sum(live.values())
    ends: dict[int, list[ArrayId]] = {}
    for value, turn in times.last_use.items():
        if value not in returned:
            ends.setdefault(turn, []).append(value)
    for turn, number in enumerate(times.order):
        op = flat.ops[number]
        if op.name not in INPUT_OPS:
            dying = [live[v] for v in ends.get(turn, ()) if live.get(v)]
            for k, made in enumerate(op.outs):
                live[number, k] = 0 if (number, k) in placed else made.nbytes
            sizes = [live[number, k] for k in range(len(op.outs))]
            now += sum(sizes)
            inside = max((_body_bytes(op, inner) for inner in op.bodies), default=0)
            most = max(most, now - _in_place_bytes(op, sizes, dying) + inside)
        now -= sum(live.pop(v, 0) for v in ends.get(turn, ()))
    return most - start


def _in_place_bytes(op: FlatOp, made: Sequence[int], dying: Sequence[int]) -> int:
    """Return the bytes that an operation writes where it has just read."""
    if op.name not in _IN_PLACE:
        return 0
    left, found = list(dying), 0
    for size in made:
        if size and size in left:
            left.remove(size)
            found += size
    return found
