"""Standing: hosts in a box that are there until they are taken down, by whom ever.

What is known of them is beside what is made of them, so that one command finds what
another has made, and nothing speaks of hosts that are gone.
"""

import json
import re
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.launchers.local import MOST
from jaxdist.launch.launchers.program import check_number
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.iproute import check_machine
from jaxdist.launch.testbed.link_shaping import bits_per_second, lag
from jaxdist.launch.testbed.namespaces import FILES, known, remove, sweep

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


def up(
    count: int, rate: str | None, delay: str | None = None, *, name: str = NAME
) -> EmulatedCluster:
    """Make a testbed on this machine.

    Args:
        count: how many hosts.
        rate: of each link, both ways; None is no limit.
        delay: of each packet; None is none.
        name: tells it from others, which do not see it.

    Raises:
        BadInput: numbers or a name that cannot be, a machine that cannot make hosts, or
            one of this name is there already.
    """
    start = begins(name)
    check_number("--hosts", count, MOST)
    if rate is not None:
        bits_per_second(rate)
    if delay is not None:
        lag(delay)
    check_machine()
    sweep()
    if there(name):
        raise BadInput(
            "a testbed is up already, or left over from one",
            rule="a machine has one testbed of a name",
            values=", ".join(there(name)),
            remedy=(f"jaxdist testbed down{option(name)}", "or another --name"),
        )
    hosts = EmulatedCluster(count, rate, delay=delay, name=start)
    hosts.up()
    about = _about(name)
    about.parent.mkdir(parents=True, exist_ok=True)
    about.write_text(json.dumps({"count": count, "rate": rate, "delay": delay}))
    return hosts


def standing(name: str = NAME) -> EmulatedCluster:
    """Return the testbed that is up.

    Raises:
        BadInput: there is none of this name, or only a part of one.
    """
    start = begins(name)
    check_machine()
    if not there(name):
        raise BadInput(
            "no testbed is up" if name == NAME else f"no testbed {name} is up",
            rule="its hosts are made before something runs on them",
            remedy=f"jaxdist testbed up --hosts 4 --rate 200mbit{option(name)}",
        )
    try:
        about = json.loads(_about(name).read_text())
        rate, delay = about["rate"], about["delay"]
        return EmulatedCluster(about["count"], rate, delay=delay, name=start)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(
            "the testbed is not whole",
            rule="what was interrupted as it was made is made again",
            values=", ".join(there(name)),
            remedy=f"jaxdist testbed down{option(name)}",
        ) from error


def down(name: str = NAME) -> list[str]:
    """Remove a testbed, also a part of one, and hosts whose maker is gone.

    Returns:
        The names of the network namespaces.

    Raises:
        BadInput: a machine that cannot make hosts either.
    """
    start = begins(name)
    check_machine()
    return [*remove(start), *sweep()]


def there(name: str = NAME) -> tuple[str, ...]:
    """Name what there is of a testbed."""
    return tuple(sorted(one for one in known() if one.startswith(f"{begins(name)}-")))


def _about(name: str) -> Path:
    """Return the file that is written last: without it the testbed is not whole."""
    return FILES / f"{begins(name)}-switch" / "about.json"
