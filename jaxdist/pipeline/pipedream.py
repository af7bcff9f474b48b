"""PipeDream: 1F1B without a flush, with replicated stages and several weight versions.

S stages, R_s replicas of stage s; microbatch m runs on replica m % R_s, and belongs to
round m // R_s of its stage. A device holds at most

    K_s = ceil((R_s + ... + R_{S-1}) / R_s)

microbatches: it does K_s - 1 forwards, then one forward and one backward in turn. The
mean gradient of a round is applied to all replicas at once; a replica waits for that
before it goes on. (Narayanan et al. 2019, SOSP, arXiv 1806.03377, sections 3.2 and 3.3;
that replicas wait is how the authors' program sums, in the backward itself.)
"""

import math
from collections.abc import Callable, Sequence

from jaxdist.core.errors import BadInput
from jaxdist.pipeline.async_schedule import AsyncSchedule
from jaxdist.pipeline.lockstep import lockstep_ticks
from jaxdist.pipeline.orders import warmup_then_1f1b
from jaxdist.pipeline.work_item import (
    DeviceOrder,
    Ticks,
    WorkItem,
    backward,
    dependencies,
    exchange_every_tick,
    forward,
)

VersionFn = Callable[[int, int], int]
"""The version that a work of (stage, microbatch) takes."""


