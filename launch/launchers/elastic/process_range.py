"""Span: how many processes a run may have, from the least to the most."""

import re
from dataclasses import dataclass

from jaxdist.core.errors import BadInput
from jaxdist.launch.launchers.program import check_option_range


@dataclass(frozen=True, kw_only=True)
class ProcessRange:
    """A number of processes, or a range of them."""

    min_processes: int
    """With fewer it does not run."""
    max_processes: int
    """As many as the plan is written for."""

    @property
    def is_fixed(self) -> bool:
        """Whether there is one number only."""
        return self.min_processes == self.max_processes


def parse_process_range(text: str, maximum: int, option: str = "-n") -> ProcessRange:
    """Read a number of processes, or the least and the most.

    Args:
        text: `4` or `2:4`.
        maximum: processes that can be asked for.
        option: where it was given.

    Raises:
        BadInput: it is neither, or beyond the most.

    >>> parse_process_range("2:4", 64), parse_process_range("4", 64).is_fixed
    (ProcessRange(min_processes=2, max_processes=4), True)
    """
    found = re.fullmatch(r"(-?\d+)(?::(-?\d+))?", text.strip())
    if found is None:
        raise _invalid_range(option, text, f"{option} 4, or {option} 2:4")
    span = ProcessRange(
        min_processes=int(found[1]), max_processes=int(found[2] or found[1])
    )
    if span.min_processes > span.max_processes:
        raise _invalid_range(
            option, text, f"{option} {span.max_processes}:{span.min_processes}"
        )
    check_option_range(option, span.min_processes, maximum)
    check_option_range(option, span.max_processes, maximum)
    return span


def parse_process_count(text: str, maximum: int, launcher: str) -> int:
    """Read a number of processes where there is one number only.

    Raises:
        BadInput: it is none, or a range.
    """
    span = parse_process_range(text, maximum)
    if span.is_fixed:
        return span.max_processes
    raise BadInput(
        f"launch {launcher} has one number of processes",
        rule="local, ssh and testbed run go on with fewer; elsewhere the scheduler "
        "starts as many as it is asked for",
        values=f"-n {text}",
        remedy=f"-n {span.max_processes}",
    )


def _invalid_range(option: str, text: str, remedy: str) -> BadInput:
    return BadInput(
        f"{option} {text} is no number of processes",
        rule=f"{option} is a number, or the least and the most with a colon between",
        values=f"{option} {text}",
        remedy=remedy,
    )
