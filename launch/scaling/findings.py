"""Sentences: what a study found, said with its numbers; the terminal and the page."""

from jaxdist.core.text.formatting import duration, percent, size
from jaxdist.launch.scaling.fit import UNKNOWNS, ScalingFit
from jaxdist.launch.scaling.results import LossDivergence, ScalingResult, SeriesFit
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement
from jaxdist.launch.terminal.run_header import many


def headline(result: ScalingResult) -> str:
    """Say what was scaled and what stayed."""
    first, last = result.grid.processes[0], result.grid.processes[-1]
    among = many(first, "process") if first == last else f"{first} to {last} processes"
    stays = {
        "strong": "strong scaling: the global batch stays",
        "weak": "weak scaling: the batch of a process stays",
    }
    return f"{result.experiment}, {among} of one thread; {stays[result.grid.scaling]}"


def shared_cores(result: ScalingResult) -> str:
    """Say what it means where there are more processes than cores; else nothing."""
    fewest, most = result.grid.processes[0], result.grid.processes[-1]
    cores = result.place.cores
    if most <= cores:
        return ""
    alone, all_ = (min(cores / count, 1.0) for count in (fewest, most))
    return (
        f"{most} processes share {many(cores, 'core')}: their efficiency is at most "
        f"{percent(all_ / alone, 0)}, on links of any rate"
    )


def steps_measured(result: ScalingResult) -> str:
    """Say of how many steps a figure is made."""
    counts = sorted({len(one.seconds) for one in result.readings})
    among = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"Samples/s: global batch over the median of {among} steady steps, with the "
        "95th and the 5th percentile. Epoch: the samples of one at that rate. Waits: "
        "share of the steps in which process 0 had no batch."
    )


def fitted(one: SeriesFit) -> str:
    """Say what a fit found and from how much, or why there is none."""
    found = one.found
    if not isinstance(found, ScalingFit):
        return f"not fitted: {found.why}; {found.remedy}"
    parts = (
        f"serial {_time(found.serial)}, parallel {_time(found.parallel)} a sample, "
        f"communication {_pace(found.communication)}"
    )
    return f"{parts}; fitted, {_trust(found)}"


def shares(one: SeriesFit) -> str:
    """Say how a step of the most processes is made up, as the fit has it."""
    if not isinstance(one.found, ScalingFit):
        return ""
    point = max(one.points, key=lambda p: p.processes)
    parts = one.found.shares(point)
    said = ", ".join(f"{name} {percent(share, 0)}" for name, share in parts.items())
    samples = f"{point.each:g} samples each"
    return f"{many(point.processes, 'process')}, {samples}: {said} (fitted)"


def drift(one: LossDivergence) -> str:
    """Say how far losses are apart."""
    return (
        f"{one.cell.title}: {_apart(one.first)} at the first step, "
        f"{_apart(one.last)} at the last"
    )


def input_costs(result: ScalingResult) -> list[str]:
    """Say what real samples cost against random ones, for each pair of runs."""
    by_name = {one.cell.name: one for one in result.readings}
    return [
        f"{real.cell.title}: {real.rate / made_up.rate:.2f} of the samples/s of "
        "synthetic input"
        for real in result.readings
        if (made_up := _made_up(real, by_name)) is not None
    ]


def _made_up(
    real: ScalingMeasurement, by_name: dict[str, ScalingMeasurement]
) -> ScalingMeasurement | None:
    if real.cell.source != "real":
        return None
    return by_name.get(real.cell.name.removesuffix("real") + "synthetic")


def _trust(found: ScalingFit) -> str:
    """Say from how many points, and how far they are from the fit."""
    points = f"{found.points} points for {UNKNOWNS} unknowns"
    if found.spare == 0:
        return f"{points}: none to check it with"
    off = f"rms {duration(found.residual)}, at most {percent(found.furthest)} off"
    return f"{points}, {off}"


def _time(seconds: float) -> str:
    """Write a time that may be a part of a millisecond.

    >>> _time(0.0000423), _time(0.0), _time(0.0123)
    ('42 µs', '0', '12.3 ms')
    """
    if not seconds:
        return "0"
    if seconds >= 1e-3:
        return duration(seconds)
    return f"{1e6 * seconds:,.0f} µs" if seconds >= 1e-5 else f"{1e6 * seconds:.2g} µs"


def _pace(seconds_a_byte: float) -> str:
    """Write the cost of what travels as a rate of bytes.

    >>> _pace(4e-8), _pace(0.0)
    ('25.0 MB/s', 'nothing')
    """
    return f"{size(1 / seconds_a_byte)}/s" if seconds_a_byte else "nothing"


def _apart(share: float) -> str:
    """Write a relative difference.

    >>> _apart(0.0), _apart(3.21e-7), _apart(0.0213)
    ('equal', '3e-07', '0.02')
    """
    return f"{share:.1g}" if share else "equal"
