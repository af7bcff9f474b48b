"""Comparing: what was predicted of a run beside what was measured, term by term."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.run_record import Run
from jaxdist.core.step_breakdown import (
    BETWEEN_STEPS,
    BUBBLE,
    COMPRESSION,
    COMPUTE,
    OTHER,
    UPDATE,
    LayerTime,
    StepBreakdown,
)
from jaxdist.oracle.largest_errors import Misprediction, largest_mispredictions
from jaxdist.oracle.link_groups import LinkGroup
from jaxdist.oracle.predict import Prediction
from jaxdist.oracle.predicted_term import TermComparison
from jaxdist.oracle.schedule_times import PipelineTimeline

DEVICE_TERMS: Final = (COMPUTE, BUBBLE, COMPRESSION, UPDATE)
"""Terms of a device alone; the others are of the links, and of the input."""
_DEVICE_PATHS: Final = (
    "device.flops",
    "device.memory_bandwidth",
    "device.launch",
    "device.packing",
)
_MIN_FACTOR: Final = 0.05
_MAX_FACTOR: Final = 20.0
"""Factors between which a recalibration stays."""
_MIN_SHARE_SPREAD: Final = 0.1
"""Least difference of shares by which two factors are told apart."""
_INPUT_TERM: Final = "input"
_MIN_STEP_FRACTION: Final = 0.02
"""Part of a step that is too little to say how fast something is."""


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """A run beside its prediction."""

    run: str
    """Name of the run, and what tells it from others of that name."""
    prediction: Prediction
    """What was said of it."""
    step: TermComparison
    """The whole step."""
    terms: tuple[TermComparison, ...]
    """Its parts, the longest first, then the memory."""
    in_interval: bool
    """Whether the measured step lies in the interval."""
    layers: tuple[TermComparison, ...] = ()
    """Computing by layer, those that miss most first; empty where nobody watched."""
    breakdown: StepBreakdown | None = None
    """Where its devices spent the steps that a profiler watched."""
    profiler_slowdown: float = 1.0
    """A watched step over the median step."""
    predicted_timeline: PipelineTimeline = ()
    """Work of stages in time, as predicted; empty where the network is not cut."""
    link_groups: Mapping[str, LinkGroup] = field(default_factory=dict)
    """What each set of axes that something moves along has of the cluster's links."""
    command_args: str = ""
    """Run and cluster as they were typed; empty: their names."""

    @property
    def mispredictions(self) -> tuple[Misprediction, ...]:
        """The two terms that miss by most; none where nobody watched."""
        if self.breakdown is None:
            return ()
        said, again = self.prediction, self.recalibrate_command
        hides = said.overlapped_s.keys()
        return largest_mispredictions(
            self.terms,
            self.layers,
            self.breakdown,
            said.provenance,
            again,
            overlapped_terms=hides,
        )

    @property
    def recalibrate_command(self) -> str:
        """The command that folds the run into the cluster."""
        name, on = self.run.partition("@")[0], self.prediction.cluster
        asked = self.command_args or f"{name} --cluster {on}"
        return f"jaxdist compare {asked} --recalibrate better.json"

    @property
    def likely_cause(self) -> str:
        """What the miss of the step rests on most, in words."""
        own = sum(self.prediction.terms_s.get(name, 0.0) for name in DEVICE_TERMS)
        longest = max(self.prediction.terms_s.items(), key=lambda pair: pair[1])[0]
        links = ("levels", *["overlap"] * (longest in self.prediction.overlapped_s))
        of = _DEVICE_PATHS if 2 * own > self.prediction.step_s else links
        guessed = [
            path
            for path, origin in self.prediction.provenance.items()
            if path.startswith(of) and not origin.startswith(("measured", "fitted"))
        ]
        if not guessed:
            return f"{longest} is the longest term, and its numbers were measured"
        return f"{longest} rests on {', '.join(guessed)}, which nobody measured"


def run_fingerprint(run: Run) -> str:
    """Name a run by what it is and measured: `digits@1f0c9d3e`."""
    return f"{run.name}@{hashlib.sha256(run.to_json().encode()).hexdigest()[:8]}"


def check_held_out(run: Run, cluster: Cluster) -> None:
    """Refuse a run that the cluster's numbers were fitted to: it proves nothing.

    Raises:
        BadInput: it was.
    """
    name = run_fingerprint(run)
    for path, number in cluster.numbers():
        if name in number.origin:
            raise BadInput(
                f"{run.name} is what the cluster was fitted to",
                rule="a prediction is never tested on what it was fitted on",
                values=f"{path} is {number.origin.partition(';')[0]}",
                remedy=("another run", "the cluster as it was before"),
            )


