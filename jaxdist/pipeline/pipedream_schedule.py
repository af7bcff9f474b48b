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
from collections.abc import Sequence

from jaxdist.core.errors import BadInput
from jaxdist.pipeline.async_schedule import AsyncSchedule
from jaxdist.pipeline.schedule_base import (
    Supersteps,
    WorkItem,
    backward,
    dependencies,
    exchange_every_tick,
    forward,
    lockstep_ticks,
)
from jaxdist.pipeline.sync_schedule import warmup_then_1f1b


def max_in_flight(replicas: Sequence[int], stage: int) -> int:
    """Return K_s, how many microbatches a device of a stage holds at most.

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
    """Return the schedule of PipeDream, 1F1B-RR.

    A forward reads the newest version that its stage has, max(0, m // R_s - K_s + 1);
    with one replica a stage that is max(0, m - (S - 1 - s)).

    Args:
        replicas: devices of each stage, R.
        microbatches: M; PipeDream calls them minibatches.
        stashing: a backward reads the version of its forward; without it the newest
            one, m // R_s, which makes no true gradient and serves for comparison.
        vertical_sync: a microbatch reads the same weights on all stages: on each the
            newest version that has seen no more microbatches than stage 0's had.

    Raises:
        BadInput: no stages or devices, a round that is not full, or vertical sync
            without stashing.

    >>> made = pipedream((1, 1, 1, 1), 8)
    >>> made.forward_versions[0], made.update_ticks[3][:3]
    ((0, 0, 0, 0, 1, 2, 3, 4), (4, 6, 8))
    """
    supersteps = _one_f_one_b_rr(
        replicas,
        microbatches,
        math.lcm(*replicas),
        f"replicas={','.join(map(str, replicas))}",
    )
    if vertical_sync and not stashing:
        raise BadInput(
            "vertical sync without stashing",
            rule="versions that a microbatch takes along have to be kept for it",
            values="stashing=False, vertical_sync=True",
            remedy="stashing=True or vertical_sync=False",
        )

    # When a device starts on a microbatch, it has just done the one K_s before.
    # By formula, not read off the ticks: so ticks can be held against it.
    micros = range(microbatches)
    ahead = [max_in_flight(replicas, s) - 1 for s in range(len(replicas))]
    versions = tuple(
        tuple(max(0, m // size - rounds) for m in micros)
        for size, rounds in zip(replicas, ahead, strict=True)
    )
    if vertical_sync:
        # In microbatches seen, stages of other sizes count their rounds differently.
        seen = [version * replicas[0] for version in versions[0]]
        versions = tuple(tuple(n // size for n in seen) for size in replicas)
    # Before its own update, a stage has applied the rounds before that of the
    # microbatch.
    newest = tuple(tuple(m // size for m in micros) for size in replicas)
    return AsyncSchedule(
        name="pipedream"
        + ("" if stashing else " without stashing")
        + (" in sync" if vertical_sync else ""),
        replicas=tuple(replicas),
        microbatches=microbatches,
        update_microbatches=tuple(replicas),
        supersteps=supersteps,
        forward_versions=versions,
        backward_versions=versions if stashing else newest,
    )


def pipedream_2bw(stages: int, microbatches: int, group: int) -> AsyncSchedule:
    """Return the schedule of PipeDream-2BW: two versions, one update a group.

    All stages read version max(0, m // group - 1), so every gradient is one update old:
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
    if stages > 0 and group < stages:
        raise BadInput(
            "too few microbatches in an update for two versions",
            rule="group is at least the number of stages",
            values=f"group={group}, stages={stages}",
            remedy=f"group={stages}",
        )
    supersteps = _one_f_one_b_rr((1,) * stages, microbatches, group, f"group={group}")
    versions = tuple(max(0, m // group - 1) for m in range(microbatches))
    return AsyncSchedule(
        name="pipedream-2bw",
        replicas=(1,) * stages,
        microbatches=microbatches,
        update_microbatches=(group,) * stages,
        supersteps=supersteps,
        forward_versions=(versions,) * stages,
        backward_versions=(versions,) * stages,
    )


def _one_f_one_b_rr(
    replicas: Sequence[int], microbatches: int, update_size: int, given: str
) -> Supersteps:
    """Return 1F1B on all replicas, where a round of a stage waits for earlier rounds.

    Args:
        replicas: devices of each stage.
        microbatches: number of microbatches.
        update_size: microbatches that make whole updates of all stages.
        given: the setting behind `update_size`, for the error.
    """
    if not replicas or min(replicas) < 1:
        mended = [max(1, r) for r in replicas] or [1]
        raise BadInput(
            "a pipeline with a stage that nobody works on",
            rule="there is at least one stage, and each has at least one device",
            values=f"replicas={','.join(map(str, replicas))}",
            remedy=f"replicas={','.join(map(str, mended))}",
        )
    rest = microbatches % update_size
    if microbatches < 1 or rest:
        below, above = microbatches - rest, microbatches - rest + update_size
        near = [f"microbatches={n}" for n in (below, above) if n > 0]
        raise BadInput(
            "the last update would lack microbatches",
            rule=f"microbatches is a multiple of {update_size}: of the microbatches "
            "that each stage takes the mean of",
            values=f"microbatches={microbatches}, {given}",
            remedy=" or ".join(near),
        )

    in_flight = [max_in_flight(replicas, stage) for stage in range(len(replicas))]
    orders = []
    for stage, count in enumerate(replicas):
        for replica in range(count):
            own = range(replica, microbatches, count)
            orders.append(
                warmup_then_1f1b(
                    [forward(stage, micro) for micro in own],
                    [backward(stage, micro) for micro in own],
                    warmup=in_flight[stage] - 1,
                )
            )

    def waits_for(work: WorkItem) -> tuple[WorkItem, ...]:
        # The mean of a round is taken over all replicas at once, so a forward needs
        # every backward of the round K_s before, a backward those of the last round.
        # Else the version that a forward finds would be a matter of timing.
        size = replicas[work.stage]
        rounds = in_flight[work.stage] if work.kind == "forward" else 1
        first = (work.microbatch // size - rounds) * size
        round_ = range(first, first + size) if first >= 0 else ()
        before = tuple(backward(work.stage, micro) for micro in round_)
        return (*dependencies(work, len(replicas)), *before)

    return exchange_every_tick(lockstep_ticks(orders, waits_for))
