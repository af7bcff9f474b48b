"""The command line: finds the command, runs it, and maps errors to exit codes."""

import errno
import os
import pkgutil
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final, Protocol, TextIO, TypeVar, cast

from jaxdist.core.errors import (
    BadInput,
    DiskFullError,
    FatalError,
    JaxdistWarning,
    RetryableError,
    SourceFailedError,
    StoreFailedError,
    did_you_mean,
)
from jaxdist.launch.cli import commands
from jaxdist.launch.cli.option_aliases import read_words, rename_hint
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.config.experiment import experiment_names
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

COMMAND_GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "Train": (
            "train",
            "resume",
            "sweep",
            "eval",
            "generate",
            "import",
            "export",
        ),
        "Plan": (
            "plan",
            "predict",
            "compare",
            "compile",
            "scale",
            "score",
            "simulate",
        ),
        "Inspect": (
            "runs",
            "status",
            "report",
            "diff",
            "ckpt",
            "trace",
            "experiments",
            "config",
            "schedule",
            "audit",
            "bytes",
            "profile",
            "pipeline",
            "data",
        ),
        "Launch": (
            "launch",
            "testbed",
        ),
        "Machine": (
            "doctor",
            "calibrate",
            "prepare",
            "completion",
        ),
    }
)
"""Commands in the order of the help, each in one group."""

COMMAND_ALIASES: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("oracle", "predict"): "predict",
        ("oracle", "score"): "score",
    }
)
"""New command by the words of an old one, which still works and is in no help."""


class Command(Protocol):
    """A file in `launch/cli/commands`; heavy packages are imported in `run`."""

    summary: str
    """One line for the table of commands, of at most 64 characters."""
    example: str
    """Words behind the command in a command line that works; of a command whose forms
    have examples of their own, empty."""

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
            has_failed = isinstance(
                error, DiskFullError | SourceFailedError | StoreFailedError
            )
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
    # `--help` imports each of them for its line, so what is heavy is imported in `run`.
    return tuple(module.name for module in pkgutil.iter_modules(commands.__path__))


def load_command(name: str) -> Command:
    """Return a command by its name.

    Raises:
        BadInput: there is none; names the nearest.
    """
    if name not in command_names():
        raise _no_command_error(name)
    return cast(Command, import_module(f"{commands.__name__}.{name}"))


def make_parser(name: str) -> CommandParser:
    """Return the parser of a command.

    Raises:
        BadInput: there is no such command.
    """
    command = load_command(name)
    prog = f"jaxdist {name}"
    example = f"{prog} {command.example}".rstrip()
    parser = CommandParser(prog, command.summary, EXIT_CODES, example)
    command.add_arguments(parser)
    return parser


def _no_command_error(name: str) -> BadInput:
    """Return the refusal of a first word that is no command."""
    # It may be a mistyped `--help` too, or what `train` was meant to train.
    kind = "option" if name.startswith("-") else "command"
    near = did_you_mean(name, [*command_names(), "--help", "--version"])
    if name.endswith(".py") or name in experiment_names():
        near = f"train {name}"
    meant = f"did you mean {near}? " if near else ""
    return BadInput(
        f"no {kind} {name}", remedy=f"{meant}list them with: jaxdist --help"
    )


def help_text() -> str:
    """Return what `jaxdist --help` prints."""
    from jaxdist import __doc__ as about

    lines = [(about or "").splitlines()[0], "", "usage: jaxdist COMMAND [options]"]
    for group, names in COMMAND_GROUPS.items():
        rows = [f"  {name:11}  {load_command(name).summary}" for name in names]
        lines += ["", group, *rows]
    more = "jaxdist COMMAND --help tells what a command takes, with an example."
    return "\n".join([*lines, "", more, EXIT_CODES])


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
    if words[0] == "help" and len(words) > 1:
        words = [*words[1:], "--help"]
    name, *rest = words
    if name in ("-h", "--help", "help"):
        sys.stdout.write(help_text() + "\n")
        return 0
    if name == "--version":
        from jaxdist import __version__

        sys.stdout.write(f"jaxdist {__version__}\n")
        return 0
    name, rest, old = rename_command(name, rest)
    # Options are checked before `run` imports anything heavy.
    line = read_words(make_parser(name), rest)
    hints = filter(None, (line.hint, rename_hint({old: name} if old else {})))
    # Every process of a launcher was given the same words: one of them answers.
    if os.environ.get(RANK_VAR, "0") == "0":
        sys.stderr.writelines(f"{hint}\n" for hint in hints)
    # A run keeps what was typed to start it.
    line.args.command_line = ("jaxdist", name, *line.words)
    code = load_command(name).run(line.args)
    sys.stdout.flush()  # here, where a broken pipe is still caught
    return code


def rename_command(name: str, rest: Sequence[str]) -> tuple[str, list[str], str]:
    """Return a command under its current name, its words, and the old name, if it was.

    Raises:
        BadInput: an old command without the word that says which one it was.

    >>> rename_command("oracle", ["--json", "predict", "digits"])
    ('predict', ['--json', 'digits'], 'oracle predict')
    """
    forms = {form: new for (old, form), new in COMMAND_ALIASES.items() if old == name}
    if not forms:
        return name, list(rest), ""
    for place, word in enumerate(rest):
        if word in forms:
            return forms[word], [*rest[:place], *rest[place + 1 :]], f"{name} {word}"
    raise BadInput(
        f"{name} is no command by itself any more",
        rule=f"its forms are commands: {', '.join(forms.values())}",
        remedy=[f"jaxdist {new} --help" for new in forms.values()],
    )
