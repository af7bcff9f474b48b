"""What a run of a study measured, from the rows of its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from jaxdist.core.errors import FatalError
from jaxdist.core.run_record import Run
from jaxdist.launch.scaling.grid import ScalingRun

WARMUP_STEPS: Final = 3
"""First steps that are not measured: losses are awaited two steps late."""
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
    other_work: str = ""
    """That other work took the cores as the run began; empty: none did."""

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


def measurement_from_rows(
    scaling_run: ScalingRun,
    run: Run,
    samples: int,
    metrics: Sequence[LogRow],
    spans: Sequence[LogRow],
) -> ScalingMeasurement:
    """Read what a run measured from the rows of its files.

    Args:
        scaling_run: what it is.
        run: its summary.
        samples: training samples of an epoch.
        metrics: rows of `metrics.jsonl`, in their order.
        spans: rows of `spans.jsonl`.

    Raises:
        FatalError: there are too few steps to measure.
    """
    steps = [row for row in metrics if row.get("kind") == "train"]
    # Devices idle during an evaluation or a checkpoint, so the step behind one includes
    # the time to fill their queue again.
    pauses = ("evaluation", "checkpoint")
    refilled = {row["step"] + 1 for row in spans if row["name"] in pauses}
    # First steps fill queues and set up connections.
    steady = {
        row["step"]: row
        for row in steps
        if row["step"] > WARMUP_STEPS and row["step"] not in refilled
    }
    if not steady:
        raise FatalError(f"{scaling_run.title}: none of {len(steps)} steps is steady")
    waits = (
        row["seconds"]
        for row in spans
        if row["name"] == "input" and row["step"] in steady and "seconds" in row
    )
    return ScalingMeasurement(
        run=scaling_run,
        samples=samples,
        parameters=run.parameters,
        step_seconds=tuple(row["step_s"] for row in steady.values()),
        input_wait_s=sum(waits),
        sent_bytes=sum(run.bytes_by_collective.values()),
        losses=tuple(row["loss"] for row in steps),
    )
