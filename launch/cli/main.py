"""The command line: finds the command, runs it, and turns errors into exit codes."""

import errno
import os
import pkgutil
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, Protocol, TextIO, cast

from jaxdist.core.errors import (
    BadInput,
    DiskFullError,
    FatalError,
    JaxdistWarning,
    RetryableError,
    did_you_mean,
)
from jaxdist.launch.cli import commands
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.distributed.exit_codes import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_RESTART,
)
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.terminal.console import print_error

EXIT_CODES: Final = "exit codes: 0 done, 1 failed, 2 bad input, 75 try again"


class Command(Protocol):
    """What a file in `launch/commands` offers; heavy packages are imported in `run`."""

    summary: str
    """One line for the table of commands."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare options and positional words."""

    def run(self, args: Namespace) -> int:
        """Do the work and return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the words after `jaxdist`; None takes them from the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = _dispatch(words)
            if (
                code == EXIT_RESTART
            ):  # a run that was asked to end ends in all processes
                return code
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            code = _handle_error(error)
    return process_group().exit_process(code)


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, one for each file in `launch/commands`."""
    return tuple(module.name for module in pkgutil.iter_modules(commands.__path__))


def load_command(name: str) -> Command:
    """Return a command by its name.

    Raises:
        BadInput: there is none; names the nearest.
    """
    if name not in command_names():
        kind = "option" if name.startswith("-") else "command"
        near = did_you_mean(name, [*command_names(), "--help", "--version"])
        meant = f"did you mean {near}? " if near else ""
        raise BadInput(
            f"no {kind} {name}", remedy=f"{meant}list them with: jaxdist --help"
        )
    return cast(Command, import_module(f"{commands.__name__}.{name}"))


def help_text() -> str:
    """Return what `jaxdist --help` prints."""
    from jaxdist import __doc__ as about

    rows = [f"  {name:13} {load_command(name).summary}" for name in command_names()]
    return "\n".join(
        [
            (about or "").splitlines()[0],
            "",
            "usage: jaxdist COMMAND [options]",
            "",
            *rows,
            "",
            "jaxdist COMMAND --help tells what a command takes.",
            EXIT_CODES,
        ]
    )


def _handle_error(error: BaseException) -> int:
    """Print what went wrong as far as there is something to say; return the code."""
    match error:
        case SystemExit():  # argparse, after --help
            code = int(error.code or 0)
        case DiskFullError() as full:
            code = _print_once(EXIT_FAILED, lambda: print_error(full))
        case BadInput() as refusal:
            code = _print_once(EXIT_BAD_INPUT, lambda: print_error(refusal))
        case FatalError():
            code = _print_once(
                EXIT_FAILED, lambda: sys.stderr.write(f"error: {error}\n")
            )
        case RetryableError():
            code = _print_once(EXIT_RESTART, lambda: sys.stderr.write(f"{error}\n"))
        case KeyboardInterrupt():
            sys.stderr.write("\nstopped from the keyboard\n")
            code = EXIT_INTERRUPTED
        case BrokenPipeError():
            # The reader, `head` for one, has enough: the rest goes nowhere, quietly.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = EXIT_FAILED
        case OSError(errno=errno.ENOSPC | errno.EDQUOT) as met:
            code = _print_once(EXIT_FAILED, lambda: print_error(_disk_full_error(met)))
        case _:
            traceback.print_exception(error)
            code = EXIT_FAILED
    return code


def _print_once(code: int, print_message: Callable[[], object]) -> int:
    """Say what several processes may have met alike, in one of them."""
    with process_group().elect_printer() as mine:
        if mine:
            print_message()
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning: our own in a line, others with the place they come from."""
    said = warnings.formatwarning(message, category, filename, lineno, line)
    own = issubclass(category, JaxdistWarning)
    (file or sys.stderr).write(f"warn: {message}\n" if own else said)


def _disk_full_error(error: OSError) -> DiskFullError:
    return DiskFullError(
        "the disk is full",
        rule="a run has room for its files; what was written before stays good",
        values=str(error.filename or error),
        remedy="make room and repeat the command, or run.dir=FOLDER on another disk",
    )


def _dispatch(words: Sequence[str]) -> int:
    if not words:
        sys.stderr.write(help_text() + "\n")
        return 2
    name, *rest = words
    if name in ("-h", "--help", "help"):
        sys.stdout.write(help_text() + "\n")
        return 0
    if name == "--version":
        from jaxdist import __version__

        sys.stdout.write(f"jaxdist {__version__}\n")
        return 0
    command = load_command(name)
    parser = CommandParser(f"jaxdist {name}", command.summary, EXIT_CODES)
    command.add_arguments(parser)
    code = command.run(parser.parse(rest))
    sys.stdout.flush()
    return code
