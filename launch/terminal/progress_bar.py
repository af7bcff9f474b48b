"""The line that says how far a run is, rewritten in place on standard error.

The training thread itself draws it, a few times a second: on a machine whose cores all
compute, a thread that redraws would take time from the steps.
"""

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Line

from jaxdist.core.text.formatting import format_duration

_REDRAW_S: Final = 0.2


class ProgressBar:
    """Shows epoch, loss, rate and time left; without a terminal, one line an epoch.

    Args:
        steps: last step of the run.
        epochs: epochs in those steps; a part of one is allowed.
        start_step: steps already done when this sitting begins.
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
        self._steps, self._epochs = max(steps, 1), epochs
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._first_update: tuple[int, float] | None = None
        self._drawn_at = float("-inf")
        self._epochs_written = self._epochs_done(start_step)
        done = self._console.get_style("backward", default="default")
        # No refresh thread (see the module's docstring), and standard output is left
        # alone: results may be piped from it.
        self._rich_progress = Line(
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=None, complete_style=done, finished_style=done),
            TextColumn("{task.fields[rest]}"),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            expand=True,
            disable=not self._console.is_terminal,
        )
        self._rich_progress.add_task(
            "", total=self._steps, completed=start_step, epoch="", rest="compiling"
        )

    def __enter__(self) -> Self:
        self._rich_progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rich_progress.stop()

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
        epochs_done, drawn = self._epochs_done(step), self._console.is_terminal
        if drawn:
            due = step >= self._steps or now - self._drawn_at >= _REDRAW_S
        else:
            # In a log a line an epoch says as much as one a step.
            due = epochs_done > self._epochs_written
        if not due:
            return
        self._drawn_at, self._epochs_written = now, epochs_done

        last = math.ceil(self._epochs)
        epoch = min(last, max(1, math.ceil(step * self._epochs / self._steps)))
        # As many characters for the first epoch as for the last: the bar stays put.
        number = f"epoch {epoch:{len(str(last))}}/{last}"
        parts = [f"{100 * step / self._steps:3.0f} %", f"loss {loss:.3f}"]
        parts.append(f"{samples_per_s:,.0f} samples/s")
        # The pace since the first step includes evaluations and checkpoints, which are
        # still to come as well; it leaves out the compilation before that step.
        first, began = self._first_update
        if step > first:
            left = (self._steps - step) * (now - began) / (step - first)
            text = f"{left:.0f} s" if left < 119.5 else format_duration(left)
            parts.append(f"{text} left")
        rest = "  ".join(parts)
        if drawn:
            line, task = self._rich_progress, self._rich_progress.task_ids[0]
            line.update(task, completed=step, epoch=number, rest=rest, refresh=True)
        else:
            self.print_line(f"{number}  {rest}")

    def print_line(self, text: str) -> None:
        """Print a line above the progress line: an evaluation, a warning."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _epochs_done(self, step: int) -> int:
        if step >= self._steps:
            return math.ceil(self._epochs)
        return int(step * self._epochs / self._steps)
