"""Misses: the terms of a run that differ most from what was said, and why, likely."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.core.step_breakdown import (
    BUBBLE,
    COMPRESSION,
    COMPUTE,
    OTHER,
    UPDATE,
    WAIT,
    StepBreakdown,
)
from jaxdist.oracle.predicted_term import TermComparison

_CALIBRATED: Final = ("measured", "fitted")
_DEVICE_PATHS: Final = {
    COMPUTE: ("device.flops", "device.efficiency", "device.launch"),
    COMPRESSION: ("device.packing",),
    UPDATE: ("device.memory_bandwidth",),
}


@dataclass(frozen=True, kw_only=True)
class Misprediction:
    """A term that was predicted badly."""

    term: TermComparison
    """What was said and what was seen."""
    cause: str
    """What it comes from, likely."""
    remedy: str
    """What mends the prediction, or the run."""

    @property
    def seconds(self) -> float:
        """Measured less predicted."""
        return (self.term.measured or 0.0) - self.term.predicted


def largest_mispredictions(
    terms: Sequence[TermComparison],
    layers: Sequence[TermComparison],
    breakdown: StepBreakdown,
    provenance: Mapping[str, str],
    recalibrate_command: str,
    count: int = 2,
    overlapped_terms: Collection[str] = (),
) -> tuple[Misprediction, ...]:
    """Return the terms that miss by most seconds, the worst first.

    Args:
        terms: of the step, seconds.
        layers: of computing, those that miss most first.
        breakdown: what the devices did.
        provenance: where each number of the cluster is from, by its path.
        recalibrate_command: the command that folds the run into the cluster.
        count: how many.
        overlapped_terms: terms of which a part is said to be hidden behind computing.
    """
    shown = {path: origin for path, origin in provenance.items() if path != "overlap"}
    known = [one for one in terms if one.unit == "s" and one.measured is not None]
    worst = sorted(known, key=lambda one: -one.abs_error)[:count]
    return tuple(
        Misprediction(
            term=one,
            cause=_likely_cause(
                one,
                layers,
                breakdown,
                provenance if one.name in overlapped_terms else shown,
            ),
            remedy=_remedy(one, breakdown) or recalibrate_command,
        )
        for one in worst
        if one.abs_error
    )


def _likely_cause(
    term: TermComparison,
    layers: Sequence[TermComparison],
    breakdown: StepBreakdown,
    provenance: Mapping[str, str],
) -> str:
    count, cores = len(breakdown.devices), breakdown.cores
    crowd = f"{count} devices of the process share {cores} cores"
    match term.name:
        case "waiting" | "bubble" | "other" if count > cores:
            return f"{crowd}, so they take turns"
        case "waiting":
            return "devices come to a collective at different times"
        case "bubble":
            return "stages take other times than was predicted of them"
        case "other":
            return "between operations nothing ran: each is short beside its start"
        case "input":
            return "the samples of a step were not there when it began"
    guessed = _uncalibrated_paths(term.name, provenance)
    parts = [f"{', '.join(guessed)}: nobody measured"] if guessed else []
    if term.name == COMPUTE and layers:
        parts.append(f"most of it in {_layer_text(layers[0])}")
    if _may_be_waiting(term) and breakdown.processes > 1:
        parts.append("it may be a wait for other processes, which nobody watched")
    if count > cores:
        parts.append(crowd)
    return "; ".join(parts) or "the numbers it rests on were measured elsewhere"


def _may_be_waiting(term: TermComparison) -> bool:
    """Tell whether a term moves something, and took longer than was said."""
    moves = term.name not in (*_DEVICE_PATHS, OTHER)
    return moves and (term.measured or 0.0) > term.predicted


def _layer_text(layer: TermComparison) -> str:
    took, said = 1e3 * (layer.measured or 0.0), 1e3 * layer.predicted
    name = layer.name or "operations of no layer"
    return f"{name}, {took:,.2f} ms, predicted {said:,.2f}"


def _uncalibrated_paths(term: str, provenance: Mapping[str, str]) -> list[str]:
    of = _DEVICE_PATHS.get(term, ("levels", "overlap"))
    found = (
        ".".join(path.split(".")[: 3 if path.startswith("levels") else 2])
        for path, origin in provenance.items()
        if path.startswith(of) and not origin.startswith(_CALIBRATED)
    )
    return list(dict.fromkeys(found))


def _remedy(term: TermComparison, breakdown: StepBreakdown) -> str:
    """Say what mends the run; nothing where the prediction is to be mended."""
    crowded = len(breakdown.devices) > breakdown.cores
    if term.name in (WAIT, BUBBLE, OTHER) and crowded:
        return f"at most {breakdown.cores} devices in a process of this machine"
    if term.name == "input":
        return "data.readers=4, or data that is kept"
    if term.name == BUBBLE:
        return "plan.pipe.cuts where measured stages are equal, or more microbatches"
    return ""
