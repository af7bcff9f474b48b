"""Makes the schedule of a pipeline that `jaxdist pipeline draw` shows."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text.formatting import format_percent
from jaxdist.pipeline.async_schedule import AsyncSchedule
from jaxdist.pipeline.pipedream_schedule import pipedream, pipedream_2bw
from jaxdist.pipeline.sync_schedule import (
    EAGER_1F1B,
    INTERLEAVED_SCHEDULES,
    SINGLE_CHUNK_SCHEDULES,
    SyncSchedule,
    make_sync_schedule,
)

SCHEDULE_OPTIONS: Final = {
    **dict.fromkeys(SINGLE_CHUNK_SCHEDULES, ("stages",)),
    **dict.fromkeys((*INTERLEAVED_SCHEDULES, EAGER_1F1B), ("stages", "chunks")),
    "pipedream": ("stages", "replicas", "vertical_sync"),
    "pipedream-2bw": ("stages", "microbatches_per_update"),
}
"""Fields of `PipelineQuery` that each schedule takes, beside microbatches."""

_DEFAULT_STAGES: Final = 4


@dataclass(frozen=True, kw_only=True)
class PipelineQuery:
    """What `jaxdist pipeline draw` takes; None is the default of the schedule."""

    schedule: str = "1f1b"
    """A key of `SCHEDULE_OPTIONS`."""
    microbatches: int = 8
    """Microbatches in all."""
    stages: int | None = None
    """Devices in a row (4)."""
    chunks: int | None = None
    """Stages of a device, of interleaved schedules (1)."""
    replicas: tuple[int, ...] | None = None
    """Devices of each stage (1)."""
    vertical_sync: bool | None = None
    """Whether a microbatch takes the same weights on all stages."""
    microbatches_per_update: int | None = None
    """Microbatches of an update (one a stage)."""

    @property
    def options(self) -> dict[str, str]:
        """The options that were given, by the name that they have when typed."""
        given = {
            "--stages": self.stages,
            "--microbatches": self.microbatches,
            "--chunks": self.chunks,
            "--microbatches-per-update": self.microbatches_per_update,
            "--replicas": self.replicas and ",".join(map(str, self.replicas)),
        }
        words = {
            name: f" {value}" for name, value in given.items() if value is not None
        }
        return words | ({"--vertical-sync": ""} if self.vertical_sync else {})


def schedule_from_options(query: PipelineQuery) -> SyncSchedule | AsyncSchedule:
    """Return the schedule that was asked for.

    Raises:
        BadInput: there is no such schedule, it does not take what was given, or not
            with these numbers.
    """
    name = query.schedule
    if name not in SCHEDULE_OPTIONS:
        near = did_you_mean(name, SCHEDULE_OPTIONS)
        raise BadInput(
            f"no schedule named {name}",
            rule=f"one of {', '.join(SCHEDULE_OPTIONS)}",
            values=f"--schedule {name}",
            remedy=f"did you mean {near}?" if near else "--schedule 1f1b",
        )
    # An option that a schedule ignored would look as if it had made a difference.
    known = {option for options in SCHEDULE_OPTIONS.values() for option in options}
    for option in sorted(known - {*SCHEDULE_OPTIONS[name]}):
        if getattr(query, option) is not None:
            able = [
                other for other, takes in SCHEDULE_OPTIONS.items() if option in takes
            ]
            raise BadInput(
                f"the schedule {name} does not take --{option.replace('_', '-')}",
                rule=f"it is for {', '.join(able)}",
                values=f"--schedule {name}",
                remedy=f"--schedule {able[0]}",
            )
    stages = _DEFAULT_STAGES if query.stages is None else query.stages
    try:
        if name == "pipedream":
            replicas = query.replicas or (1,) * stages
            if query.stages not in (None, len(replicas)):
                raise BadInput(
                    "replicas are not those of so many stages",
                    rule="one number a stage",
                    values=f"stages={query.stages}, {len(replicas)} numbers of "
                    "replicas",
                    remedy=f"stages={len(replicas)}",
                )
            sync = bool(query.vertical_sync)
            return pipedream(replicas, query.microbatches, vertical_sync=sync)
        if name == "pipedream-2bw":
            group = query.microbatches_per_update
            group = stages if group is None else group
            return pipedream_2bw(stages, query.microbatches, group)
        chunks = 1 if query.chunks is None else query.chunks
        return make_sync_schedule(name, stages, query.microbatches, chunks)
    except BadInput as error:
        # Schedules name their parameters, `devices=3`; a command takes `--stages 3`.
        values, *remedies = (
            re.sub(r"\b([\w-]+)=", r"--\1 ", _option_names(text))
            for text in (error.values, *error.remedy)
        )
        raise BadInput(
            error.what, rule=error.rule, values=values, remedy=remedies
        ) from None


def _option_names(text: str) -> str:
    """Write parameters of schedules as options have them."""
    text = text.replace("devices=", "stages=")
    return text.replace("group=", "microbatches-per-update=")


def schedule_summary(schedule: SyncSchedule | AsyncSchedule) -> str:
    """Return a line with the ticks, the bubble, and what is in flight."""
    # Memory of a device grows with the microbatches that it holds at once.
    most = [schedule.in_flight(device) for device in range(schedule.devices)]
    said = [
        f"{schedule.length:,} ticks, {format_percent(schedule.bubble_fraction)} of "
        "them idle",
        f"in flight by device: {', '.join(map(str, most))}",
    ]
    # Devices exchange behind a superstep, which may have several ticks.
    if schedule.exchanges < schedule.length:
        said.insert(1, f"{schedule.exchanges:,} exchanges")
    if isinstance(schedule, AsyncSchedule):
        versions = [str(schedule.live_versions(s)) for s in range(schedule.stages)]
        said.append(f"versions by stage: {', '.join(versions)}")
    return "; ".join(said)


def schedule_tree(schedule: SyncSchedule | AsyncSchedule) -> dict[str, Any]:
    """Return a schedule as plain values."""
    devices = range(schedule.devices)
    more: dict[str, Any]
    if isinstance(schedule, AsyncSchedule):
        # Without a flush stages hold several versions of their weights.
        versions = [schedule.live_versions(stage) for stage in range(schedule.stages)]
        more = {
            "versions_held": versions,
            "forward_versions": schedule.forward_versions,
            "backward_versions": schedule.backward_versions,
            "applied": schedule.update_ticks,
        }
    else:
        # With a flush stages hold one version, and inputs of what is in flight.
        more = {"held": [schedule.live_inputs(device) for device in devices]}
    return {
        "schedule": schedule.name,
        "ticks": schedule.length,
        "exchanges": schedule.exchanges,
        "idle": schedule.bubble_fraction,
        "in_flight": [schedule.in_flight(device) for device in devices],
        **more,
        "table": [[work and asdict(work) for work in row] for row in schedule.ticks],
        "ticks_of_beats": [len(beat) for beat in schedule.supersteps],
    }
