"""Versions: rows of a ring in which a stage keeps its weights, old and new.

Version v of a stage lies in row v % rows. A row is written over when no work that is to
come reads it any more.
"""

from dataclasses import dataclass

import numpy as np

from jaxdist.pipeline.async_schedule import AsyncSchedule
from jaxdist.pipeline.schedule_arrays import NO_ENTRY
from jaxdist.pipeline.stage_placement import replicated_placement
from jaxdist.pipeline.work_item import WorkItem


@dataclass(frozen=True, kw_only=True)
class VersionArrays:
    """What each device does with its weights, int32 [beats, devices] each; a stream's
    beats have a tick each.
    """

    read: np.ndarray
    """Row that its work reads."""
    newest: np.ndarray
    """Row of the newest weights."""
    update: np.ndarray
    """Row that new weights get at the tick's end; `NO_ENTRY` where there are none."""
    begins: np.ndarray
    """1 where its work is the first backward pass of a round that it does; else 0."""
    last: np.ndarray
    """Row of the newest weights in the end, int32 [devices]."""
    rows: int
    """Rows of the ring."""

    def columns(self) -> dict[str, np.ndarray]:
        """Return what there is for each tick, by name."""
        names = ("read", "newest", "update", "begins")
        return {name: getattr(self, name) for name in names}


def version_arrays(schedule: AsyncSchedule) -> VersionArrays:
    """Write down which weights a stream's devices read and write.

    >>> from jaxdist.pipeline.pipedream import pipedream
    >>> version_arrays(pipedream((1, 1, 1), 6)).rows
    3
    """
    places, rows = replicated_placement(schedule.replicas), _max_live_versions(schedule)
    shape = schedule.length, schedule.devices
    read, newest, update = (np.full(shape, NO_ENTRY, np.int32) for _ in range(3))
    begins, last = np.zeros(shape, np.int32), np.zeros(schedule.devices, np.int32)
    for device in range(schedule.devices):
        (stage,) = places.stages_of(device)
        begun = -1
        for tick, row in enumerate(schedule.ticks):
            now, work = schedule.version_at(stage, tick), row[device]
            newest[tick, device] = now % rows
            if schedule.version_at(stage, tick + 1) > now:
                update[tick, device] = (now + 1) % rows
            if work is None:
                continue
            read[tick, device] = _version(schedule, work) % rows
            if work.kind == "backward":
                round_ = work.microbatch // schedule.update_microbatches[stage]
                begins[tick, device], begun = round_ > begun, round_
        last[device] = schedule.version_at(stage, schedule.length) % rows
    return VersionArrays(
        read=read,
        newest=newest,
        update=update,
        begins=begins,
        last=last,
        rows=rows,
    )


def _max_live_versions(stream: AsyncSchedule) -> int:
    return max(stream.live_versions(stage) for stage in range(stream.stages))


def _version(stream: AsyncSchedule, work: WorkItem) -> int:
    """Return the version that a work takes."""
    ahead = work.kind == "forward"
    kind = stream.forward_versions if ahead else stream.backward_versions
    return kind[work.stage][work.microbatch]
