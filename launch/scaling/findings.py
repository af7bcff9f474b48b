"""Sentences: what a study found, said with its numbers; the terminal and the page."""

from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.launch.scaling.fit import FIT_UNKNOWNS, ScalingFit
from jaxdist.launch.scaling.results import LossDivergence, ScalingResult, SeriesFit
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement
from jaxdist.launch.terminal.run_header import pluralize


def headline(result: ScalingResult) -> str:
    """Say what was scaled and what stayed."""
    first, last = result.grid.processes[0], result.grid.processes[-1]
    among = (
        pluralize(first, "process") if first == last else f"{first} to {last} processes"
    )
    stays = {
        "strong": "strong scaling: the global batch stays",
        "weak": "weak scaling: the batch of a process stays",
    }
    return f"{result.experiment}, {among} of one thread; {stays[result.grid.scaling]}"


def shared_cores_sentence(result: ScalingResult) -> str:
    """Say what it means where there are more processes than cores; else nothing."""
    fewest, most = result.grid.processes[0], result.grid.processes[-1]
    cores = result.place.cores
    if most <= cores:
        return ""
    alone, all_ = (min(cores / count, 1.0) for count in (fewest, most))
    return (
        f"{most} processes share {pluralize(cores, 'core')}: their efficiency is at "
        "most "
        f"{format_percent(all_ / alone, 0)}, on links of any rate"
    )


def measurement_sentence(result: ScalingResult) -> str:
    """Say of how many steps a figure is made."""
    counts = sorted({len(one.step_seconds) for one in result.readings})
    among = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"Samples/s: global batch over the median of {among} steady steps, with the "
        "95th and the 5th percentile. Epoch: the samples of one at that rate. Waits: "
        "share of the steps in which process 0 had no batch."
    )


def fit_sentence(one: SeriesFit) -> str:
    """Say what a fit found and from how much, or why there is none."""
    found = one.found
    if not isinstance(found, ScalingFit):
        return f"not fitted: {found.reason}; {found.remedy}"
    parts = (
        f"serial {_time(found.serial)}, parallel {_time(found.parallel)} a sample, "
        f"communication {_byte_rate(found.communication)}"
    )
    return f"{parts}; fitted, {_fit_quality(found)}"


def component_sentence(one: SeriesFit) -> str:
    """Say how a step of the most processes is made up, as the fit has it."""
    if not isinstance(one.found, ScalingFit):
        return ""
    point = max(one.points, key=lambda p: p.processes)
    parts = one.found.component_shares(point)
    said = ", ".join(
        f"{name} {format_percent(share, 0)}" for name, share in parts.items()
    )
    samples = f"{point.each:g} samples each"
    return f"{pluralize(point.processes, 'process')}, {samples}: {said} (fitted)"


def divergence_sentence(one: LossDivergence) -> str:
    """Say how far losses are apart."""
    return (
        f"{one.cell.title}: {_relative_difference(one.first)} at the first step, "
        f"{_relative_difference(one.last)} at the last"
    )


def input_cost_sentences(result: ScalingResult) -> list[str]:
    """Say what real samples cost against random ones, for each pair of runs."""
    by_name = {one.run.name: one for one in result.readings}
    return [
        f"{real.run.title}: {real.samples_per_s / made_up.samples_per_s:.2f} of the "
        "samples/s of "
        "synthetic input"
        for real in result.readings
        if (made_up := _synthetic_counterpart(real, by_name)) is not None
    ]


def _synthetic_counterpart(
    real: ScalingMeasurement, by_name: dict[str, ScalingMeasurement]
) -> ScalingMeasurement | None:
    if real.run.input != "real":
        return None
    return by_name.get(real.run.name.removesuffix("real") + "synthetic")


def _fit_quality(found: ScalingFit) -> str:
    """Say from how many points, and how far they are from the fit."""
    points = f"{found.points} points for {FIT_UNKNOWNS} unknowns"
    if found.degrees_of_freedom == 0:
        return f"{points}: none to check it with"
    off = (
        f"rms {format_duration(found.rms_residual)}, at most "
        f"{format_percent(found.max_relative_error)} off"
    )
    return f"{points}, {off}"


def _time(seconds: float) -> str:
    """Write a time that may be a part of a millisecond.

    >>> _time(0.0000423), _time(0.0), _time(0.0123)
    ('42 µs', '0', '12.3 ms')
    """
    if not seconds:
        return "0"
    if seconds >= 1e-3:
        return format_duration(seconds)
    return f"{1e6 * seconds:,.0f} µs" if seconds >= 1e-5 else f"{1e6 * seconds:.2g} µs"


def _byte_rate(seconds_a_byte: float) -> str:
    """Write the cost of what travels as a rate of bytes.

    >>> _byte_rate(4e-8), _byte_rate(0.0)
    ('25.0 MB/s', 'nothing')
    """
    return f"{format_size(1 / seconds_a_byte)}/s" if seconds_a_byte else "nothing"


def _relative_difference(share: float) -> str:
    """Write a relative difference.

    >>> tuple(_relative_difference(share) for share in (0.0, 3.21e-7, 0.0213))
    ('equal', '3e-07', '0.02')
    """
    return f"{share:.1g}" if share else "equal"
