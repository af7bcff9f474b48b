"""Metrics of a run as files: a row for a step or an evaluation, a span for a phase."""

import contextlib
import json
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

import jax
import numpy as np
import psutil

from jaxdist.core.files import write_atomic
from jaxdist.core.validation import json_text, parse_json
from jaxdist.train.callbacks import (
    PausingCallback,
    ScalarsCallback,
    TrainingCallback,
)
from jaxdist.train.nonfinite import nonfinite_error
from jaxdist.train.optimizers import RunSchedule
from jaxdist.train.state import TrainState
from jaxdist.train.step_metrics import StepMetrics

LONG_PHASES: Final = frozenset({"compile", "evaluation", "checkpoint"})
"""Phases that are also written when they start: a run may die inside."""


class Recorder:
    """Writes `metrics.jsonl` and `spans.jsonl`, and adds up the seconds by phase.

    Args:
        metrics: file of losses and evaluations, appended to.
        spans: file of phases, appended to.
        start_time: start of the command, Unix seconds.
        on_phase: called with name and step of each phase that begins, and with an empty
            name where one ends.
        on_starvation: called where devices were idle as their input arrived.
        on_row: called with each row of the metrics, once it is written.
    """

    def __init__(
        self,
        metrics: Path,
        spans: Path,
        start_time: float,
        on_phase: Callable[[str, int], None] = lambda name, step: None,
        on_starvation: Callable[[], None] = lambda: None,
        on_row: Callable[[dict[str, Any]], None] = lambda row: None,
    ) -> None:
        self._path, self._on_row = metrics, on_row
        self._metrics, self._spans = _open_append(metrics), _open_append(spans)
        self._process = psutil.Process()
        self.start_time, self._on_phase = start_time, on_phase
        self.on_starvation = on_starvation
        # Kept for the summary at the end of the run.
        self.step_seconds: list[float] = []
        self._evaluated_steps: frozenset[int] = frozenset()
        self._phase_seconds: dict[str, float] = defaultdict(float)

    def resume_from(self, step: int) -> None:
        """Drop the rows of steps after `step`, which a resumed run does again."""
        self._metrics.close()
        kept = []
        for line in self._path.read_text(encoding="utf-8").split("\n"):
            # A kill may have torn the last line.
            with contextlib.suppress(json.JSONDecodeError):
                row = parse_json(line)
                if row["step"] <= step:
                    kept.append(row)
        # Replaced at once, so that a kill here loses no row.
        write_atomic(self._path, "".join(json_text(row) + "\n" for row in kept))
        self._evaluated_steps = frozenset(
            row["step"] for row in kept if row["kind"] == "test"
        )
        self._metrics = _open_append(self._path)

    def log_step(
        self,
        *,
        step: int,
        epoch: int,
        loss: float,
        learning_rate: float,
        step_s: float,
        scalars: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Write a finished step, counted from 1, with its seconds and memory."""
        self.step_seconds.append(step_s)
        memory = {"host_memory_bytes": self._process.memory_info().rss}
        # The most so far; virtual devices have no memory but that of the process.
        key = "peak_bytes_in_use"
        stats = [device.memory_stats() or {} for device in jax.local_devices()]
        peaks = [one[key] for one in stats if key in one]
        if peaks:
            memory["device_memory_bytes"] = max(peaks)
        self._log_row(
            kind="train",
            step=step,
            epoch=epoch,
            loss=loss,
            **scalars,
            learning_rate=learning_rate,
            step_s=step_s,
            **memory,
            time=time.time(),
        )

    def log_skipped_step(self, *, step: int, epoch: int) -> None:
        """Write a step whose gradient was not finite, which changed nothing."""
        self._log_row(kind="skip", step=step, epoch=epoch, time=time.time())

    def log_evaluation(
        self, *, step: int, epoch: int, metrics: Mapping[str, Any]
    ) -> None:
        """Write an evaluation after `step` steps, unless the file has it already."""
        if step not in self._evaluated_steps:
            told = {"kind": "test", "step": step, "epoch": epoch, **metrics}
            self._log_row(**told, time=time.time())

    def was_evaluated(self, step: int) -> bool:
        """Return whether the run evaluated after `step` steps before it resumed."""
        return step in self._evaluated_steps

    def _log_row(self, **values: Any) -> None:
        _write_row(self._metrics, **values)
        self._on_row(values)

    def phase(self, name: str, step: int) -> "_Phase":
        """Return a context manager that times a phase and writes it as a span."""
        return _Phase(self, name, step)

    def phase_seconds(self) -> dict[str, float]:
        """Return seconds by phase since the command started, `other` included."""
        # Clocks of two kinds are compared, so the rest may come out a little negative.
        wall = time.time() - self.start_time
        known = dict(self._phase_seconds)
        return {**known, "other": max(0.0, wall - sum(known.values()))}

    def close(self) -> None:
        """Close both files, also where the disk is too full for the last line."""
        # Closing flushes, and may fail.
        try:
            self._metrics.close()
        finally:
            self._spans.close()


class _Phase:
    """A phase under way.

    A class rather than a generator: one that a KeyboardInterrupt leaves behind would
    write its span when it is collected, after the files were closed.
    """

    def __init__(self, recorder: Recorder, name: str, step: int) -> None:
        self._recorder, self._name, self._step = recorder, name, step
        self._start, self._tick = time.time(), time.perf_counter()

    def __enter__(self) -> None:
        self._recorder._on_phase(self._name, self._step)
        if self._name in LONG_PHASES:
            _write_row(
                self._recorder._spans,
                name=self._name,
                start=self._start,
                step=self._step,
                begin=True,
            )

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self._tick
        self._recorder._on_phase("", self._step)
        self._recorder._phase_seconds[self._name] += seconds
        _write_row(
            self._recorder._spans,
            name=self._name,
            start=self._start,
            seconds=seconds,
            step=self._step,
        )


def _open_append(path: Path) -> TextIO:
    # Line buffered: a killed run leaves whole lines behind.
    return path.open("a", buffering=1, encoding="utf-8")


def _write_row(file: TextIO, **values: Any) -> None:
    file.write(json_text(values) + "\n")


MAX_IN_FLIGHT_STEPS: Final = 2
"""Steps dispatched to the devices before the loss of an earlier one is awaited."""

# Learning rates computed at once: one call a step would cost more than writing its row.
_RATE_BLOCK: Final = 4096


class LossQueue:
    """Fetches losses a few steps late, so that the devices never wait for the host."""

    clock = staticmethod(time.perf_counter)
    """Seconds that step times are differences of."""

    def __init__(
        self,
        run_schedule: RunSchedule,
        recorder: Recorder,
        callback: TrainingCallback,
        learning_rates: Callable[[np.ndarray], Any],
        skipped_steps: int,
    ) -> None:
        self.run_schedule, self.recorder = run_schedule, recorder
        self.callback = callback
        # Asked once: to look for the method at each step would cost as much as a step's
        # row.
        self._on_scalars = (
            callback.on_scalars if isinstance(callback, ScalarsCallback) else None
        )
        self.first_step_s = 0.0
        self._learning_rates, self._block, self._table = learning_rates, -1, np.zeros(0)
        self._skipped_steps, self._consecutive_skips = skipped_steps, 0
        self._pending: deque[tuple[int, StepMetrics, Any]] = deque()
        self._state: TrainState | None = None
        self._last = self.clock()

    @property
    def devices_idle(self) -> bool:
        """Whether the devices have finished all dispatched steps."""
        return all(metrics.loss.is_ready() for _, metrics, _ in self._pending)

    def push(
        self, step: int, metrics: StepMetrics, state: TrainState, ids: jax.Array | None
    ) -> None:
        """Add a dispatched step; await the one `MAX_IN_FLIGHT_STEPS` before it.

        Args:
            step: the step, from 1.
            metrics: its own, or those of the replicas.
            state: the state after it, which an error names the leaf of.
            ids: ids of the samples in its batch, where they are known.
        """
        # Only the newest state is alive: a step is given the one before to reuse.
        self._state = state
        self._pending.append((step, metrics, ids))
        # The very first loss is awaited at once: it ends the wait that users notice
        # most.
        if len(self._pending) > MAX_IN_FLIGHT_STEPS or not self.first_step_s:
            self._finish_step()

    def drain(self) -> None:
        """Await all dispatched steps."""
        # Where none is left no phase begins: it would be of no step.
        if not self._pending:
            return
        with self.recorder.phase("compute", self._pending[-1][0]):
            while self._pending:
                self._finish_step()

    def pause(self, callback: PausingCallback) -> None:
        """Run a callback while the devices are idle; no step's time includes it."""
        if self._pending:
            self.drain()
        callback.on_pause()
        self.restart_clock(True)

    def restart_clock(self, interrupted: bool) -> None:
        """Time the next step from now if something else came in between."""
        if interrupted:
            self._last = self.clock()

    def _finish_step(self) -> None:
        step, metrics, ids = self._pending.popleft()
        loss = _host_loss(metrics.loss)
        now = self.clock()
        seconds, self._last = now - self._last, now
        if not self.first_step_s:
            self.first_step_s = time.time() - self.recorder.start_time
        epoch = self.run_schedule.epoch_of(step)
        if not math.isfinite(loss):
            self._skipped_steps += 1
            self._consecutive_skips += 1
            # A skipped step reports NaN; infinity is a state that has moved.
            allowed = self.run_schedule.max_consecutive_skips
            if self._consecutive_skips > allowed or not math.isnan(loss):
                batch = [] if ids is None else [int(i) for x in _shards(ids) for i in x]
                raise nonfinite_error(step, loss, self._state, set(batch))
            self.recorder.log_skipped_step(step=step, epoch=epoch)
            return

        self._consecutive_skips = 0
        found = {name: _host_scalar(x) for name, x in metrics.scalars.items()}
        # A sum of squares may overflow where no gradient does.
        scalars = {name: x for name, x in found.items() if math.isfinite(x)}
        # Skipped steps change nothing, so the optimizer has not counted them.
        block, place = divmod(step - 1 - self._skipped_steps, _RATE_BLOCK)
        if block != self._block:
            steps = np.arange(block * _RATE_BLOCK, (block + 1) * _RATE_BLOCK)
            self._block, self._table = block, np.asarray(self._learning_rates(steps))
        self.recorder.log_step(
            step=step,
            epoch=epoch,
            loss=loss,
            learning_rate=float(self._table[place]),
            step_s=seconds,
            scalars=scalars,
        )
        if self._on_scalars is not None:
            self._on_scalars(step=step, scalars=scalars)
        self.callback.on_step(step=step, loss=loss, step_s=seconds)


def _host_loss(array: Any) -> float:
    """Return the loss of a step, infinity where a device of this host reports it."""
    # Devices have the same number, but for infinity where their own part of the state
    # is not finite.
    if not array.ndim and math.inf in (float(part) for part in _shards(array)):
        return math.inf
    return _host_scalar(array)


def _host_scalar(array: Any) -> float:
    """Return a number that all devices have, or the mean over this host's replicas."""
    parts = _shards(array)
    return float(np.mean(list(parts)) if array.ndim else next(parts))


def _shards(array: Any) -> Iterator[np.ndarray]:
    """Yield what each device of this host has of an array."""
    parts = getattr(array, "addressable_shards", None)
    if parts is None:
        yield np.asarray(float(array))
        return
    for part in parts:
        yield np.asarray(part.data)
