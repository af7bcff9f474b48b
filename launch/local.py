"""Local: a command started several times on this machine, as one jax program."""

import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final, NoReturn

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.launch.joined import ON_PROCESSOR, free_port, place_words, placed
from jaxdist.launch.streamed import Failure, run_streamed
from jaxdist.launch.together import Task

MOST: Final = 64
"""Processes that one machine is asked for."""
_NOISE: Final = re.compile(
    r"\[Gloo\] Rank |connected to \d+ peer ranks|coordination_service_agent\.cc"
    r"|Terminating process because the JAX distributed service|coordination_service "
    r"while calling|grpc_status"
)
"""Lines of gloo for each group of devices, and of jax where another process has died:
nothing turns them off, and who died first is said in the end."""
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Local:
    """Several processes of one command on this machine."""

    command: tuple[str, ...]
    """Words of the command line of each."""
    count: int
    """How many processes."""
    devices: int | None = None
    """Fake devices of each; None leaves that to the command."""
    coordinator: str
    """`address:port` at which process 0 listens."""

    def words(self, rank: int) -> dict[str, str]:
        """Return the variables that a process has beyond this one's."""
        mine = place_words(
            rank=rank,
            count=self.count,
            coordinator=self.coordinator,
            devices=self.devices,
        )
        return {**ON_PROCESSOR, **mine}

    def tasks(self, environ: Mapping[str, str]) -> list[Task]:
        """Return what is started, by rank."""
        return [
            Task(
                command=self.command,
                env=placed(
                    environ,
                    rank=rank,
                    count=self.count,
                    coordinator=self.coordinator,
                    devices=self.devices,
                ),
            )
            for rank in range(self.count)
        ]

    def text(self) -> str:
        """Return the same as lines for a shell, one for each process."""
        rows = (
            [*(f"{k}={v}" for k, v in self.words(rank).items()), *self.command]
            for rank in range(self.count)
        )
        return "".join(f"{shlex.join(row)}\n" for row in rows)


def local(
    command: Sequence[str],
    *,
    count: int,
    devices: int | None = None,
    port: int | None = None,
) -> Local:
    """Return what several processes on this machine would be.

    Args:
        command: words that start each.
        count: how many processes.
        devices: fake devices of each; None leaves that to the command.
        port: of loopback, for process 0; None finds one.

    Raises:
        BadInput: numbers that cannot be, or a port that is taken.
    """
    check_number("-n", count, MOST)
    if devices is not None:
        check_number("--devices-per-process", devices, MOST)
    if port is not None:
        check_port(port)
    return Local(
        command=tuple(command),
        count=count,
        devices=devices,
        coordinator=f"127.0.0.1:{port or free_port()}",
    )


def command_of(program: Sequence[str], commands: Sequence[str]) -> tuple[str, ...]:
    """Return the words that start a program, found before anything is started.

    Args:
        program: `train` with its words, or any program with its own.
        commands: names of all commands of ours.

    Raises:
        BadInput: nothing to start, a command of ours that one process does alone, or
            a program that is not there.
    """
    if not program:
        raise BadInput(
            "there is nothing to start",
            rule="what each process does stands behind --",
            remedy="jaxdist launch local -n 4 -- train digits",
        )
    name = program[0]
    if name == "train":
        return (sys.executable, "-m", "jaxdist.launch", *program)
    if name in commands:
        raise BadInput(
            f"jaxdist {name} is the work of one process",
            rule="train is the command that several processes do together",
            remedy=f"jaxdist {shlex.join(program)}",
        )
    if shutil.which(name) is None:
        near = did_you_mean(name, ["train", "python"])
        raise BadInput(
            f"no program {name}",
            rule="behind -- stands train, or a program that is on PATH",
            remedy=f"did you mean {near}?" if near else "-- train digits",
        )
    return tuple(program)


def run_local(tasks: Sequence[Task]) -> int:
    """Run processes on this machine, their lines on our own output.

    Returns:
        0, or the exit code of the first that failed.
    """
    with stopped_by_signals():
        failure = run_streamed(tasks, shower(len(tasks)))
    if failure is None:
        return 0
    sys.stdout.flush()
    sys.stderr.write(report(failure, len(tasks)))
    return failure.exit_code


def check_number(option: str, number: int, most: int) -> None:
    """Refuse a number of processes, devices or hosts.

    Raises:
        BadInput: it is not between 1 and the most.
    """
    if not 1 <= number <= most:
        raise BadInput(
            f"{option} {number} cannot be",
            rule=f"{option} is between 1 and {most}",
            values=f"{option} {number}",
            remedy=f"{option} {min(max(number, 2), most)}",
        )


def shower(count: int) -> "_Shower":
    """Return what shows the lines of so many processes."""
    return _Shower(len(str(count - 1)))


class _Shower:
    """Writes each line behind the rank it comes from: `r03 │ `."""

    def __init__(self, digits: int) -> None:
        self._digits = max(digits, 2)

    def __call__(self, rank: int, line: str, error: bool) -> None:
        if _NOISE.search(line):
            return
        out = sys.stderr if error else sys.stdout
        utf = (out.encoding or "").lower().startswith("utf")
        out.write(f"r{rank:0{self._digits}} {'│' if utf else '|'} {line}\n")
        out.flush()


def report(failure: Failure, count: int) -> str:
    """Say which process failed first, with its last lines.

    A program that refuses, or asks to be started again, has said all that there is.
    """
    head = f"process {failure.rank} of {count} {failure.how}"
    if failure.code in (2, 75):
        return f"{head}, so all were ended\n"
    lines = [f"error: {head}; its last lines:", *(f"  {one}" for one in failure.last)]
    return "\n".join(lines) + "\n"


def check_port(port: int) -> None:
    """Refuse a port that process 0 could not listen at.

    Raises:
        BadInput: it is taken, or no port.
    """
    try:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"process 0 cannot listen at port {port}",
            rule="--port is free, and between 1024 and 65535",
            values=str(error),
            remedy="leave it out: a free one is found",
        ) from error


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let what ends this process end those that it has started first."""
    before = {one: signal.signal(one, _leave) for one in _ENDS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
