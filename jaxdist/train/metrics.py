"""What a run reports as it goes: a line a step or evaluation, a span a phase."""

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

LONG_PHASES: Final = frozenset({"compile", "evaluation", "checkpoint"})
"""Phases that are written when they start as well: a run may die inside."""


class Recorder:
    """Writes `metrics.jsonl` and `spans.jsonl`, and adds up the seconds by phase.

    Args:
        metrics: file of losses and scores, appended to.
        spans: file of phases, appended to.
        start_time: when the command started, Unix seconds.
        on_phase: is told each phase that begins, with its step, and, without a name,
            that one has ended.
        on_starvation: is told when devices had nothing left to do as their input came.
    """

    def __init__(
        self,
        metrics: Path,
        spans: Path,
        start_time: float,
        on_phase: Callable[[str, int], None] = lambda name, step: None,
        on_starvation: Callable[[], None] = lambda: None,
    ) -> None:
        # Files are line buffered: a killed run leaves whole lines behind.
        self._path = metrics
        self._metrics = _open_append(metrics)
        self._spans = _open_append(spans)
        self.start_time, self._on_phase = start_time, on_phase
        self.on_starvation = on_starvation
        self.step_seconds: list[float] = []
        self._evaluated_steps: frozenset[int] = frozenset()
        self._phase_seconds: dict[str, float] = defaultdict(float)

    def resume_from(self, step: int) -> None:
        """Drop the lines of steps after `step`: a resumed run does them again."""
        self._metrics.close()
        kept = _truncate_after(self._path, step)
        self._evaluated_steps = frozenset(
            r["step"] for r in kept if r["kind"] == "test"
        )
        self._metrics = _open_append(self._path)

    def log_step(
        self, *, step: int, epoch: int, loss: float, learning_rate: float, step_s: float
    ) -> None:
        """Note a finished step, `step` counted from 1, and how long it took."""
        self.step_seconds.append(step_s)
        self._write_row(
            self._metrics,
            kind="train",
            step=step,
            epoch=epoch,
            loss=loss,
            learning_rate=learning_rate,
            step_s=step_s,
            time=time.time(),
        )

    def log_skipped_step(self, *, step: int, epoch: int) -> None:
        """Note a step whose gradient was not finite, which changed nothing."""
        self._write_row(
            self._metrics, kind="skip", step=step, epoch=epoch, time=time.time()
        )

    def tested(self, *, step: int, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Note an evaluation after `step` steps; once, if it is done again."""
        if step in self._evaluated_steps:
            return
        self._write_row(
            self._metrics,
            kind="test",
            step=step,
            epoch=epoch,
            **metrics,
            time=time.time(),
        )

    def was_evaluated(self, step: int) -> bool:
        """Tell whether an earlier sitting has evaluated after `step` steps."""
        return step in self._evaluated_steps

    def phase(self, name: str, step: int) -> "_Phase":
        """Time a phase of the loop and write it as a span."""
        return _Phase(self, name, step)

    def phase_seconds(self) -> dict[str, float]:
        """Return seconds by phase since the command started, `other` included."""
        wall = time.time() - self.start_time
        known = dict(self._phase_seconds)
        return {**known, "other": max(0.0, wall - sum(known.values()))}

    def start_phase(self, name: str, step: int, start: float) -> None:
        """Note that a phase began at `start`, Unix seconds."""
        self._on_phase(name, step)
        if name in LONG_PHASES:
            self._write_row(self._spans, name=name, start=start, step=step, begin=True)

    def end_phase(self, name: str, step: int, start: float, seconds: float) -> None:
        """Note that a phase ended, `seconds` after its start."""
        self._on_phase("", step)
        self._phase_seconds[name] += seconds
        self._write_row(self._spans, name=name, start=start, seconds=seconds, step=step)

    def close(self) -> None:
        """Close both files, also where the disk is too full for the last line."""
        try:
            self._metrics.close()
        finally:
            self._spans.close()

    @staticmethod
    def _write_row(file: TextIO, **values: Any) -> None:
        file.write(json.dumps(values) + "\n")


class _Phase:
    """A phase under way.

    No generator: one that a keyboard's interrupt leaves behind would write its line
    when it is collected, after the files were closed.
    """

    def __init__(self, recorder: Recorder, name: str, step: int) -> None:
        self._recorder, self._name, self._step = recorder, name, step
        self._start, self._tick = time.time(), time.perf_counter()

    def __enter__(self) -> None:
        self._recorder.start_phase(self._name, self._step, self._start)

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self._tick
        self._recorder.end_phase(self._name, self._step, self._start, seconds)


def _open_append(path: Path) -> TextIO:
    return path.open("a", buffering=1, encoding="utf-8")


def _truncate_after(metrics: Path, step: int) -> list[dict[str, Any]]:
    """Keep the whole lines of steps up to `step`; a kill may have torn the last."""
    rows = []
    for line in metrics.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    kept = [row for row in rows if row["step"] <= step]
    part = metrics.with_name(f".{metrics.name}.part")
    text = "".join(json.dumps(row) + "\n" for row in kept)
    part.write_text(text, encoding="utf-8")
    part.replace(metrics)
    return kept
