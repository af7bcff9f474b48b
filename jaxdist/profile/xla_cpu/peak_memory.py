"""Peak memory: the bytes of a program's temporary arrays at the moment of most.

Kernels run breadth first, as XLA's CPU backend schedules them: each as soon as what it
reads is there, in the order in which that happens. So what a backward pass needs of a
forward pass alone (a copy with its dims in another order, a mean taken away) is made
during the forward pass, and kept.

    peak = max over kernels of  arrays made and still to be read + workspace of a loop

A donated argument that is still read after its new value may be written is copied, and
its buffer is then free for other arrays until the new value comes.

Source: BFScheduler of xla/service/hlo_memory_scheduler.cc; buffer assignments.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.extend.core import Jaxpr

from jaxdist.profile.flat_jaxpr import ArrayId, FlatOp, FlatProgram, flatten_jaxpr
from jaxdist.profile.xla_cpu.fusion_groups import (
    ELEMENTWISE,
    INPUT_OPS,
    LOOP_FUSIBLE,
    find_fusion_groups,
    op_users,
    remove_views,
)
from jaxdist.profile.xla_cpu.xla_rewrites import (
    ancestor_masks,
    apply_xla_rewrites,
    scan_counts,
)

_IN_PLACE = ELEMENTWISE | {
    "while",
    "scan",
    "cond",
    "dynamic_update_slice",
    "scatter",
    "scatter-add",
}
_MIN_REUSE_BYTES = 256
"""Bytes below which an array gets no freed buffer."""


@dataclass(frozen=True, kw_only=True)
class _FreedBuffer:
    """The buffer of a donated argument that was copied."""

    nbytes: int
    """Its size."""
    copy: int
    """The operation after which it is free."""
    new_value: ArrayId
    """The result that is written there in the end."""


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
        donated_args: arguments whose buffers results take: positions of both.
    """
    flat = flatten_jaxpr(jaxpr)
    apply_xla_rewrites(flat)
    remove_views(flat)
    # Before fusion: a copy is an operation of its own and changes what is fused.
    buffers = _copy_donated(flat, donated_args)
    live = _liveness(flat)
    placed = {*flat.outs, *_assign_freed_buffers(flat, live, buffers)}
    return _peak_bytes(flat, live, placed, ())


def _copy_donated(
    flat: FlatProgram, donated: Sequence[tuple[int, int]]
) -> list[_FreedBuffer]:
    """Copy donated arguments that may be read after they were overwritten."""
    readers = op_users(flat)
    marked = sorted(
        {n for arg, _ in donated for n in readers.get(flat.args[arg][0], ())}
    )
    bits = {number: 1 << k for k, number in enumerate(marked)}
    needs = ancestor_masks(flat, marked)
    freed = []
    for arg, out in donated:
        old, new = flat.args[arg], flat.outs[out]
        alike = flat.array_type(old).nbytes == flat.array_type(new).nbytes
        if old == new or not alike or old[0] not in readers:
            continue
        # No copy where the new value depends on every reader: they all ran before.
        if all(needs[new[0]] & bits[number] for number in readers[old[0]]):
            continue
        copy = flat.append_op("copied", [old], flat.array_type(old))
        for number in readers[old[0]]:
            op = flat.ops[number]
            op.ins = [(copy, 0) if v == old else v for v in op.ins]
        size = flat.array_type(old).nbytes
        freed.append(_FreedBuffer(nbytes=size, copy=copy, new_value=new))
    return freed


def _liveness(flat: FlatProgram) -> _Liveness:
    """Schedule a program's kernels breadth first, and time its arrays."""
    reads = find_fusion_groups(flat)
    needs = {number: {v[0] for v in values} for number, values in reads.items()}
    waiting: dict[int, list[int]] = {number: [] for number in reads}
    for number in sorted(reads):
        for each in needs[number]:
            waiting[each].append(number)
    missing = {number: len(found) for number, found in needs.items()}
    # In the order of the program where several are ready at once.
    ready = deque(number for number in sorted(reads) if not needs[number])
    order: list[int] = []
    while ready:
        order.append(ready.popleft())
        for number in waiting[order[-1]]:
            missing[number] -= 1
            if not missing[number]:
                ready.append(number)

    made = {
        (number, k): turn
        for turn, number in enumerate(order)
        # Results that nobody reads die in the turn that makes them.
        for k in range(len(flat.ops[number].outs))
    }
    last = dict(made)
    for turn, number in enumerate(order):
        last |= dict.fromkeys(reads[number], turn)
    return _Liveness(order=tuple(order), defined_at=made, last_use=last)


