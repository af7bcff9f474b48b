"""How far predicted steps were off where they were run: intervals of other predictions.

`held_out_steps.csv` has steps that no number of their cluster was fitted to, each with
what was predicted and measured:

* on four emulated hosts that `calibrate` timed, without either network (129 plans,
  2026-11-24, docs/prediction.md);
* on ABCI, by ParaDL (20 runs; Kahira et al. 2021, arXiv:2104.09075), and on one or two
  hosts of H100 and A100, by llm-foundry's table of FSDP runs (54 open rows), both with
  the numbers of data sheets and papers.
"""

import csv
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.intervals import (
    COVERAGE,
    ErrorGroup,
    Interval,
    Shift,
    error_interval,
)
from jaxdist.core.plan import Plan

TIMED: Final = "timed hosts"
"""Machine of the steps that were predicted from timings."""
_TIMED_ORIGINS: Final = ("measured", "fitted")
"""Origins of numbers that were taken on the machine itself."""
_OTHER_NETWORK: Final[Shift] = "network"
_OTHER_MACHINE: Final[Shift] = "machine"
_MIN_LAYOUT_ERRORS: Final = 9
"""Least errors of a kind of layout for its own interval: with fewer none of them is a
bound of nine in ten."""


@dataclass(frozen=True, kw_only=True)
class HeldOutStep:
    """A step that was predicted and run."""

    machine: str
    """Name of the cluster, or `timed hosts`."""
    network: str
    """What was trained."""
    devices: int
    """On how many devices."""
    setting: str
    """What plans that were alternatives to each other have in common; may be empty."""
    layout: str
    """`samples split`, `layers split`, or `stages`."""
    plan: str
    """The plan, in words."""
    log_ratio: float
    """ln(measured / predicted)."""


@cache
def read_held_out_steps() -> tuple[HeldOutStep, ...]:
    """Return all steps of the table."""
    text = (files("jaxdist.oracle") / "held_out_steps.csv").read_text(encoding="utf-8")
    found = []
    for row in csv.DictReader(text.splitlines()):
        predicted, measured = (
            float(row.pop("predicted_s")),
            float(row.pop("measured_s")),
        )
        found.append(
            HeldOutStep(
                machine=row["machine"],
                network=row["network"],
                devices=int(row["devices"]),
                setting=row["setting"],
                layout=row["layout"],
                plan=row["plan"],
                log_ratio=math.log(measured / predicted),
            )
        )
    return tuple(found)


def layout_kind(plan: Plan) -> str:
    """Return the kind of a layout, by which errors differ."""
    if plan.mesh.pipe > 1:
        return "stages"
    # Sums of gradients come once a step, and what split layers exchange in each layer.
    is_split = plan.mesh.tensor * plan.mesh.expert * plan.mesh.position_shards > 1
    return "layers split" if is_split else "samples split"


def is_timed(origins: Iterable[str]) -> bool:
    """Return whether the numbers that decide were taken on the machine itself."""
    return all(origin.startswith(_TIMED_ORIGINS) for origin in origins)


def step_interval(
    cluster: Cluster,
    plan: Plan,
    *,
    timed: bool,
    steps: Sequence[HeldOutStep] | None = None,
) -> Interval:
    """Return the 90 % interval of a step's prediction, as factors of it.

    Args:
        cluster: the machine.
        plan: the layout.
        timed: whether the numbers that decide were taken on the machine itself.
        steps: held-out steps; by default those of the table.
    """
    steps = read_held_out_steps() if steps is None else steps
    kind, shift = layout_kind(plan), _OTHER_NETWORK
    own = [one for one in steps if one.machine == (TIMED if timed else cluster.name)]
    chosen = [one for one in own if one.layout == kind]
    if len(chosen) < _MIN_LAYOUT_ERRORS:
        chosen, shift = [one for one in steps if one.machine != TIMED], _OTHER_MACHINE
    origins = "; ".join(dict.fromkeys(one.machine for one in chosen))
    group = ErrorGroup(
        shift=shift,
        origin=f"{origins}, {kind}" if shift == _OTHER_NETWORK else origins,
        log_ratios=tuple(one.log_ratio for one in chosen),
    )
    # Logarithms, since being off by twice and by half is equally wrong.
    found = error_interval([group], [shift])
    if found is None:
        raise ValueError("no step was held out")
    # An exponent of p that is wrong by d makes an error of d log p: beyond the steps
    # that were run, an error grows with the logarithm of the devices.
    most = max(one.devices for one in chosen)
    stretch = max(1.0, math.log2(plan.mesh.devices) / math.log2(max(most, 2)))
    beyond = f", stretched from {most} devices" * (stretch > 1)
    return Interval(
        low=found.low**stretch, high=found.high**stretch, basis=found.basis + beyond
    )


@cache
def order_tolerance(timed: bool) -> float:
    """Return the ratio of two predictions from which nine in ten are in that order.

    What two plans of one network on one machine are both off by cancels, so plans may
    be told apart though their intervals overlap.

    Args:
        timed: whether the numbers that decide were taken on the machine itself.
    """
    settings: dict[tuple[str, str], list[float]] = {}
    for one in read_held_out_steps():
        if one.setting and (one.machine == TIMED) == timed:
            # Only alternatives to each other: their common error says nothing of their
            # order.
            key = one.machine, one.setting
            settings.setdefault(key, []).append(one.log_ratio)
    apart = sorted(
        abs(a - b)
        for ratios in settings.values()
        for a, b in itertools.combinations(ratios, 2)
    )
    # The conformal quantile, as intervals take it: n + 1 since the next pair is one
    # more.
    place = min(len(apart), math.ceil((len(apart) + 1) * COVERAGE - 1e-9))
    return math.exp(apart[place - 1])
