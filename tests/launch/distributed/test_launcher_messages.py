"""Messages to the launcher: by pipe or standard error, and to nobody else."""

import os
import sys
import textwrap

import pytest

from jaxdist.launch.distributed.launcher_messages import (
    CHANNEL_VAR,
    STDERR_CHANNEL,
    LauncherMessage,
    MessageKind,
    ReceivedMessages,
    pipe_channel,
    send_to_launcher,
)
from jaxdist.launch.launchers.processes.group import ProcessSpec, run_and_stream

STUCK = LauncherMessage(kind=MessageKind.STUCK, ranks=(2, 3))
SENDS = """
import sys
from jaxdist.launch.distributed.launcher_messages import MessageKind, send_to_launcher

send_to_launcher(MessageKind.STUCK, (2, 3))
print("stuck: rank 7", file=sys.stderr)
print("@jaxdist-launcher no message", file=sys.stderr)
"""


@pytest.mark.parametrize("channel", ["pipe", STDERR_CHANNEL])
def test_messages_are_data_and_lines_are_lines(channel):
    overrides = f"import os; os.environ[{CHANNEL_VAR!r}] = {channel!r}"
    text = SENDS if channel == "pipe" else f"{overrides}\n{SENDS}"
    spec = ProcessSpec(command=(sys.executable, "-c", text), env=dict(os.environ))
    lines, messages = [], []
    failure = run_and_stream(
        [spec],
        lambda rank, line, error: lines.append(line),
        on_message=lambda rank, message: messages.append((rank, message)),
    )
    assert failure is None
    assert messages == [(0, STUCK)]
    assert lines == ["stuck: rank 7", "@jaxdist-launcher no message"]


def test_children_that_inherit_the_variable_alone_write_nowhere():
    """The number of the pipe is that of another file there."""
    text = """
        import subprocess, sys
        send = sys.argv[1]
        subprocess.run([sys.executable, "-c", send], check=True, stdout=sys.stdout)
    """
    words = sys.executable, "-c", textwrap.dedent(text), SENDS
    spec = ProcessSpec(command=words, env=dict(os.environ))
    messages = []
    failure = run_and_stream(
        [spec], lambda *line: None, on_message=lambda *told: messages.append(told)
    )
    assert (failure, messages) == (None, [])


def test_a_file_that_has_the_number_of_the_pipe_stays_as_it_is(tmp_path, monkeypatch):
    read, write = os.pipe()
    monkeypatch.setenv(CHANNEL_VAR, pipe_channel(write))
    with (tmp_path / "other").open("wb") as other:
        os.dup2(other.fileno(), write)
        send_to_launcher(MessageKind.TRAINING)
    assert (tmp_path / "other").read_bytes() == b""
    os.close(read)
    os.close(write)


def test_without_a_launcher_nothing_is_written(monkeypatch, capfd):
    monkeypatch.delenv(CHANNEL_VAR, raising=False)
    send_to_launcher(MessageKind.TRAINING)
    assert capfd.readouterr() == ("", "")


def test_what_was_received_is_kept_by_its_sender():
    received = ReceivedMessages()
    received(1, STUCK)
    received(0, LauncherMessage(kind=MessageKind.TRAINING))
    assert (received.stuck_ranks(1), received.stuck_ranks(0)) == ((2, 3), ())
    assert (received.training.is_set(), received.adapting.is_set()) == (True, False)
