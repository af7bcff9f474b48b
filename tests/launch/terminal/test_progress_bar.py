"""The progress line: what it says, how seldom it is drawn."""

import io

import pytest
from rich.console import Console

from jaxdist.launch.terminal.progress_bar import ProgressBar

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


def test_time_left_counts_from_the_first_step_of_this_sitting():
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


def test_without_a_terminal_there_is_one_line_an_epoch():
    terminal = Terminal(terminal=False)
    with terminal.progress(steps=660, epochs=30) as progress:
        terminal.train(progress, range(1, 661))
    lines = terminal.text.splitlines()
    assert len(lines) == 30
    assert lines[8] == "epoch  9/30   30 %  loss 0.041  1,764 samples/s  18 s left"
    assert lines[-1].startswith("epoch 30/30  100 %")


def test_without_a_terminal_a_resumed_run_does_not_repeat_epochs():
    terminal = Terminal(terminal=False)
    with terminal.progress(steps=660, epochs=30, start_step=440) as progress:
        terminal.train(progress, range(441, 661))
    assert [line[:11] for line in terminal.text.splitlines()] == [
        f"epoch {epoch}/30" for epoch in range(21, 31)
    ]


def test_a_part_of_an_epoch_counts_as_the_last():
    terminal = Terminal(terminal=False)
    with terminal.progress(steps=33, epochs=1.5) as progress:
        terminal.train(progress, range(1, 34))
    assert [line[:9] for line in terminal.text.splitlines()] == [
        "epoch 1/2",
        "epoch 2/2",
    ]


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
