"""The program that several processes run, and checks of its launch options."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean

MULTI_PROCESS_COMMANDS: Final = ("train", "resume", "calibrate", "import")
"""Commands of jaxdist that run in several processes."""


def our_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words that start a command of jaxdist in a process of its own."""
    return (sys.executable, "-m", "jaxdist.launch", *words)


def program_command(
    program: Sequence[str], command_names: Sequence[str]
) -> tuple[str, ...]:
    """Return the words that start a program, found before anything is started.

    Args:
        program: `train` with its words, or any program with its own.
        command_names: names of all jaxdist commands.

    Raises:
        BadInput: nothing to start, a jaxdist command for one process, or a program
            that is not there.
    """
    if not program:
        raise BadInput(
            "there is nothing to start",
            rule="what each process does stands behind --",
            remedy="jaxdist launch local -n 4 -- train digits",
        )
    name = program[0]
    if name in MULTI_PROCESS_COMMANDS:
        return our_command(program)
    if name in command_names:
        raise BadInput(
            f"jaxdist {name} is the work of one process",
            rule=f"several processes do {' or '.join(MULTI_PROCESS_COMMANDS)} together",
            remedy=f"jaxdist {shlex.join(program)}",
        )
    # Found out here, once, and not by every process in its own traceback.
    if shutil.which(name) is None:
        near = did_you_mean(name, [*MULTI_PROCESS_COMMANDS, "python"])
        raise BadInput(
            f"no program {name}",
            rule="behind -- stands train, or a program that is on PATH",
            remedy=f"did you mean {near}?" if near else "-- train digits",
        )
    return tuple(program)


def check_option_range(option: str, value: int | None, maximum: int) -> None:
    """Refuse a number of processes, devices or hosts; None is an option not given.

    Raises:
        BadInput: it is not between 1 and the maximum.
    """
    if value is not None and not 1 <= value <= maximum:
        raise BadInput(
            f"{option} {value} cannot be",
            rule=f"{option} is between 1 and {maximum}",
            values=f"{option} {value}",
            remedy=f"{option} {min(max(value, 2), maximum)}",
        )