def compare_prediction(
    run: Run,
    prediction: Prediction,
    breakdown: StepBreakdown | None = None,
    layer_times: Mapping[str, LayerTime] | None = None,
    predicted_timeline: PipelineTimeline = (),
    link_groups: Mapping[str, LinkGroup] | None = None,
    command_args: str = "",
) -> RunComparison:
    """Set a run beside its prediction.

    Steps that a profiler watches are slower than others, so of them the shares count:
    each term is its share of the run's median step.

    Args:
        run: as `summary.json` has it.
        prediction: of the same plan.
        breakdown: where the watched steps went.
        layer_times: predicted seconds of each layer in a step.
        predicted_timeline: predicted work of stages in time.
        link_groups: of each set of axes that something moves along.
        command_args: run and cluster as they were typed.
    """
    step = TermComparison(
        name="step", unit="s", predicted=prediction.step_s, measured=run.step_s or None
    )
    waited = run.phases_s.get("input", 0.0) / max(1, run.steps)
    seen: dict[str, float] = {"input": waited}
    slower = 1.0
    if breakdown is not None:
        slower = breakdown.busiest.step_s / run.step_s
        seen = _measured_terms(breakdown, slower, waited)
    said = {"input": 0.0} | prediction.terms_s
    missing = 0.0 if breakdown is not None else None
    parts = [
        TermComparison(
            name=name,
            unit="s",
            predicted=said.get(name, 0.0),
            measured=seen.get(name, missing),
        )
        for name in {**said, **seen}
    ]
    parts.sort(key=lambda term: -max(term.predicted, term.measured or 0.0))
    memory = TermComparison(
        name="memory",
        unit="B",
        predicted=prediction.memory_bytes,
        measured=run.memory_bytes or None,
    )
    low, high = prediction.interval_s
    return RunComparison(
        run=run_fingerprint(run),
        prediction=prediction,
        step=step,
        terms=(*parts, memory),
        in_interval=low <= run.step_s <= high,
        layers=()
        if breakdown is None
        else _layer_comparisons(breakdown, slower, layer_times or {}),
        breakdown=breakdown,
        profiler_slowdown=slower,
        predicted_timeline=predicted_timeline,
        link_groups=link_groups or {},
        command_args=command_args,
    )


def _measured_terms(
    breakdown: StepBreakdown, slowdown: float, input_wait: float
) -> dict[str, float]:
    """Return the terms of the busiest device, as parts of the median step.

    Between steps nothing runs: for as long as the host waited for samples that is the
    input's, the rest is nobody's.
    """
    terms = {name: s / slowdown for name, s in breakdown.busiest.terms_s.items()}
    between = terms.pop(BETWEEN_STEPS, 0.0)
    terms["input"] = min(between, input_wait)
    terms[OTHER] = terms.get(OTHER, 0.0) + between - terms["input"]
    return terms


def _layer_comparisons(
    breakdown: StepBreakdown, slowdown: float, predicted: Mapping[str, LayerTime]
) -> tuple[TermComparison, ...]:
    names = {n: None for one in breakdown.devices for n in one.layers_s}
    found = [
        TermComparison(
            name=name,
            unit="s",
            predicted=predicted.get(name, LayerTime()).both,
            measured=breakdown.layer(name).both / slowdown,
        )
        for name in {**predicted, **names}
    ]
    return tuple(sorted(found, key=lambda term: -term.abs_error))


def recalibrate_cluster(
    cluster: Cluster, comparisons: Sequence[RunComparison]
) -> Cluster:
    """Return the cluster with speeds that explain what was measured.

    Two factors are fitted, a of devices and b of links, with the same relative weight:

        a (compute + bubble + packing + update) + b (the others) = step

    A run that was watched has both parts measured, so one is enough. What waits for
    others is of the links, as it is where links are calibrated; what nobody does is of
    the devices, which start late; the wait for input is of neither. Runs that were not
    watched, of one kind, do not tell them apart: then they have the same factor.

    Args:
        cluster: what the predictions were made with.
        comparisons: runs beside them.
    """
    own, moved = _fit_factors(comparisons)
    device = cluster.device
    why = f"jaxdist compare, runs {', '.join(one.run for one in comparisons)}"

    def faster(number: SourcedNumber, factor: float) -> SourcedNumber:
        return SourcedNumber(number.value / factor, f"fitted: {why}; was {number}")

    made = replace(
        device,
        flops={dtype: faster(rate, own) for dtype, rate in device.flops.items()},
        memory_bandwidth=faster(device.memory_bandwidth, own),
        launch=faster(device.launch, 1 / own),
        packing={way: faster(one, 1 / own) for way, one in device.packing.items()},
    )
    levels = tuple(
        replace(
            level,
            alpha=faster(level.alpha, 1 / moved),
            bandwidth=faster(level.bandwidth, moved),
            port_bandwidth=None,
        )
        for level in cluster.levels
    )
    return replace(cluster, device=made, levels=levels)


def _fit_factors(comparisons: Sequence[RunComparison]) -> tuple[float, float]:
    from scipy.optimize import nnls

    rows = np.array([row for one in comparisons for row in _fit_rows(one)])
    parts, took = rows[:, :2], rows[:, 2]
    shares = parts[:, 0] / parts.sum(axis=1)
    if np.ptp(shares) < _MIN_SHARE_SPREAD:
        both = _clamp_factor(np.median(took / parts.sum(axis=1)))
        return both, both
    own, moved = nnls(parts, took)[0]
    return _clamp_factor(own), _clamp_factor(moved)


def _fit_rows(comparison: RunComparison) -> list[tuple[float, float, float]]:
    """Return what was predicted of devices and of links, and what they took together.

    All are parts of the measured step. A run that was watched has a row for each of the
    two, unless there is too little of one to tell.
    """
    step = comparison.step.measured or comparison.step.predicted
    said = comparison.prediction.terms_s
    own = sum(said.get(name, 0.0) for name in DEVICE_TERMS)
    whole = [(own / step, (comparison.step.predicted - own) / step, 1.0)]
    if comparison.breakdown is None:
        return whole
    seen = {
        t.name: (t.measured or 0.0) / step for t in comparison.terms if t.unit == "s"
    }
    waited = seen.pop(_INPUT_TERM, 0.0)
    late = sum(s for name, s in seen.items() if name not in (*DEVICE_TERMS, OTHER))
    moved = comparison.step.predicted - own - said.get(_INPUT_TERM, 0.0)
    if (
        min(late, 1 - late - waited, moved / comparison.step.predicted)
        < _MIN_STEP_FRACTION
    ):
        return whole
    return [(own / step, 0.0, 1 - late - waited), (0.0, moved / step, late)]


def _clamp_factor(factor: float) -> float:
    return float(min(max(factor, _MIN_FACTOR), _MAX_FACTOR))
