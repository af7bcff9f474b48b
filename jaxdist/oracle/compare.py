"""A run's prediction beside its measurement, term by term, and what follows from it."""

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
    WAIT,
    LayerTime,
    StepBreakdown,
)
from jaxdist.oracle.link_groups import LinkGroup
from jaxdist.oracle.predict import Prediction
from jaxdist.oracle.schedule_times import PipelineTimeline

DEVICE_TERMS: Final = (COMPUTE, BUBBLE, COMPRESSION, UPDATE)
"""Terms of a device alone; the others are of the links, and of the input."""
_DEVICE_PATHS: Final = {
    COMPUTE: ("device.flops", "device.efficiency", "device.launch"),
    COMPRESSION: ("device.packing",),
    UPDATE: ("device.memory_bandwidth",),
}
"""Numbers of a cluster that a term of the device depends on."""
_CALIBRATED: Final = ("measured", "fitted")
"""Origins of numbers that are not guessed."""
_RECALIBRATED_PATHS: Final = (
    "device.flops",
    "device.memory_bandwidth",
    "device.launch",
    "device.packing",
)
"""Numbers of a device that a recalibration changes."""
_MIN_FACTOR: Final = 0.05
_MAX_FACTOR: Final = 20.0
"""Factors between which a recalibration stays."""
_MIN_SHARE_SPREAD: Final = 0.1
"""Least difference of shares by which two factors are told apart."""
_INPUT_TERM: Final = "input"
_MIN_STEP_FRACTION: Final = 0.02
"""Part of a step that is too little to say how fast something is."""


@dataclass(frozen=True, kw_only=True)
class TermComparison:
    """One number of a run, as it was predicted and as it was measured."""

    name: str
    """`step`, `memory`, a term of the step, or a layer."""
    unit: str
    """`s` or `B`."""
    predicted: float
    """By the oracle."""
    measured: float | None
    """In the run; None where a run does not tell it apart."""

    @property
    def accuracy(self) -> float | None:
        """1 - |predicted - measured| / measured, not below 0."""
        if not self.measured:
            return None
        return max(0.0, 1 - abs(self.predicted - self.measured) / self.measured)

    @property
    def abs_error(self) -> float:
        """|predicted - measured|; 0 where there is one alone."""
        return 0.0 if self.measured is None else abs(self.measured - self.predicted)


