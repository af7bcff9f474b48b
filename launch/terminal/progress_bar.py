"""How far a run is, on standard error: what it prepares, then a line redrawn in place.

The training thread itself draws the line, a few times a second: on a machine whose
cores all compute, a thread that redraws would take time from the steps. Before the
first step a thread may.
"""

import math
import time
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

from jaxdist.core.text.formatting import format_duration

_REDRAW_S: Final = 0.2
_LINE_S: Final = 5.0
"""Seconds between two lines of a task where there is no terminal."""
_LOG_INTERVAL_S: Final = 60.0
"""Seconds from one line to the next inside an epoch, without a terminal."""
SILENCE_S: Final = 2.0
"""Seconds that something may take without a word."""
PHASE_TEXTS: Final = {
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "checkpoint",
}
"""What a run does in the phases that may take long."""


class StageProgress:
    """Says what is under way before the first step, where it takes two seconds.

    A context: its thread ends with it, or with `close`. On a terminal one line counts
    the seconds of the stage; elsewhere each stage is a line.

    Args:
        console: where to say it.
        silence_s: seconds that a stage may take without a word.
    """

    def __init__(self, console: Console, *, silence_s: float = SILENCE_S) -> None:
        self._console, self._silence_s = console, silence_s
        self._lock, self._over = Lock(), Event()
        self._text, self._start, self._is_drawn = "", time.monotonic(), False
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def begin(self, text: str) -> None:
        """Note that another stage begins; an empty text is none."""
        with self._lock:
            self._erase()
            self._text, self._start, self._is_drawn = text, time.monotonic(), False

    def on_phase(self, phase: str, step: int) -> None:
        """Note that a phase of a run begins, or, with no name, that one has ended."""
        self.begin(PHASE_TEXTS.get(phase, ""))

    def close(self) -> None:
        """Take the line away, and say nothing any more."""
        self._over.set()
        with self._lock:
            self._erase()
            self._text = ""

    def _watch(self) -> None:
        while not self._over.wait(min(self._silence_s, 0.5)):
            with self._lock:
                seconds = time.monotonic() - self._start
                # Over since the wait: nobody would erase what is written now.
                if not self._text or seconds < self._silence_s or self._over.is_set():
                    continue
                if self._console.is_terminal:
                    self._console.file.write(f"\r\x1b[2K{self._text}, {seconds:.0f} s")
                elif not self._is_drawn:
                    self._console.file.write(f"{self._text}\n")
                self._console.file.flush()
                self._is_drawn = True

    def _erase(self) -> None:
        # To the first column, and the line erased: both are codes of ANSI.
        if self._is_drawn and self._console.is_terminal:
            self._console.file.write("\r\x1b[2K")
            self._console.file.flush()


