"""Readings: what a run of a study measured, from the files of its folder."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from jaxdist.core.errors import FatalError
from jaxdist.core.run_record import Run
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.jsonl import read_json_object, read_jsonl
from jaxdist.launch.scaling.grid import ScalingRun

WARMUP_STEPS: Final = 3
"""First steps that are no measure: losses are awaited two steps late."""
MIN_STEPS: Final = 8
"""Steps that a run of a study has at least, five of them steady."""
LogRow = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScalingMeasurement:
    """What one run measured."""

    run: ScalingRun
    """The run."""
    samples: int
    """Training samples of an epoch."""
    parameters: int
    """Trainable numbers in the network."""
    step_seconds: tuple[float, ...]
    """Of each steady step, from one finished step to the next."""
    input_wait_s: float
    """Seconds of steady steps in which process 0 had no batch."""
    sent_bytes: int
    """Bytes that a device sends a step, by the plan's ledger."""
    losses: tuple[float, ...]
    """Training loss of every step, from the first."""

    @property
    def step_s(self) -> float:
        """Median seconds of a steady step."""
        return median(self.step_seconds)

    @property
    def samples_per_s(self) -> float:
        """Training samples a second: global batch over the median step."""
        return self.run.batch / self.step_s

    @property
    def samples_per_s_range(self) -> tuple[float, float]:
        """The same at the 95th and the 5th percentile of the steps: low and high."""
        ordered = sorted(self.step_seconds)
        last = len(ordered) - 1
        slow, fast = ordered[round(0.95 * last)], ordered[round(0.05 * last)]
        return self.run.batch / slow, self.run.batch / fast

    @property
    def epoch_s(self) -> float:
        """Seconds in which an epoch's samples pass, without evaluation."""
        return self.samples / self.samples_per_s

    @property
    def input_wait_share(self) -> float:
        """Share of the steady steps in which process 0 waited for its batch."""
        return self.input_wait_s / sum(self.step_seconds)

    @property
    def loss_curve(self) -> list[tuple[float, float]]:
        """The loss against epochs."""
        each = self.run.batch / self.samples
        return [(step * each, loss) for step, loss in enumerate(self.losses, 1)]


def is_complete(folder: Path) -> bool:
    """Tell whether a run was made from its first step to its last in one sitting."""
    found = read_json_object(RunFolder(folder).summary) or {}
    return found.get("status") == "done" and found.get("resumed_at") is None


def read_measurement(
    scaling_run: ScalingRun, folder: Path, samples: int
) -> ScalingMeasurement:
    """Read a run that is whole.

    Args:
        scaling_run: what it is.
        folder: where it is.
        samples: training samples of an epoch.

    Raises:
        Failed: it has too few steps to measure.
    """
    files = RunFolder(folder)
    run = Run.from_json(files.summary.read_text(encoding="utf-8"))
    return measurement_from_rows(
        scaling_run,
        run,
        samples,
        read_jsonl(files.metrics).rows,
        read_jsonl(files.spans).rows,
    )


def measurement_from_rows(
    scaling_run: ScalingRun,
    run: Run,
    samples: int,
    metrics: Sequence[LogRow],
    spans: Sequence[LogRow],
) -> ScalingMeasurement:
    """Read a run from its rows, which may be anybody's.

    Args:
        scaling_run: what it is.
        run: its summary.
        samples: training samples of an epoch.
        metrics: rows of `metrics.jsonl`, in their order.
        spans: rows of `spans.jsonl`.

    Raises:
        Failed: there are too few steps to measure.
    """
    steps = [row for row in metrics if row.get("kind") == "train"]
    broken = _steps_after_pauses(spans)
    steady = [
        row for row in steps if row["step"] > WARMUP_STEPS and row["step"] not in broken
    ]
    if not steady:
        raise FatalError(f"{scaling_run.title}: none of {len(steps)} steps is steady")
    among = {row["step"] for row in steady}
    waits = (
        row["seconds"]
        for row in spans
        if row["name"] == "input" and row["step"] in among and "seconds" in row
    )
    return ScalingMeasurement(
        run=scaling_run,
        samples=samples,
        parameters=run.parameters,
        step_seconds=tuple(row["step_s"] for row in steady),
        input_wait_s=sum(waits),
        sent_bytes=sum(run.bytes_by_collective.values()),
        losses=tuple(row["loss"] for row in steps),
    )


def _steps_after_pauses(spans: Iterable[LogRow]) -> set[int]:
    """Name the steps that follow an evaluation or a checkpoint: the devices idled."""
    others = ("evaluation", "checkpoint")
    return {row["step"] + 1 for row in spans if row["name"] in others}