def max_in_flight(replicas: Sequence[int], stage: int) -> int:
    """Return K_s, the microbatches that a device of a stage holds at most.

    >>> [max_in_flight((2, 1, 1), stage) for stage in range(3)]
    [2, 2, 1]
    """
    return -(-sum(replicas[stage:]) // replicas[stage])


def pipedream(
    replicas: Sequence[int],
    microbatches: int,
    *,
    stashing: bool = True,
    vertical_sync: bool = False,
) -> AsyncSchedule:
    """Return the table of 1F1B-RR.

    A forward takes the newest version that its stage has, max(0, m // R_s - K_s + 1);
    with one replica a stage that is max(0, m - (S - 1 - s)).

    Args:
        replicas: devices of each stage, R.
        microbatches: M; PipeDream calls them minibatches.
        stashing: a backward takes its forward's version; without it the newest one,
            m // R_s, which is no gradient of anything, and there to be compared with.
        vertical_sync: a microbatch takes the same weights on all stages: on each the
            newest version that has seen no more microbatches than stage 0's had.

    Raises:
        BadInput: no stages or devices, a round that is not full, or vertical sync
            without stashing.

    >>> made = pipedream((1, 1, 1, 1), 8)
    >>> made.forward_versions[0], made.update_ticks[3][:3]
    ((0, 0, 0, 0, 1, 2, 3, 4), (4, 6, 8))
    """
    _check_replicas(replicas)
    _check_full_updates(
        microbatches, math.lcm(*replicas), f"replicas={_replica_list(replicas)}"
    )
    _check_stashing(stashing, vertical_sync)
    ahead = (
        _vertical_sync_version(replicas) if vertical_sync else _newest_version(replicas)
    )
    words = ("" if stashing else " without stashing", " in sync" * vertical_sync)
    return _async_schedule(
        "pipedream" + "".join(words),
        replicas,
        microbatches,
        update_microbatches=replicas,
        forward_version=ahead,
        backward_version=ahead
        if stashing
        else lambda stage, micro: micro // replicas[stage],
    )


def pipedream_2bw(stages: int, microbatches: int, group: int) -> AsyncSchedule:
    """Return the table of PipeDream-2BW: two versions, an update a group.

    All stages take version max(0, m // group - 1), so every gradient is one update old:
    W(t + 1) = W(t) - rate g(W(t - 1)) (Narayanan et al. 2021, ICML, arXiv 2006.09503).

    Args:
        stages: S, one device each.
        microbatches: M.
        group: microbatches of an update, at least S.

    Raises:
        BadInput: no stages, a group that is too small or not full.

    >>> made = pipedream_2bw(2, 8, group=2)
    >>> made.forward_versions[0], [made.live_versions(stage) for stage in range(2)]
    ((0, 0, 0, 0, 1, 1, 2, 2), [2, 2])
    """
    replicas = (1,) * stages
    _check_replicas(replicas)
    _check_update_size(group, stages)
    _check_full_updates(microbatches, group, f"group={group}")

    def version(stage: int, micro: int) -> int:
        return max(0, micro // group - 1)

    rounds = (group,) * stages
    return _async_schedule(
        "pipedream-2bw",
        replicas,
        microbatches,
        update_microbatches=rounds,
        forward_version=version,
        backward_version=version,
    )


def _newest_version(replicas: Sequence[int]) -> VersionFn:
    """Say what the stage has when a device is done with the microbatch K_s before."""
    held = [max_in_flight(replicas, stage) for stage in range(len(replicas))]
    return lambda stage, micro: max(0, micro // replicas[stage] - held[stage] + 1)


def _vertical_sync_version(replicas: Sequence[int]) -> VersionFn:
    newest = _newest_version(replicas)
    return lambda stage, micro: newest(0, micro) * replicas[0] // replicas[stage]


def _async_schedule(
    name: str,
    replicas: Sequence[int],
    microbatches: int,
    *,
    update_microbatches: Sequence[int],
    forward_version: VersionFn,
    backward_version: VersionFn,
) -> AsyncSchedule:
    def table(version: VersionFn) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(version(stage, micro) for micro in range(microbatches))
            for stage in range(len(replicas))
        )

    return AsyncSchedule(
        name=name,
        replicas=tuple(replicas),
        microbatches=microbatches,
        update_microbatches=tuple(update_microbatches),
        supersteps=exchange_every_tick(_ticks(replicas, microbatches)),
        forward_versions=table(forward_version),
        backward_versions=table(backward_version),
    )


def _ticks(replicas: Sequence[int], microbatches: int) -> Ticks:
    """Play 1F1B on all replicas; what waits for a round waits for all of its works."""

    def order(stage: int, replica: int) -> DeviceOrder:
        mine = range(replica, microbatches, replicas[stage])
        return warmup_then_1f1b(
            [forward(stage, micro) for micro in mine],
            [backward(stage, micro) for micro in mine],
            warmup=max_in_flight(replicas, stage) - 1,
        )

    def waits_for(work: WorkItem) -> tuple[WorkItem, ...]:
        size = replicas[work.stage]
        late = max_in_flight(replicas, work.stage) if work.kind == "forward" else 1
        first = (work.microbatch // size - late) * size
        round_ = range(first, first + size) if first >= 0 else ()
        before = tuple(backward(work.stage, micro) for micro in round_)
        return (*dependencies(work, len(replicas)), *before)

    lanes = ((stage, r) for stage, count in enumerate(replicas) for r in range(count))
    return lockstep_ticks([order(*lane) for lane in lanes], waits_for)


def _replica_list(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))


def _check_replicas(replicas: Sequence[int]) -> None:
    if not replicas or min(replicas) < 1:
        raise BadInput(
            "a pipeline with a stage that nobody works on",
            rule="there is at least one stage, and each has at least one device",
            values=f"replicas={_replica_list(replicas)}",
            remedy=f"replicas={_replica_list([max(1, r) for r in replicas] or [1])}",
        )


def _check_full_updates(microbatches: int, size: int, given: str) -> None:
    rest = microbatches % size
    if microbatches < 1 or rest:
        below, above = microbatches - rest, microbatches - rest + size
        near = [f"microbatches={n}" for n in (below, above) if n > 0]
        raise BadInput(
            "the last update would lack microbatches",
            rule=f"microbatches is a multiple of {size}: of the microbatches that "
            "each stage takes the mean of",
            values=f"microbatches={microbatches}, {given}",
            remedy=" or ".join(near),
        )


def _check_stashing(stashing: bool, vertical_sync: bool) -> None:
    if vertical_sync and not stashing:
        raise BadInput(
            "vertical sync without stashing",
            rule="versions that a microbatch takes along have to be kept for it",
            values="stashing=False, vertical_sync=True",
            remedy="stashing=True or vertical_sync=False",
        )


def _check_update_size(group: int, stages: int) -> None:
    if group < stages:
        raise BadInput(
            "too few microbatches in an update for two versions",
            rule="group is at least the number of stages",
            values=f"group={group}, stages={stages}",
            remedy=f"group={stages}",
        )
