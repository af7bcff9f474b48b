"""Sentences: what a study found, with its numbers, for the terminal and the page."""

from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.launch.scaling.fit import FIT_UNKNOWNS, ScalingFit
from jaxdist.launch.scaling.results import LossDivergence, ScalingResult, SeriesFit
from jaxdist.launch.terminal.run_summary import pluralize


def headline(result: ScalingResult) -> str:
    """Say what was scaled and what was held fixed."""
    first, last = result.grid.processes[0], result.grid.processes[-1]
    among = f"{first} to {last} processes"
    among = pluralize(first, "process") if first == last else among
    fixed = {
        "strong": "strong scaling: the global batch is fixed",
        "weak": "weak scaling: the batch of each process is fixed",
    }
    return f"{result.experiment}, {among} of one thread; {fixed[result.grid.scaling]}"


def shared_cores_sentence(result: ScalingResult) -> str:
    """Say how efficient more processes than cores can be; nothing where none share."""
    fewest, most = result.grid.processes[0], result.grid.processes[-1]
    cores = result.place.cores
    if most <= cores:
        return ""
    # Efficiency is held against the fewest processes, which may share cores as well.
    alone, together = (min(cores / count, 1.0) for count in (fewest, most))
    return (
        f"{most} processes share {pluralize(cores, 'core')}: their efficiency is at "
        f"most {format_percent(together / alone, 0)}, however fast the links are"
    )


def other_work_sentences(result: ScalingResult) -> list[str]:
    """Say which runs shared their cores with work that is none of the study's."""
    return [
        f"{one.run.title}: {one.other_work} as it began; its figures are of both"
        for one in result.readings
        if one.other_work
    ]


def measurement_sentence(result: ScalingResult) -> str:
    """Say how figures were computed, and from how many steps."""
    # Runs with pauses have fewer steady steps than others.
    counts = sorted({len(one.step_seconds) for one in result.readings})
    among = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"Samples/s: the global batch over the median of {among} steady steps, with "
        "the rates at their 95th and 5th percentile. Epoch: the time of all samples "
        "at that rate. Waits: share of the step time that process 0 waited for input."
    )


def fit_sentence(one: SeriesFit) -> str:
    """Say what a fit found and from how much, or why there is none."""
    found = one.found
    if not isinstance(found, ScalingFit):
        return f"not fitted: {found.reason}; {found.remedy}"
    # Seconds a byte are read more easily as the rate that they amount to.
    sent = found.communication
    rate = f"{format_size(1 / sent)}/s" if sent else "nothing"
    parts = (
        f"serial {_format_part(found.serial)}, parallel {_format_part(found.parallel)} "
        f"a sample, communication {rate}"
    )
    points = f"{found.points} points for {FIT_UNKNOWNS} unknowns"
    if found.degrees_of_freedom == 0:
        # As many points as unknowns are always met exactly.
        return f"{parts}; fitted, {points}: none is left to check the fit"
    rms, worst = found.rms_residual, found.max_relative_error
    off = f"rms {format_duration(rms)}, at most {format_percent(worst)} off"
    return f"{parts}; fitted, {points}, {off}"


def divergence_sentence(one: LossDivergence) -> str:
    """Say how far the losses of a run are from those on fewer processes."""
    first, last = (f"{s:.1g}" if s else "equal" for s in (one.first, one.last))
    return f"{one.cell.title}: {first} at the first step, {last} at the last"


def input_cost_sentences(result: ScalingResult) -> list[str]:
    """Say what real samples cost against random ones, for each pair of runs."""
    by_name = {one.run.name: one for one in result.readings}
    found = []
    for real in result.readings:
        # Names of runs end in their input: the twin differs in nothing else.
        twin = by_name.get(real.run.name.removesuffix("real") + "synthetic")
        if real.run.input == "real" and twin is not None:
            ratio = f"{real.samples_per_s / twin.samples_per_s:.2f}"
            found.append(
                f"{real.run.title}: {ratio} of the samples/s with synthetic input"
            )
    return found


def _format_part(seconds: float) -> str:
    """Write a time that may be a part of a millisecond.

    >>> _format_part(0.0000423), _format_part(0.0), _format_part(0.0123)
    ('42 µs', '0', '12.3 ms')
    """
    if not seconds:
        return "0"
    if seconds >= 1e-3:
        return format_duration(seconds)
    return f"{1e6 * seconds:,.0f} µs" if seconds >= 1e-5 else f"{1e6 * seconds:.2g} µs"
