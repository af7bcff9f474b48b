"""The channel from the processes of a run to the launcher that started them.

A message is a line of JSON: `{"kind": "stuck", "ranks": [2]}`. It goes through a pipe
that the process inherits, or, where no pipe goes (ssh), through standard error as a
line that begins with a reserved prefix. The environment says which. Without a launcher
that listens (SLURM, MPI, Kubernetes, by hand) nothing is sent.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from typing import Final

CHANNEL_VAR: Final = "JAXDIST_LAUNCHER_CHANNEL"
"""Where messages go: `pipe:FD:INODE`, or `stderr`. Unset: nowhere."""
STDERR_CHANNEL: Final = "stderr"
LINE_PREFIX: Final = "@jaxdist-launcher "
"""Begins a message among the lines of standard error."""


class MessageKind(StrEnum):
    """What a message says."""

    TRAINING = "training"
    """The run has something to save from now on."""
    ADAPTING = "adapting"
    """All processes end to be started again under another plan."""
    STUCK = "stuck"
    """This process ends because of others that hang, whose ranks it names."""


@dataclass(frozen=True, kw_only=True)
class LauncherMessage:
    """A message of one process."""

    kind: MessageKind
    ranks: tuple[int, ...] = ()


def send_to_launcher(kind: MessageKind, ranks: Sequence[int] = ()) -> None:
    """Send a message to the launcher of this process, where one listens."""
    channel = os.environ.get(CHANNEL_VAR, "")
    text = json.dumps({"kind": kind, "ranks": list(ranks)})
    if channel == STDERR_CHANNEL:
        sys.stderr.write(f"{LINE_PREFIX}{text}\n")
        sys.stderr.flush()
    elif channel:
        descriptor, inode = map(int, channel.split(":")[1:])
        # The variable reaches programs that a process starts; the pipe does not, and
        # the number may be that of any other file there. Its inode tells them apart.
        # A launcher that is gone is no reason to fail.
        # Short writes to a pipe are atomic, so lines of two threads do not mix.
        with suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:
                os.write(descriptor, f"{text}\n".encode())


def pipe_channel(descriptor: int) -> str:
    """Return the value of the variable for a pipe that a process inherits."""
    return f"pipe:{descriptor}:{os.fstat(descriptor).st_ino}"


def parse_message(text: str) -> LauncherMessage | None:
    """Return the message of a line of JSON; None where it is no message.

    >>> parse_message('{"kind": "stuck", "ranks": [2]}').ranks
    (2,)
    >>> parse_message("stuck: rank 2 in step 8")
    """
    try:
        fields = json.loads(text)
        ranks = tuple(map(int, fields["ranks"]))
        return LauncherMessage(kind=MessageKind(fields["kind"]), ranks=ranks)
    except (ValueError, TypeError, KeyError):
        return None


class ReceivedMessages:
    """What the processes of one attempt have told their launcher."""

    def __init__(self) -> None:
        self.training, self.adapting = Event(), Event()
        self._stuck_by_sender: dict[int, tuple[int, ...]] = {}

    def __call__(self, rank: int, message: LauncherMessage) -> None:
        """Note a message of a process."""
        match message.kind:
            case MessageKind.TRAINING:
                self.training.set()
            case MessageKind.ADAPTING:
                self.adapting.set()
            case MessageKind.STUCK:
                self._stuck_by_sender[rank] = message.ranks

    def stuck_ranks(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that a process has named as stuck."""
        return self._stuck_by_sender.get(rank, ())
