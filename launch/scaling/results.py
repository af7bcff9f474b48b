"""A study's result: its runs side by side, each against that on fewest processes."""

from dataclasses import dataclass

from jaxdist.launch.scaling.fit import ScalingFit, ScalingFitFailure, ScalingPoint, fit
from jaxdist.launch.scaling.grid import NO_REDUCE, InputSource, ScalingGrid, ScalingRun
from jaxdist.launch.scaling.placement import ScalingPlacement
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that gave no measurement."""

    cell: ScalingRun
    """The run."""
    why: str
    """How it ended, with its last error message."""
    log: str
    """File of all its output."""


@dataclass(frozen=True, kw_only=True)
class SeriesFit:
    """The parts of a step, fitted to the runs of one all-reduce and one input."""

    reduce: str
    """Algorithm of the all-reduce."""
    source: InputSource
    """The input."""
    points: tuple[ScalingPoint, ...]
    """What was measured."""
    found: ScalingFit | ScalingFitFailure
    """The parts, or why there are none."""


@dataclass(frozen=True, kw_only=True)
class LossDivergence:
    """How far the losses of a run are from those of the same steps elsewhere."""

    cell: ScalingRun
    """The run."""
    against: ScalingRun
    """The run of the same batch and input on the fewest processes."""
    first: float
    """Share by which the losses of the first step differ."""
    last: float
    """The same of the last step."""


@dataclass(frozen=True, kw_only=True)
class ScalingResult:
    """A study, measured."""

    experiment: str
    """Name or file of the experiment."""
    grid: ScalingGrid
    """What was varied."""
    place: ScalingPlacement
    """Where it ran."""
    readings: tuple[ScalingMeasurement, ...]
    """Of the runs that ended well, in the order of the cells."""
    lost: tuple[FailedRun, ...] = ()
    """The others."""

    def efficiency(self, reading: ScalingMeasurement) -> float | None:
        """Return samples a second and process, over that of the fewest processes.

        1 is linear, in strong and in weak scaling; None where the run on the fewest
        processes failed.
        """
        cell, fewest = reading.run, self.grid.processes[0]
        line = self.series(cell.reduction, cell.input, cell.grid_batch)
        base = next((one for one in line if one.run.processes == fewest), None)
        if base is None:
            return None
        own, first = (one.samples_per_s / one.run.processes for one in (reading, base))
        return own / first

    def series(
        self, reduce: str, source: InputSource, grid_batch: int
    ) -> list[ScalingMeasurement]:
        """Return the runs of one line of a plot, by their number of processes."""
        # A run on one process reduces nothing: it begins the line of each algorithm.
        return [
            one
            for one in self.readings
            if one.run.reduction in (NO_REDUCE, reduce)
            and (one.run.input, one.run.grid_batch) == (source, grid_batch)
        ]

    @property
    def fits(self) -> tuple[SeriesFit, ...]:
        """The parts of a step, for each all-reduce algorithm and kind of input."""
        found = []
        for source in self.grid.inputs:
            for reduce in self.grid.reductions:
                # Runs of all batches in one fit: a second batch tells the serial part
                # from the communication of a ring.
                points = tuple(
                    ScalingPoint(
                        processes=one.run.processes,
                        each=one.run.batch / one.run.processes,
                        sent_bytes=one.sent_bytes,
                        seconds=one.step_s,
                        cores=self.place.cores,
                    )
                    for batch in self.grid.batches
                    for one in self.series(reduce, source, batch)
                )
                series = SeriesFit(
                    reduce=reduce, source=source, points=points, found=fit(points)
                )
                found.append(series)
        return tuple(found)

    @property
    def drifts(self) -> tuple[LossDivergence, ...]:
        """Losses against those on fewer processes, where the steps are the same."""
        found = []
        for reading in self.readings:
            cell = reading.run
            # The same global batch of the same samples: in exact arithmetic the losses
            # would be equal, whatever the number of processes.
            same = [
                one
                for one in self.readings
                if one.run.batch == cell.batch and one.run.input == cell.input
            ]
            # Of the runs that there are: that on the fewest processes may have failed.
            base = min(same, key=lambda one: one.run.processes)
            if base is reading:
                continue
            pairs = list(zip(reading.losses, base.losses))
            first, last = (abs(a - b) / abs(b) for a, b in (pairs[0], pairs[-1]))
            drift = LossDivergence(cell=cell, against=base.run, first=first, last=last)
            found.append(drift)
        return tuple(found)