@dataclass(frozen=True, kw_only=True)
class Misprediction:
    """A term that was predicted badly."""

    term: TermComparison
    """The predicted and the measured seconds."""
    cause: str
    """The likely cause."""
    remedy: str
    """What mends the prediction, or the run."""

    @property
    def seconds(self) -> float:
        """Measured less predicted."""
        return (self.term.measured or 0.0) - self.term.predicted


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """A run beside its prediction."""

    run: str
    """Name of the run, and the fingerprint of its record."""
    prediction: Prediction
    """The prediction of its step."""
    step: TermComparison
    """The whole step."""
    terms: tuple[TermComparison, ...]
    """Its parts, the longest first, then the memory."""
    in_interval: bool
    """Whether the measured step lies in the interval."""
    layers: tuple[TermComparison, ...] = ()
    """Compute by layer, the largest errors first; empty without a profiler."""
    breakdown: StepBreakdown | None = None
    """Where its devices spent the profiled steps."""
    profiler_slowdown: float = 1.0
    """A profiled step over the median step."""
    predicted_timeline: PipelineTimeline = ()
    """Work of stages in time, as predicted; empty where the network is not cut."""
    link_groups: Mapping[str, LinkGroup] = field(default_factory=dict)
    """The links of each set of axes that the step communicates along."""
    command_args: str = ""
    """Run and cluster as they were typed; empty: their names."""

    @property
    def mispredictions(self) -> tuple[Misprediction, ...]:
        """The two terms with the largest errors; none without a profiler."""
        if self.breakdown is None:
            return ()
        breakdown, found = self.breakdown, list[Misprediction]()
        count, cores = len(breakdown.devices), breakdown.cores
        crowd = f"{count} devices of the process share {cores} cores"
        crowded = f"at most {cores} devices in a process of this machine"
        again = self.recalibrate_command
        # Memory is among the terms, in bytes, and would win every comparison with
        # seconds.
        known = [x for x in self.terms if x.unit == "s" and x.abs_error]
        for term in sorted(known, key=lambda one: -one.abs_error)[:2]:
            # Terms that no number of the cluster predicts come first.
            name = term.name
            if name in (WAIT, BUBBLE, OTHER) and count > cores:
                cause, remedy = f"{crowd}, so they take turns", crowded
            elif name == WAIT:
                cause, remedy = "devices come to a collective at different times", again
            elif name == BUBBLE:
                cause = "stages take other times than was predicted of them"
                more = "plan.pipe.cuts where measured stages are equal, or more"
                remedy = f"{more} microbatches"
            elif name == OTHER:
                cause = "between operations nothing ran: each is short beside its start"
                remedy = again
            elif name == _INPUT_TERM:
                cause = "the samples of a step were not there when it began"
                remedy = "data.readers=4, or data that is kept"
            else:
                paths, parts = _DEVICE_PATHS.get(name, ("levels", "overlap")), []
                # `overlap` decides only where a part of the term was said to overlap.
                hides = name in self.prediction.overlapped_s
                guessed = dict.fromkeys(
                    ".".join(path.split(".")[: 3 if path.startswith("levels") else 2])
                    for path, origin in self.prediction.provenance.items()
                    if path.startswith(paths)
                    and not origin.startswith(_CALIBRATED)
                    and (path != "overlap" or hides)
                )
                if guessed:
                    parts.append(f"{', '.join(guessed)}: nobody measured")
                measured = term.measured or 0.0
                if name == COMPUTE and self.layers:
                    layer = self.layers[0]
                    took, said = 1e3 * (layer.measured or 0.0), 1e3 * layer.predicted
                    where = layer.name or "operations of no layer"
                    parts.append(
                        f"most of it in {where}, {took:,.2f} ms, predicted {said:,.2f}"
                    )
                # A wait for another process shows as a longer collective on this one's
                # links.
                moves = (
                    name not in (*_DEVICE_PATHS, OTHER) and measured > term.predicted
                )
                if moves and breakdown.processes > 1:
                    parts.append(
                        "it may be a wait for other processes, which nobody watched"
                    )
                if count > cores:
                    parts.append(crowd)
                otherwise = "the numbers it rests on were measured elsewhere"
                cause, remedy = "; ".join(parts) or otherwise, again
            found.append(Misprediction(term=term, cause=cause, remedy=remedy))
        return tuple(found)

    @property
    def recalibrate_command(self) -> str:
        """The command that recalibrates the cluster with the run."""
        name, on = self.run.partition("@")[0], self.prediction.cluster
        asked = self.command_args or f"{name} --cluster {on}"
        return f"jaxdist compare {asked} --recalibrate better.json"

    @property
    def likely_cause(self) -> str:
        """What the error of the step most likely comes from, in words."""
        # The larger half of the step, device or links, points at the numbers to
        # measure.
        own = sum(self.prediction.terms_s.get(name, 0.0) for name in DEVICE_TERMS)
        longest = max(self.prediction.terms_s.items(), key=lambda pair: pair[1])[0]
        links = ("levels", *["overlap"] * (longest in self.prediction.overlapped_s))
        of = _RECALIBRATED_PATHS if 2 * own > self.prediction.step_s else links
        guessed = [
            path
            for path, origin in self.prediction.provenance.items()
            if path.startswith(of) and not origin.startswith(_CALIBRATED)
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
    # A recalibration writes the fingerprints of its runs into the origin of each
    # number.
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
    """Compare a run with its prediction.

    Args:
        run: as `summary.json` has it.
        prediction: of the same plan.
        breakdown: of the profiled steps.
        layer_times: predicted seconds of each layer in a step.
        predicted_timeline: predicted work of stages in time.
        link_groups: the links of each set of axes that the step communicates along.
        command_args: run and cluster as they were typed.
    """
    step = TermComparison(
        name="step", unit="s", predicted=prediction.step_s, measured=run.step_s or None
    )
    waited = run.phases_s.get("input", 0.0) / max(1, run.steps)
    seen, missing, slower = {_INPUT_TERM: waited}, None, 1.0
    layers: list[TermComparison] = []
    if breakdown is not None:
        # Profiled steps are slower than others, so each measured term is its share of
        # the median step.
        missing, slower = 0.0, breakdown.busiest.step_s / run.step_s
        seen = {name: s / slower for name, s in breakdown.busiest.terms_s.items()}
        # Between steps nothing runs: for as long as the host waited for samples that is
        # the input's, the rest is nobody's.
        between = seen.pop(BETWEEN_STEPS, 0.0)
        seen[_INPUT_TERM] = min(between, waited)
        seen[OTHER] = seen.get(OTHER, 0.0) + between - seen[_INPUT_TERM]
        times = layer_times or {}
        names = {n: None for one in breakdown.devices for n in one.layers_s}
        for name in {**times, **names}:
            layers.append(
                TermComparison(
                    name=name,
                    unit="s",
                    predicted=times.get(name, LayerTime()).both,
                    measured=breakdown.layer(name).both / slower,
                )
            )
        layers.sort(key=lambda term: -term.abs_error)
    said = {_INPUT_TERM: 0.0} | prediction.terms_s
    parts = [
        TermComparison(
            name=name,
            unit="s",
            predicted=said.get(name, 0.0),
            measured=seen.get(name, missing),
        )
        for name in {**said, **seen}
    ]
    # Longest first, by whichever of the two is longer.
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
        layers=tuple(layers),
        breakdown=breakdown,
        profiler_slowdown=slower,
        predicted_timeline=predicted_timeline,
        link_groups=link_groups or {},
        command_args=command_args,
    )


