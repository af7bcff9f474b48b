"""Preflight: what all processes of a run must have alike, compared before a step.

Processes that run different programs wait for each other for ever, each in another
collective, and nothing says why. So each publishes what it has, and process 0 compares.
"""

import platform
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.tree import flatten_config, format_value
from jaxdist.launch.devices.prepare import PreparedDevices
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.lockfile import installed_versions

if TYPE_CHECKING:
    from jaxdist.train.program import LoweredProgram, Program

_TIMEOUT_S: Final = 600.0
"""Seconds in which all processes come to the same check."""
_MAX_SHOWN: Final = 4
"""Differences that are named."""
_MAX_CLOCK_SKEW_S: Final = 1.0
"""Seconds by which clocks may differ."""
_HOST_LOCAL_KEYS: Final = ("data.dir", "data.cache", "run.dir")
"""Keys (or their beginnings) that a host may have for itself."""
ProcessFacts = Mapping[str, str]
"""Names and values that all processes have alike."""


def check_settings(group: ProcessGroup, config: Experiment) -> None:
    """Refuse processes with other packages or another configuration.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if group.kv_store is None:
        return
    facts = {"Python": platform.python_version(), **installed_versions()}
    for key, value in flatten_config(config).items():
        if not key.startswith(_HOST_LOCAL_KEYS):
            facts[key] = format_value(value)
    check_identical(group, "settings", facts)


def check_device_counts(group: ProcessGroup, prepared: PreparedDevices) -> None:
    """Refuse processes with other devices, and remark on clocks that differ.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if group.kv_store is None:
        return
    import jax

    # Counted now that jax has them: the variables that ask for devices need not be
    # obeyed.
    here = f"{jax.local_device_count()} of {prepared.platform}"
    check_identical(group, "devices", {"devices": here})
    check_clock_skew(group)


def check_lowered(group: ProcessGroup, lowered: "LoweredProgram") -> None:
    """Refuse processes whose steps differ, before they are compiled.

    Compilers of several processes may exchange what they have found, and would wait for
    each other for ever where the steps are not the same.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if group.kv_store is None:
        return
    from jaxdist.train.program import operation_counts, step_outline

    layout, step = lowered.layout, lowered.step
    plan = {
        f"plan.{k}": format_value(v) for k, v in flatten_config(layout.plan).items()
    }
    outline = step_outline(layout, step, lowered.layer_flops)
    # The outline comes first: it tells a difference as a person would look for it, in
    # parameters and FLOPs, where counts of operations only say that there is one.
    check_identical(group, "step", {**plan, **outline})
    check_identical(group, "step in detail", operation_counts(step))


def check_program(group: ProcessGroup, program: "Program") -> None:
    """Refuse processes whose compilers have made other collectives of one step.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if group.kv_store is None:
        return
    from jaxdist.train.program import short_hash

    # Lines of source are left out: hosts may have the same file in different places.
    moves = [replace(move, source_location="") for move in program.collectives]
    found = f"{len(moves)} (hash {short_hash(repr(moves))})"
    check_identical(group, "program", {"collectives": found})


def check_identical(group: ProcessGroup, name: str, facts: ProcessFacts) -> None:
    """Refuse processes of one run that differ.

    Every process calls it, at the same place.

    Args:
        group: the process among those of its run.
        name: a name that each process uses once.
        facts: what this one has.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if group.kv_store is None:
        return
    # Process 0 compares and all read its verdict, so that all of them end, or none.
    key = f"preflight/{name}"
    gathered = group.gather(key, dict(facts), _TIMEOUT_S)
    verdict = group.broadcast(key, describe_differences(gathered), _TIMEOUT_S)
    if not verdict:
        return
    raise BadInput(
        "the processes of this run are not alike",
        rule="every process has the same packages, configuration, devices and step",
        values=verdict,
        remedy="the same command and the same environment on every host",
    )


def describe_differences(facts_by_rank: Sequence[ProcessFacts]) -> str:
    """Say which processes differ from most of the others, and in what.

    Args:
        facts_by_rank: what each process has, by rank.

    >>> describe_differences([{"jax": "0.10"}, {"jax": "0.11"}, {"jax": "0.10"}])
    'rank 1: jax 0.11 (others: 0.10)'
    """
    who = "rank 0" if len(facts_by_rank) == 2 else "others"
    rows = []
    for name in dict.fromkeys(name for facts in facts_by_rank for name in facts):
        had = [facts.get(name, "none") for facts in facts_by_rank]
        # Where as many have one value as the other, process 0's is what was meant.
        usual = max(had, key=lambda value: (had.count(value), value == had[0]))
        rows += [
            f"rank {rank}: {name} {value} ({who}: {usual})"
            for rank, value in enumerate(had)
            if value != usual
        ]
    more = f"; and {len(rows) - _MAX_SHOWN} more" if len(rows) > _MAX_SHOWN else ""
    return "; ".join(rows[:_MAX_SHOWN]) + more


def check_clock_skew(group: ProcessGroup) -> None:
    """Warn, in process 0, of hosts whose clocks differ from its own.

    Every process calls it, at the same place.
    """
    # All leave the barrier within milliseconds, so what their clocks say then differs
    # by as much as the clocks do.
    group.barrier("preflight/clock", _TIMEOUT_S)
    now = time.time()
    off = {
        rank: at - now
        for rank, at in enumerate(group.gather("preflight/clock", now, _TIMEOUT_S))
        if abs(at - now) > _MAX_CLOCK_SKEW_S
    }
    if off:
        # Nothing in a run compares clocks of two hosts, so this is no error; but
        # whoever reads the logs of several hosts does.
        said = ", ".join(f"rank {rank} {s:+.1f} s" for rank, s in off.items())
        text = f"clocks differ from that of process 0: {said}; times in logs do too"
        warnings.warn(JaxdistWarning(text), stacklevel=2)
