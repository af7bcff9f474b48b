"""The progress line: what it says, how seldom it is drawn."""

import io
import time

import pytest
from rich.console import Console

from jaxdist.launch.terminal.progress_bar import ProgressBar, StageProgress

STEP_S = 0.04


class Terminal:
    """A console that keeps what was drawn, and a clock that the test moves."""

    def __init__(self, *, terminal, width=100, encoding="utf-8"):
        self.file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
        self.console = Console(
            file=self.file,
            force_terminal=terminal,
            width=width,
            color_system=None,
            legacy_windows=False,
        )
        self.now = 100.0

    def progress(self, **values):
        return ProgressBar(console=self.console, clock=lambda: self.now, **values)

    def train(self, progress, steps):
        for step in steps:
            self.now += STEP_S
            progress.update(step, loss=0.041, samples_per_s=1764.0)

    @property
    def text(self):
        self.file.flush()
        return self.file.buffer.getvalue().decode(self.file.encoding)

    @property
    def drawn(self):
        return self.text.split("\r\x1b[2K")


def test_the_line_says_epoch_share_loss_rate_and_time_left():
    terminal = Terminal(terminal=True)
    with terminal.progress(steps=660, epochs=30) as progress:
        terminal.train(progress, range(1, 374))
        terminal.now += 1
        terminal.train(progress, [374])
        line = terminal.drawn[-1]
    assert line.startswith("epoch 17/30 ━")
    assert line.endswith("57 %  loss 0.041  1,764 samples/s  12 s left")
    assert len(line) <= 100


def test_the_line_is_drawn_at_most_ten_times_a_second():
    terminal = Terminal(terminal=True)
    with terminal.progress(steps=10_000, epochs=2) as progress:
        terminal.train(progress, range(1, 1001))
        drawn = len(terminal.drawn)
    assert drawn <= 10 * 1000 * STEP_S
    assert drawn >= 1000 * STEP_S


def test_the_last_step_is_always_drawn():
    terminal = Terminal(terminal=True)
    with terminal.progress(steps=3, epochs=1) as progress:
        terminal.train(progress, range(1, 4))
    assert "100 %  loss 0.041  1,764 samples/s  0 s left" in terminal.text


def test_time_left_counts_from_the_first_step_of_this_attempt():
    terminal = Terminal(terminal=True)
    with terminal.progress(steps=660, epochs=30, start_step=440) as progress:
        terminal.now += 60  # compile
        terminal.train(progress, range(441, 551))
        line = terminal.drawn[-1]
    assert line.startswith("epoch 25/30")
    assert "  4 s left" in line or "  5 s left" in line


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_keeps_one_line(width):
    terminal = Terminal(terminal=True, width=width)
    with terminal.progress(steps=660, epochs=30) as progress:
        terminal.train(progress, range(1, 375))
        line = terminal.drawn[-1]
    assert len(line) <= width
    assert "\n" not in line


def test_an_epoch_has_a_line_of_its_own_that_stays():
    """A line that is overwritten told what an epoch came to for a fifth of a second."""
    terminal = Terminal(terminal=True)
    with terminal.progress(steps=660, epochs=30) as progress:
        terminal.train(progress, range(1, 23))
        progress.print_epoch(1, "training loss 0.412  test loss 0.380")
        terminal.train(progress, range(23, 45))
    assert "epoch  1/30  training loss 0.412  test loss 0.380\n" in terminal.text


def test_without_a_terminal_the_line_of_an_epoch_has_the_time_that_is_left():
    terminal = Terminal(terminal=False)
    with terminal.progress(steps=660, epochs=30) as progress:
        terminal.train(progress, range(1, 199))
        progress.print_epoch(9, "training loss 0.041")
    assert terminal.text == "epoch  9/30  training loss 0.041  18 s left\n"


def test_without_a_terminal_a_long_epoch_has_a_line_a_minute():
    terminal = Terminal(terminal=False)
    with terminal.progress(steps=6_600, epochs=1) as progress:
        terminal.train(progress, range(1, 3_200))
    first, second = terminal.text.splitlines()
    assert first == "epoch 1/1   23 %  loss 0.041  1,764 samples/s  3 min left"
    assert second.startswith("epoch 1/1   45 %")


def test_a_part_of_an_epoch_counts_as_the_last():
    terminal = Terminal(terminal=False)
    with terminal.progress(steps=33, epochs=1.5) as progress:
        terminal.train(progress, range(1, 34))
        progress.print_epoch(2, "test loss 0.380")
    assert terminal.text.startswith("epoch 2/2  test loss 0.380")


def waited(terminal, text):
    """Wait until the thread has written a text."""
    while text not in terminal.text:
        time.sleep(0.01)


def test_what_takes_long_before_the_first_step_is_said():
    terminal = Terminal(terminal=False)
    with StageProgress(terminal.console, silence_s=0.01) as stages:
        stages.begin("preparing devices")
        waited(terminal, "preparing devices\n")
        stages.on_phase("compile", 0)
        waited(terminal, "compiling\n")
        stages.on_phase("", 0)
    assert terminal.text.splitlines() == ["preparing devices", "compiling"]


def test_what_is_quick_is_not_said():
    terminal = Terminal(terminal=False)
    with StageProgress(terminal.console, silence_s=1000.0) as stages:
        stages.begin("preparing devices")
    assert terminal.text == ""


def test_on_a_terminal_the_seconds_are_counted_in_one_line():
    terminal = Terminal(terminal=True)
    with StageProgress(terminal.console, silence_s=0.01) as stages:
        stages.begin("compiling")
        waited(terminal, "compiling, 0 s")
    assert "\n" not in terminal.text
    assert terminal.text.endswith("\r\x1b[2K")


def test_a_note_stands_above_the_line_and_is_not_read_as_markup():
    terminal = Terminal(terminal=True)
    with terminal.progress(steps=10, epochs=1) as progress:
        terminal.train(progress, range(1, 4))
        progress.print_line("[epoch 1] test accuracy 97.5 %")
        terminal.train(progress, range(4, 11))
    assert "[epoch 1] test accuracy 97.5 %\n" in terminal.text


def test_the_line_can_be_written_in_ascii():
    terminal = Terminal(terminal=True, encoding="ascii")
    with terminal.progress(steps=10, epochs=1) as progress:
        terminal.train(progress, range(1, 11))
    assert "100 %" in terminal.text


def test_an_error_goes_through_and_the_cursor_comes_back():
    terminal = Terminal(terminal=True)

    def interrupted():
        with terminal.progress(steps=10, epochs=1) as progress:
            terminal.train(progress, range(1, 4))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.text.endswith("\x1b[?25h")