def recalibrate_cluster(
    cluster: Cluster,
    comparisons: Sequence[RunComparison],
    source: str = "jaxdist compare, runs",
) -> Cluster:
    """Return the cluster with speeds that explain what was measured.

    Two factors are fitted, a of devices and b of links, with the same relative weight:

        a (compute + bubble + packing + update) + b (the others) = step

    A profiled run has both parts measured, so one is enough. Waiting for others is of
    the links, as it is where links are calibrated; idle time is of the devices, which
    start late; waiting for input is of neither. Runs without a profiler, of one kind,
    do not tell the two apart: then they have the same factor.

    Args:
        cluster: as of the predictions, of one kind of device; others are refused.
        comparisons: runs with their predictions.
        source: what the origins of the numbers say of where these come from.
    """
    # Non-negative least squares: a negative speed would fit noise. scipy takes long to
    # import.
    from scipy.optimize import nnls

    # Runs do not tell what is the speed of which kind.
    cluster.only_device("a recalibration")
    # Rows of predicted device and link seconds and the measured sum of both, as parts
    # of the measured step.
    fits: list[tuple[float, float, float]] = []
    for one in comparisons:
        predicted, said = one.step.predicted, one.prediction.terms_s
        # Each row is divided by its step, so long steps do not outweigh short ones.
        step = one.step.measured or predicted
        own = sum(said.get(name, 0.0) for name in DEVICE_TERMS)
        whole = (own / step, (predicted - own) / step, 1.0)
        if one.breakdown is None:
            fits.append(whole)
            continue
        seen = {t.name: (t.measured or 0.0) / step for t in one.terms if t.unit == "s"}
        waited = seen.pop(_INPUT_TERM, 0.0)
        # Neither of the device nor idle: what the links took, waits for others
        # included.
        late = sum(s for name, s in seen.items() if name not in (*DEVICE_TERMS, OTHER))
        moved = predicted - own - said.get(_INPUT_TERM, 0.0)
        if min(late, 1 - late - waited, moved / predicted) < _MIN_STEP_FRACTION:
            # Too little of one of the two to tell how fast it is.
            fits.append(whole)
        else:
            # A profile tells the two parts apart, so each has an equation of its own.
            fits.append((own / step, 0.0, 1 - late - waited))
            fits.append((0.0, moved / step, late))
    rows = np.array(fits)
    # [row, device or link], the measured part, and the predicted part of both.
    parts, took, both = rows[:, :2], rows[:, 2], rows[:, :2].sum(axis=1)
    if np.ptp(parts[:, 0] / both) < _MIN_SHARE_SPREAD:
        # Runs of one kind do not tell the factors apart: both are the same.
        fitted = [np.median(took / both)] * 2
    else:
        fitted = nnls(parts, took)[0]
    # A factor of 0, which NNLS may return, would make a speed infinite.
    a, b = (float(min(max(f, _MIN_FACTOR), _MAX_FACTOR)) for f in fitted)
    device = cluster.device
    why = f"{source} {', '.join(one.run for one in comparisons)}"

    def faster(number: SourcedNumber, factor: float) -> SourcedNumber:
        return SourcedNumber(number.value / factor, f"fitted: {why}; was {number}")

    # Rates are divided by the factor, times multiplied by it.
    made = replace(
        device,
        flops={dtype: faster(rate, a) for dtype, rate in device.flops.items()},
        memory_bandwidth=faster(device.memory_bandwidth, a),
        launch=faster(device.launch, 1 / a),
        packing={way: faster(one, 1 / a) for way, one in device.packing.items()},
    )
    levels = tuple(
        replace(
            level,
            alpha=faster(level.alpha, 1 / b),
            bandwidth=faster(level.bandwidth, b),
            # The bandwidth is fitted as a whole, so the datasheet's port says nothing
            # any more.
            port_bandwidth=None,
        )
        for level in cluster.levels
    )
    return replace(cluster, device=made, levels=levels)
