"""Named: what a testbed is called, in commands and in what it leaves on a machine."""

import re
from typing import Final

from jaxdist.core.errors import BadInput

NAME: Final = "testbed"
"""What a testbed is called that nobody has named."""


def option(name: str) -> str:
    """Return what is added to a command for the testbed of a name.

    >>> option("testbed"), option("slow")
    ('', ' --name slow')
    """
    return "" if name == NAME else f" --name {name}"


def begins(name: str) -> str:
    """Return how the names of a testbed's hosts begin: none begins as another's do.

    Raises:
        BadInput: it is no name.

    >>> begins("slow")
    'jaxdist-slow'
    """
    if not re.fullmatch(r"[a-z][a-z0-9]{0,15}", name):
        raise BadInput(
            f"{name} names no testbed",
            rule="a name is a letter and at most 15 letters and digits, all small",
            values=f"--name {name}",
            remedy="--name slow",
        )
    return f"jaxdist-{name}"