def _assign_freed_buffers(
    flat: FlatProgram, live: _Liveness, buffers: Sequence[_FreedBuffer]
) -> list[ArrayId]:
    """Return the arrays that fit into freed buffers, the largest first."""
    size = {v: flat.array_type(v).nbytes for v in live.defined_at}
    turn = {number: k for k, number in enumerate(live.order)}
    # The smallest buffer first, so that each array takes the tightest that holds it.
    free: list[tuple[_FreedBuffer, list[tuple[int, int]]]] = [
        (buffer, []) for buffer in sorted(buffers, key=lambda each: each.nbytes)
    ]
    found, returned = [], set(flat.outs)
    for value in sorted(size, key=lambda v: -size[v]):
        name = flat.ops[value[0]].name
        if name in INPUT_OPS or size[value] < _MIN_REUSE_BYTES or value in returned:
            continue
        made, last = live.defined_at[value], live.last_use[value]
        for buffer, taken in free:
            if size[value] > buffer.nbytes or buffer.copy not in turn:
                continue
            # Between the copy and the new value, where nothing else is in it.
            inside = turn[buffer.copy] < made and last <= turn[buffer.new_value[0]]
            if inside and all(last < a or made > b for a, b in taken):
                taken.append((made, last))
                found.append(value)
                break
    return found


def _peak_bytes(
    flat: FlatProgram,
    live: _Liveness,
    placed: set[ArrayId],
    carried: Sequence[ArrayId],
) -> int:
    """Return the bytes of the moment of most, without those that are carried.

    Args:
        flat: the program.
        live: when its arrays are made and read.
        placed: arrays that have a buffer elsewhere.
        carried: arguments whose buffers are free once they have been read.
    """
    # Carried arguments are in memory at the start and may be overwritten; others belong
    # to the caller.
    sizes = {v: flat.array_type(v).nbytes for v in carried if v in live.last_use}
    start = now = most = sum(sizes.values())
    returned = set(flat.outs)
    ends: dict[int, list[ArrayId]] = {}
    for value, turn in live.last_use.items():
        # Results live until the end.
        if value not in returned:
            ends.setdefault(turn, []).append(value)
    for turn, number in enumerate(live.order):
        op = flat.ops[number]
        if op.name not in INPUT_OPS:
            dying = [sizes[v] for v in ends.get(turn, ()) if sizes.get(v)]
            made = [
                0 if (number, k) in placed else out.nbytes
                for k, out in enumerate(op.outs)
            ]
            sizes |= {(number, k): size for k, size in enumerate(made)}
            now += sum(made)
            in_place = 0
            if op.name in _IN_PLACE:
                # A result takes the buffer of an operand that is read here last.
                for size in made:
                    if size and size in dying:
                        dying.remove(size)
                        in_place += size
            # Of a conditional one branch runs: the larger counts.
            inside = max((_body_bytes(op, body) for body in op.bodies), default=0)
            most = max(most, now - in_place + inside)
        now -= sum(sizes.pop(v, 0) for v in ends.get(turn, ()))
    return most - start


def _body_bytes(op: FlatOp, flat: FlatProgram) -> int:
    """Return the bytes that a loop's body needs beside what the loop carries."""
    args, outs = flat.args, flat.outs
    apply_xla_rewrites(flat)
    remove_views(flat)
    carried: Sequence[ArrayId] = ()
    placed = set(flat.outs)
    if op.name == "scan":
        first, many = scan_counts(op.params)
        carried = args[first : first + many]
        # A fused kernel writes its row into the stacked result itself.
        stacked = set(flat.outs[many:]) - set(flat.outs[:many])
        placed = {v for v in stacked if flat.ops[v[0]].name in LOOP_FUSIBLE}
    elif op.name == "while":
        carried, placed = args[-len(outs) :], set()
    return _peak_bytes(flat, _liveness(flat), placed, carried)
