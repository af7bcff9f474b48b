"""The timeline that words of a command line ask for, and what is said of it."""

import re
from argparse import Namespace
from dataclasses import asdict
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text.formatting import format_percent
from jaxdist.pipeline.async_schedule import AsyncSchedule
from jaxdist.pipeline.pipedream import pipedream, pipedream_2bw
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
    "pipedream-2bw": ("stages", "group"),
}
"""What each schedule is made from, beside microbatches."""

_DEFAULT_STAGES: Final = 4


def schedule_from_options(args: Namespace) -> SyncSchedule | AsyncSchedule:
    """Return the table of a schedule.

    Args:
        args: `make_sync_schedule`, `microbatches`, and of `SCHEDULE_OPTIONS` what was
        given, else None.

    Raises:
        BadInput: there is no such schedule, it does not take what was given, or not
            with these numbers.
    """
    _check_options(args)
    try:
        return _make_schedule(args)
    except BadInput as error:
        raise _use_option_names(error) from None


def schedule_summary(schedule: SyncSchedule | AsyncSchedule) -> str:
    """Say in a line what a table comes to."""
    most = [schedule.in_flight(device) for device in range(schedule.devices)]
    said = [
        f"{schedule.length:,} ticks, {format_percent(schedule.bubble_fraction)} of "
        "them idle",
        f"in flight by device: {', '.join(map(str, most))}",
    ]
    if schedule.exchanges < schedule.length:
        said.insert(1, f"{schedule.exchanges:,} exchanges")
    if isinstance(schedule, AsyncSchedule):
        kept = [str(schedule.live_versions(stage)) for stage in range(schedule.stages)]
        said.append(f"versions by stage: {', '.join(kept)}")
    return "; ".join(said)


def schedule_tree(schedule: SyncSchedule | AsyncSchedule) -> dict[str, Any]:
    """Return a table as JSON has it."""
    more = (
        _async_tree(schedule)
        if isinstance(schedule, AsyncSchedule)
        else _sync_tree(schedule)
    )
    return {
        "schedule": schedule.name,
        "ticks": schedule.length,
        "exchanges": schedule.exchanges,
        "idle": schedule.bubble_fraction,
        "in_flight": [schedule.in_flight(device) for device in range(schedule.devices)],
        **more,
        "table": [[work and asdict(work) for work in row] for row in schedule.ticks],
        "ticks_of_beats": [len(beat) for beat in schedule.supersteps],
    }


def _make_schedule(args: Namespace) -> SyncSchedule | AsyncSchedule:
    stages = _DEFAULT_STAGES if args.stages is None else args.stages
    match args.schedule:
        case "pipedream":
            replicas = args.replicas or (1,) * stages
            _check_replica_count(args.stages, replicas)
            return pipedream(
                replicas, args.microbatches, vertical_sync=bool(args.vertical_sync)
            )
        case "pipedream-2bw":
            group = stages if args.group is None else args.group
            return pipedream_2bw(stages, args.microbatches, group)
        case name:
            chunks = 1 if args.chunks is None else args.chunks
            return make_sync_schedule(name, stages, args.microbatches, chunks)


def _sync_tree(table: SyncSchedule) -> dict[str, Any]:
    return {"held": [table.live_inputs(device) for device in range(table.devices)]}


def _async_tree(table: AsyncSchedule) -> dict[str, Any]:
    return {
        "versions_held": [table.live_versions(stage) for stage in range(table.stages)],
        "forward_versions": table.forward_versions,
        "backward_versions": table.backward_versions,
        "applied": table.update_ticks,
    }


def _check_options(args: Namespace) -> None:
    """Refuse a schedule that is not there, and what one does not take."""
    name = args.schedule
    if name not in SCHEDULE_OPTIONS:
        near = did_you_mean(name, SCHEDULE_OPTIONS)
        raise BadInput(
            f"no schedule named {name}",
            rule=f"one of {', '.join(SCHEDULE_OPTIONS)}",
            values=f"--schedule {name}",
            remedy=f"did you mean {near}?" if near else "--schedule 1f1b",
        )
    known = {option for options in SCHEDULE_OPTIONS.values() for option in options}
    for option in sorted(known - {*SCHEDULE_OPTIONS[name]}):
        if getattr(args, option) is not None:
            able = [
                other for other, takes in SCHEDULE_OPTIONS.items() if option in takes
            ]
            raise BadInput(
                f"the schedule {name} does not take --{option.replace('_', '-')}",
                rule=f"it is for {', '.join(able)}",
                values=f"--schedule {name}",
                remedy=f"--schedule {able[0]}",
            )


def _check_replica_count(stages: int | None, replicas: tuple[int, ...]) -> None:
    if stages not in (None, len(replicas)):
        raise BadInput(
            "replicas are not those of so many stages",
            rule="one number a stage",
            values=f"stages={stages}, {len(replicas)} numbers of replicas",
            remedy=f"stages={len(replicas)}",
        )


def _use_option_names(error: BadInput) -> BadInput:
    """Say what a schedule asks for in words that a command takes."""

    def typed(text: str) -> str:
        return re.sub(r"\b(\w+)=", r"--\1 ", text.replace("devices=", "stages="))

    return BadInput(
        error.what,
        rule=error.rule,
        values=typed(error.values),
        remedy=[typed(line) for line in error.remedy],
    )
