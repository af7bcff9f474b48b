"""How many processes a run may have: one number, or a range."""

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
        maximum: the most processes that can be asked for.
        option: where it was given.

    Raises:
        BadInput: it is neither, or beyond the maximum.

    >>> parse_process_range("2:4", 64), parse_process_range("4", 64).is_fixed
    (ProcessRange(min_processes=2, max_processes=4), True)
    """
    # Numbers below zero are read as well, to be refused as out of range.
    found = re.fullmatch(r"(-?\d+)(?::(-?\d+))?", text.strip())
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if found is None or low > high:
        remedy = f"{option} {high}:{low}" if found else f"{option} 4, or {option} 2:4"
        raise BadInput(
            f"{option} {text} is no number of processes",
            rule=f"{option} is a number, or the least and the most with a colon "
            "between",
            values=f"{option} {text}",
            remedy=remedy,
        )
    check_option_range(option, low, maximum)
    check_option_range(option, high, maximum)
    return ProcessRange(min_processes=low, max_processes=high)


def parse_process_count(text: str, maximum: int, launcher: str) -> int:
    """Read a number of processes for a launcher that takes no range.

    Raises:
        BadInput: it is none, or a range.
    """
    span = parse_process_range(text, maximum)
    if span.is_fixed:
        return span.max_processes
    raise BadInput(
        f"launch {launcher} has one number of processes",
        rule="local, ssh and testbed run continue with fewer; elsewhere the scheduler "
        "starts as many as it is asked for",
        values=f"-n {text}",
        remedy=f"-n {span.max_processes}",
    )