class _ProgressLine:
    """A line of a task that is redrawn in place, and lines printed above it.

    A context: the line is there inside it. There is no thread that redraws (see the
    module's docstring), and standard output is left alone: results may be piped from
    it.

    Args:
        columns: what the line shows, from left to right.
        fields: first values of what the columns show; `total` is the task's length.
        console: where to draw.
        clock: seconds that only grow.
        expand: whether the line is as wide as the terminal.
        transient: whether the line goes away at its end.
    """

    def __init__(
        self,
        *columns: ProgressColumn,
        fields: Mapping[str, Any],
        console: Console,
        clock: Callable[[], float],
        expand: bool = False,
        transient: bool = False,
    ) -> None:
        self._console, self._clock = console, clock
        self._line = Progress(
            *columns,
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            disable=not self._console.is_terminal,
            expand=expand,
            transient=transient,
        )
        self._task = self._line.add_task(**fields)

    def __enter__(self) -> Self:
        self._line.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._line.stop()

    def _draw(self, **fields: Any) -> None:
        self._line.update(self._task, refresh=True, **fields)

    def print_line(self, text: str) -> None:
        """Print a line above the progress line: an evaluation, a warning."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class ProgressBar(_ProgressLine):
    """Shows epoch, loss, rate and time left; without a terminal, a line a minute.

    Args:
        steps: last step of the run.
        epochs: epochs in those steps; a part of one is allowed.
        start_step: steps already done when this attempt begins.
        console: where to draw; standard error if not given.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        steps: int,
        epochs: float,
        start_step: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = console or Console(stderr=True)
        done = console.get_style("backward", default="default")
        super().__init__(
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=None, complete_style=done, finished_style=done),
            TextColumn("{task.fields[rest]}"),
            fields={
                "description": "",
                "total": max(steps, 1),
                "completed": start_step,
                "epoch": "",
                "rest": "compiling",
            },
            console=console,
            clock=clock,
            expand=True,
        )
        self._steps, self._epochs = max(steps, 1), epochs
        self._first_update: tuple[int, float] | None = None
        # A terminal is drawn at once. A log of a short run needs no line inside of it.
        self._drawn_at = float("-inf") if self._console.is_terminal else clock()
        self._pace: tuple[int, float] | None = None

    def update(self, step: int, loss: float, samples_per_s: float) -> None:
        """Say that a step is done; draws only when it is time to.

        Args:
            step: steps done, counted from 1.
            loss: training loss of the step.
            samples_per_s: training samples a second.
        """
        now = self._clock()
        # The first step that is done here, which may be in the middle of a resumed run.
        self._first_update = self._first_update or (step, now)
        self._pace = step, now
        drawn = self._console.is_terminal
        if drawn:
            due = step >= self._steps or now - self._drawn_at >= _REDRAW_S
        else:
            # A log has a line an epoch, and one a minute inside of long ones.
            due = now - self._drawn_at >= _LOG_INTERVAL_S
        if not due:
            return
        self._drawn_at = now
        epoch = max(1, math.ceil(step * self._epochs / self._steps))
        parts = [f"{100 * step / self._steps:3.0f} %", f"loss {loss:.3f}"]
        parts.append(f"{samples_per_s:,.0f} samples/s")
        parts += [f"{left} left"] if (left := self.time_left()) else []
        rest = "  ".join(parts)
        if drawn:
            self._draw(completed=step, epoch=self._epoch_text(epoch), rest=rest)
        else:
            self.print_line(f"{self._epoch_text(epoch)}  {rest}")

    def _epoch_text(self, epoch: int) -> str:
        """Return the name of an epoch, of as many characters for each."""
        last = math.ceil(self._epochs)
        return f"epoch {min(epoch, last):{len(str(last))}}/{last}"

    def time_left(self) -> str:
        """Return the time to the last step; empty where nothing is known of it."""
        if self._first_update is None or self._pace is None:
            return ""
        # The pace since the first step includes evaluations and checkpoints, which are
        # still to come as well; it leaves out the compilation before that step.
        (first, began), (step, now) = self._first_update, self._pace
        if step <= first:
            return ""
        left = (self._steps - step) * (now - began) / (step - first)
        return f"{left:.0f} s" if left < 119.5 else format_duration(left)

    def print_epoch(self, epoch: int, text: str) -> None:
        """Print the line of an epoch, counted from 1, that has ended."""
        # A terminal has the time that is left in its progress line.
        left = "" if self._console.is_terminal else self.time_left()
        self.print_line(f"{self._epoch_text(epoch)}  {text}{left and f'  {left} left'}")
        # In a log the minute begins again; a terminal may be drawn at the next step.
        self._drawn_at = max(self._drawn_at, self._clock() - _REDRAW_S)

    def show_phase(self, text: str) -> None:
        """Say in the progress line what goes on between two steps; empty: nothing."""
        if text and self._console.is_terminal:
            self._draw(rest=text)


class TaskProgress(_ProgressLine):
    """Shows how much of a task is done and what it does; without a terminal, lines.

    Args:
        total: parts of the task.
        title: the task, in a few words.
        console: where to draw; standard error if not given.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        total: int,
        title: str,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[rest]}"),
            fields={"description": title, "total": max(total, 1), "rest": ""},
            console=console or Console(stderr=True),
            clock=clock,
            transient=True,
        )
        self._total, self._title = max(total, 1), title
        self._done, self._began = 0, clock()
        self._written = self._began

    def __enter__(self) -> Self:
        if not self._console.is_terminal:
            self.print_line(self._title)
        return super().__enter__()

    def advance(self, what: str) -> None:
        """Say that another part is done.

        Args:
            what: the part, in a few words.
        """
        self._done, now = self._done + 1, self._clock()
        left = (self._total - self._done) * (now - self._began) / self._done
        rest = f"{what}, {left:.0f} s left"
        if self._console.is_terminal:
            self._draw(completed=self._done, rest=rest)
        elif now - self._written >= _LINE_S:
            # In a log a line now and then shows that it goes on.
            self._written = now
            self.print_line(f"{self._done}/{self._total}  {rest}")
