"""Preflight: what all processes of a run must have alike, compared before a step.

Processes that run different programs wait for each other for ever, each in another
collective, and nothing says why. So each says what it has, and process 0 compares.
"""

import json
import platform
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.tree import values
from jaxdist.launch.config.value_text import write_value
from jaxdist.launch.devices.prepare import PreparedDevices
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.lockfile import installed_versions

if TYPE_CHECKING:
    from jaxdist.partition.flops import LayerFlops
    from jaxdist.train.layout import Layout
    from jaxdist.train.program import Program

_SAYS: Final = "jaxdist/preflight"
_WAIT_MS: Final = 600_000
_MOST: Final = 4
"""Differences that are named."""
_CLOCK_S: Final = 1.0
"""Seconds by which clocks may differ."""
_WHERE: Final = ("data.dir", "data.store", "run.dir")
"""Keys (or their beginnings) that a host may have for itself."""
ProcessFacts = Mapping[str, str]
"""Names and values that all processes have alike."""


def check_settings(mine: ProcessGroup, config: Experiment) -> None:
    """Refuse processes with other packages or another configuration.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    facts = {key: write_value(value) for key, value in values(config).items()}
    what = {key: text for key, text in facts.items() if not key.startswith(_WHERE)}
    versions = {"Python": platform.python_version(), **installed_versions()}
    check_alike(mine, "settings", {**versions, **what})


def check_devices(mine: ProcessGroup, prepared: PreparedDevices) -> None:
    """Refuse processes with other devices, and remark on clocks that differ.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if mine.store is None:
        return
    import jax

    here = f"{jax.local_device_count()} of {prepared.platform}"
    check_alike(mine, "devices", {"devices": here})
    check_clocks(mine)


def check_lowered(
    mine: ProcessGroup, layout: "Layout", lowered: Any, work: "Sequence[LayerFlops]"
) -> None:
    """Refuse processes whose steps differ, before they are compiled.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if mine.store is None:
        return
    from jaxdist.train.lowered_fingerprint import detail_of, outline_of

    plan = {f"plan.{k}": write_value(v) for k, v in values(layout.plan).items()}
    check_alike(mine, "step", {**plan, **outline_of(layout, lowered, work)})
    check_alike(mine, "step in detail", detail_of(lowered))


def check_program(mine: ProcessGroup, program: "Program") -> None:
    """Refuse processes whose compilers have made other collectives of one step.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if mine.store is None:
        return
    from jaxdist.train.lowered_fingerprint import digest

    # Not lines of source: hosts may have the same file in different places.
    moves = [replace(move, source="") for move in program.moves]
    found = f"{len(moves)} (hash {digest(repr(moves))})"
    check_alike(mine, "program", {"collectives": found})


def check_alike(mine: ProcessGroup, what: str, facts: ProcessFacts) -> None:
    """Refuse processes of one run that differ.

    Every process calls it, at the same place.

    Args:
        mine: the process among those of its run.
        what: a name that each process uses once.
        facts: what this one has.

    Raises:
        BadInput: naming the process that differs, in what, and how.
    """
    if mine.store is None:
        return
    key, said = f"{_SAYS}/{what}", json.dumps(dict(facts))
    if mine.leads:
        found = [facts, *(_said(mine, key, rank) for rank in range(1, mine.count))]
        mine.store.key_value_set(f"{key}/verdict", differences(found))
    else:
        mine.store.key_value_set(f"{key}/{mine.rank}", said)
    verdict = mine.store.blocking_key_value_get(f"{key}/verdict", _WAIT_MS)
    if not verdict:
        return
    raise BadInput(
        "the processes of this run are not alike",
        rule="every process has the same packages, configuration, devices and step",
        values=verdict,
        remedy="the same command and the same environment on every host",
    )


def _said(mine: ProcessGroup, key: str, rank: int) -> ProcessFacts:
    return json.loads(mine.store.blocking_key_value_get(f"{key}/{rank}", _WAIT_MS))


def differences(found: Sequence[ProcessFacts]) -> str:
    """Say which processes differ from most of the others, and in what.

    Args:
        found: what each process has, by rank.

    >>> differences([{"jax": "0.10"}, {"jax": "0.11"}, {"jax": "0.10"}])
    'rank 1: jax 0.11 (others: 0.10)'
    """
    names = {name: None for facts in found for name in facts}
    rows = [row for name in names for row in _differ(name, found)]
    more = f"; and {len(rows) - _MOST} more" if len(rows) > _MOST else ""
    return "; ".join(rows[:_MOST]) + more


def _differ(name: str, found: Sequence[ProcessFacts]) -> list[str]:
    had = [facts.get(name, "none") for facts in found]
    # Of as many on either side, process 0's is the one that was meant.
    usual = max(had, key=lambda value: (had.count(value), value == had[0]))
    who = "rank 0" if len(found) == 2 else "others"
    return [
        f"rank {rank}: {name} {value} ({who}: {usual})"
        for rank, value in enumerate(had)
        if value != usual
    ]


def check_clocks(mine: ProcessGroup) -> None:
    """JaxdistWarning, in process 0, on hosts whose clocks differ from its own.

    Every process calls it, at the same place.
    """
    if mine.store is None:
        return
    mine.store.wait_at_barrier(f"{_SAYS}/clock", _WAIT_MS)
    now = time.time()
    if not mine.leads:
        mine.store.key_value_set(f"{_SAYS}/clock/{mine.rank}", repr(now))
        return
    times = {
        rank: float(
            mine.store.blocking_key_value_get(f"{_SAYS}/clock/{rank}", _WAIT_MS)
        )
        for rank in range(1, mine.count)
    }
    off = {rank: at - now for rank, at in times.items() if abs(at - now) > _CLOCK_S}
    if off:
        said = ", ".join(f"rank {rank} {s:+.1f} s" for rank, s in off.items())
        text = f"clocks differ from that of process 0: {said}; times in logs do too"
        warnings.warn(JaxdistWarning(text), stacklevel=2)
