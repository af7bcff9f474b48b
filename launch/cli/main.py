"""The command line: finds the command, runs it, and maps errors to exit codes."""

import errno
import os
import pkgutil
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, Protocol, TextIO, TypeVar, cast

from jaxdist.core.errors import (
    BadInput,
    DiskFullError,
    FatalError,
    JaxdistWarning,
    RetryableError,
    SourceFailedError,
    did_you_mean,
)
from jaxdist.launch.cli import commands
from jaxdist.launch.cli.option_aliases import rename_hint, rename_words
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.distributed.environment import RANK_VAR
from jaxdist.launch.distributed.exit_codes import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_RESTART,
)
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.terminal.console import print_error

Message = TypeVar("Message")

_FULL_DISK_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
EXIT_CODES: Final = "exit codes: 0 done, 1 failed, 2 bad input, 75 try again"


class Command(Protocol):
    """A file in `launch/cli/commands`; heavy packages are imported in `run`."""

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
            # A run that was asked to end has ended in all processes: none waits here.
            if code == EXIT_RESTART:
                return code
        except SystemExit as error:  # argparse, after --help
            code = int(error.code or 0)
        except BadInput as error:
            has_failed = isinstance(error, DiskFullError | SourceFailedError)
            code = EXIT_FAILED if has_failed else EXIT_BAD_INPUT
            _print_once(print_error, error)
        except FatalError as error:
            code = EXIT_FAILED
            _print_once(sys.stderr.write, f"error: {error}\n")
        except RetryableError as error:
            code = EXIT_RESTART
            _print_once(sys.stderr.write, f"{error}\n")
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
            sys.stderr.write("\nstopped from the keyboard\n")
        except BrokenPipeError:
            code = EXIT_FAILED
            # The reader, `head` for one, has enough: the rest goes nowhere, quietly,
            # also when the interpreter flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            code = EXIT_FAILED
            if isinstance(error, OSError) and error.errno in _FULL_DISK_ERRNOS:
                no_space = DiskFullError(
                    "the disk is full",
                    rule="a run has room for its files; what was written before stays "
                    "good",
                    values=str(error.filename or error),
                    remedy="make room and repeat the command, or run.dir=FOLDER on "
                    "another disk",
                )
                _print_once(print_error, no_space)
            else:
                traceback.print_exception(error)
    # Among several processes one that failed ends at once: jax would let it wait for
    # the others, and the others wait for it.
    return process_group().exit_process(code)


# A wrong setting is met by every process of a launcher: one message is enough.
def _print_once(show: Callable[[Message], object], message: Message) -> None:
    """Print in one process what several may have met alike."""
    with process_group().elect_printer() as is_printer:
        if is_printer:
            show(message)


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, one for each file in `launch/cli/commands`."""
    # No registry: a file is a command. `--help` imports each of them for its line, so
    # what is heavy is imported inside `run`.
    return tuple(module.name for module in pkgutil.iter_modules(commands.__path__))


def load_command(name: str) -> Command:
    """Return a command by its name.

    Raises:
        BadInput: there is none; names the nearest.
    """
    if name not in command_names():
        # The first word may be a mistyped `--help` too.
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
    title, usage = (about or "").splitlines()[0], "usage: jaxdist COMMAND [options]"
    more = "jaxdist COMMAND --help tells what a command takes."
    return "\n".join([title, "", usage, "", *rows, "", more, EXIT_CODES])


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning: our own in a line, others with the place they come from."""
    text = warnings.formatwarning(message, category, filename, lineno, line)
    if issubclass(category, JaxdistWarning):
        text = f"warn: {message}\n"
    (file or sys.stderr).write(text)


def _dispatch(words: Sequence[str]) -> int:
    # Nothing was asked for: the help is an error here, for scripts that lost a word.
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
    rest, renamed = rename_words(parser, rest)
    # Every process of a launcher was given the same words: one of them answers.
    if renamed and os.environ.get(RANK_VAR, "0") == "0":
        sys.stderr.write(f"{rename_hint(renamed)}\n")
    # Options are checked before `run` imports anything heavy.
    code = command.run(parser.parse(rest))
    sys.stdout.flush()  # here, where a broken pipe is still caught
    return code
