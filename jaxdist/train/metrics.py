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
        started: when the command started, Unix seconds.
        enters: is told each phase that begins, with its step, and, without a name,
            that one has ended.
        starved: is told when devices had nothing left to do as their input came.
    """

    def __init__(
        self,
        metrics: Path,
        spans: Path,
        started: float,
        enters: Callable[[str, int], None] = lambda name, step: None,
        starved: Callable[[], None] = lambda: None,
    ) -> None:
        # Files are line buffered: a killed run leaves whole lines behind.
        self._path = metrics
        self._metrics = _open_append(metrics)
        self._spans = _open_append(spans)
        self.started, self._enters = started, enters
        self.starved = starved
        self.step_seconds: list[float] = []
        self._tested: frozenset[int] = frozenset()
        self._phases: dict[str, float] = defaultdict(float)

    def goes_on_from(self, step: int) -> None:
        """Drop the lines of steps after `step`: a resumed run does them again."""
        self._metrics.close()
        kept = _truncate_after(self._path, step)
        self._tested = frozenset(r["step"] for r in kept if r["kind"] == "test")
        self._metrics = _open_append(self._path)

    def trained(
        self, *, step: int, epoch: int, loss: float, rate: float, seconds: float
    ) -> None:
        """Note a finished step, `step` counted from 1, and how long it took."""
        self.step_seconds.append(seconds)
        self._line(
            self._metrics,
            kind="train",
            step=step,
            epoch=epoch,
            loss=loss,
            learning_rate=rate,
            step_s=seconds,
            time=time.time(),
        )

    def skipped(self, *, step: int, epoch: int) -> None:
        """Note a step whose gradient was not finite, which changed nothing."""
        self._line(self._metrics, kind="skip", step=step, epoch=epoch, time=time.time())

    def tested(self, *, step: int, epoch: int, score: Mapping[str, Any]) -> None:
        """Note an evaluation after `step` steps; once, if it is done again."""
        if step in self._tested:
            return
        self._line(
            self._metrics,
            kind="test",
            step=step,
            epoch=epoch,
            **score,
            time=time.time(),
        )

    def was_tested(self, step: int) -> bool:
        """Tell whether an earlier sitting has evaluated after `step` steps."""
        return step in self._tested

    def phase(self, name: str, step: int) -> "_Phase":
        """Time a phase of the loop and write it as a span."""
        return _Phase(self, name, step)

    def phases(self) -> dict[str, float]:
        """Return seconds by phase since the command started, `other` included."""
        wall = time.time() - self.started
        known = dict(self._phases)
        return {**known, "other": max(0.0, wall - sum(known.values()))}

    def begun(self, name: str, step: int, start: float) -> None:
        """Note that a phase began at `start`, Unix seconds."""
        self._enters(name, step)
        if name in LONG_PHASES:
            self._line(self._spans, name=name, start=start, step=step, begin=True)

    def ended(self, name: str, step: int, start: float, seconds: float) -> None:
        """Note that a phase ended, `seconds` after its start."""
        self._enters("", step)
        self._phases[name] += seconds
        self._line(self._spans, name=name, start=start, seconds=seconds, step=step)

    def close(self) -> None:
        """Close both files, also where the disk is too full for the last line."""
        try:
            self._metrics.close()
        finally:
            self._spans.close()

    @staticmethod
    def _line(file: TextIO, **values: Any) -> None:
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
        self._recorder.begun(self._name, self._step, self._start)

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self._tick
        self._recorder.ended(self._name, self._step, self._start, seconds)


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
