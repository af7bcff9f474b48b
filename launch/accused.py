"""Accused: the processes that the hang doctor names, read from its line.

stuck: rank 1 in step 812, input, at mine.py:31 (read); rank 0 waits in step 812, ...
"""

import re
from collections.abc import Sequence
from typing import Final

_BEGIN: Final = "stuck: "
_SILENT: Final = "says nothing any more"


def accused(lines: Sequence[str]) -> tuple[int, ...]:
    """Return the ranks that are stuck, or say nothing any more.

    Args:
        lines: what a process wrote last; the newest verdict counts.

    >>> accused(["stuck: rank 2 in step 8, input, at a.py:3 (f); rank 0 waits in ..."])
    (2,)
    >>> accused(["nothing of that kind"])
    ()
    """
    said = [line for line in lines if line.startswith(_BEGIN)]
    found: list[int] = []
    for part in said[-1].removeprefix(_BEGIN).split("; ") if said else ():
        rank = re.match(r"rank (\d+)(?! waits)", part)
        found += [int(rank[1])] if rank else []
        if _SILENT in part:
            break  # what follows is who says it
    return tuple(found)
