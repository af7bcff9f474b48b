"""Span: how many processes a run may have, from the least to the most."""

import re
from dataclasses import dataclass

from jaxdist.core.errors import BadInput
from jaxdist.launch.launchers.program import check_option_range


@dataclass(frozen=True, kw_only=True)
class ProcessRange:
    """A number of processes, or a range of them."""

    least: int
    """With fewer it does not run."""
    most: int
    """As many as the plan is written for."""

    @property
    def is_fixed(self) -> bool:
        """Whether there is one number only."""
        return self.least == self.most


def parse_process_range(text: str, most: int, option: str = "-n") -> ProcessRange:
    """Read a number of processes, or the least and the most.

    Args:
        text: `4` or `2:4`.
        most: processes that can be asked for.
        option: where it was given.

    Raises:
        BadInput: it is neither, or beyond the most.

    >>> parse_process_range("2:4", 64), parse_process_range("4", 64).is_fixed
    (ProcessRange(least=2, most=4), True)
    """
    found = re.fullmatch(r"(-?\d+)(?::(-?\d+))?", text.strip())
    if found is None:
        raise _invalid_range(option, text, f"{option} 4, or {option} 2:4")
    span = ProcessRange(least=int(found[1]), most=int(found[2] or found[1]))
    if span.least > span.most:
        raise _invalid_range(option, text, f"{option} {span.most}:{span.least}")
    check_option_range(option, span.least, most)
    check_option_range(option, span.most, most)
    return span


def parse_process_count(text: str, most: int, way: str) -> int:
    """Read a number of processes where there is one number only.

    Raises:
        BadInput: it is none, or a range.
    """
    span = parse_process_range(text, most)
    if span.is_fixed:
        return span.most
    raise BadInput(
        f"launch {way} has one number of processes",
        rule="local, ssh and testbed run go on with fewer; elsewhere the scheduler "
        "starts as many as it is asked for",
        values=f"-n {text}",
        remedy=f"-n {span.most}",
    )


def _invalid_range(option: str, text: str, remedy: str) -> BadInput:
    return BadInput(
        f"{option} {text} is no number of processes",
        rule=f"{option} is a number, or the least and the most with a colon between",
        values=f"{option} {text}",
        remedy=remedy,
    )
