"""A result: the readings of a study side by side, each against the fewest processes."""

from dataclasses import dataclass

from jaxdist.launch.scaling.fit import ScalingFit, ScalingFitFailure, ScalingPoint, fit
from jaxdist.launch.scaling.grid import NO_REDUCE, InputSource, ScalingGrid, ScalingRun
from jaxdist.launch.scaling.placement import ScalingPlacement
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that gave no reading."""

    cell: ScalingRun
    """The run."""
    why: str
    """How it ended, with the last thing that it said."""
    log: str
    """File of all that it said."""


@dataclass(frozen=True, kw_only=True)
class SeriesFit:
    """The parts of a step, over the runs of one way to sum on one kind of input."""

    reduce: str
    """The way."""
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

        1 is linear, in strong and in weak scaling; None where that run is lost.
        """
        base = self.base(reading)
        if base is None:
            return None
        own, first = (one.samples_per_s / one.run.processes for one in (reading, base))
        return own / first

    def base(self, reading: ScalingMeasurement) -> ScalingMeasurement | None:
        """Return the run on the fewest processes that a run is held against."""
        cell, fewest = reading.run, self.grid.processes[0]
        line = self.series(cell.reduction, cell.input, cell.grid_batch)
        return next((one for one in line if one.run.processes == fewest), None)

    def series(
        self, reduce: str, source: InputSource, grid_batch: int
    ) -> list[ScalingMeasurement]:
        """Return the runs of one line of a plot, by their number of processes."""
        return [
            one
            for one in self.readings
            if one.run.reduction in (NO_REDUCE, reduce)
            and (one.run.input, one.run.grid_batch) == (source, grid_batch)
        ]

    @property
    def fits(self) -> tuple[SeriesFit, ...]:
        """The parts of a step, for each way to sum and kind of input."""
        return tuple(
            self._fitted(reduce, source)
            for source in self.grid.inputs
            for reduce in self.grid.reductions
        )

    @property
    def drifts(self) -> tuple[LossDivergence, ...]:
        """Losses against those on fewer processes, where the steps are the same."""
        pairs = ((one, self._same_steps(one)) for one in self.readings)
        return tuple(
            _loss_divergence(one, base) for one, base in pairs if base is not one
        )

    def point(self, reading: ScalingMeasurement) -> ScalingPoint:
        """Return a reading as a fit sees it."""
        cell = reading.run
        return ScalingPoint(
            processes=cell.processes,
            each=cell.batch / cell.processes,
            sent_bytes=reading.sent_bytes,
            seconds=reading.step_s,
            cores=self.place.cores,
        )

    def _same_steps(self, reading: ScalingMeasurement) -> ScalingMeasurement:
        same = [
            one
            for one in self.readings
            if one.run.batch == reading.run.batch and one.run.input == reading.run.input
        ]
        return min(same, key=lambda one: one.run.processes)

    def _fitted(self, reduce: str, source: InputSource) -> SeriesFit:
        points = tuple(
            self.point(reading)
            for asked in self.grid.batches
            for reading in self.series(reduce, source, asked)
        )
        return SeriesFit(reduce=reduce, source=source, points=points, found=fit(points))


def _loss_divergence(
    reading: ScalingMeasurement, base: ScalingMeasurement
) -> LossDivergence:
    pairs = list(zip(reading.losses, base.losses))
    first, last = (
        abs(own - other) / abs(other) for own, other in (pairs[0], pairs[-1])
    )
    return LossDivergence(cell=reading.run, against=base.run, first=first, last=last)
