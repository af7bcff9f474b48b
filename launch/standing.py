"""Standing: hosts in a box that are there until they are taken down, by whom ever.

What is known of them is beside what is made of them, so that one command finds what
another has made, and nothing speaks of hosts that are gone.
"""

import json
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.iproute import check_machine
from jaxdist.launch.links import bits_per_second, lag
from jaxdist.launch.local import MOST
from jaxdist.launch.request import check_number
from jaxdist.launch.testbed import FILES, Hosts, known, remove, sweep

NAME: Final = "jaxdist-testbed"
"""Begins the names of the one testbed of a machine."""
_ABOUT: Final = FILES / f"{NAME}-switch" / "about.json"
"""Written last: without it the testbed is not whole."""


def up(count: int, rate: str | None, delay: str | None = None) -> Hosts:
    """Make the testbed of this machine.

    Args:
        count: how many hosts.
        rate: of each link, both ways; None is no limit.
        delay: of each packet; None is none.

    Raises:
        BadInput: numbers that cannot be, a machine that cannot make hosts, or one is
            there already.
    """
    check_number("--hosts", count, MOST)
    if rate is not None:
        bits_per_second(rate)
    if delay is not None:
        lag(delay)
    check_machine()
    sweep()
    if there():
        raise BadInput(
            "a testbed is up already, or left over from one",
            rule="a machine has one testbed",
            values=", ".join(there()),
            remedy="jaxdist testbed down",
        )
    hosts = Hosts(count, rate, delay=delay, name=NAME)
    hosts.up()
    _ABOUT.parent.mkdir(parents=True, exist_ok=True)
    _ABOUT.write_text(json.dumps({"count": count, "rate": rate, "delay": delay}))
    return hosts


def standing() -> Hosts:
    """Return the testbed that is up.

    Raises:
        BadInput: there is none, or only a part of one.
    """
    check_machine()
    if not there():
        raise BadInput(
            "no testbed is up",
            rule="its hosts are made before something runs on them",
            remedy="jaxdist testbed up --hosts 4 --rate 200mbit",
        )
    try:
        about = json.loads(_ABOUT.read_text())
        rate, delay = about["rate"], about["delay"]
        return Hosts(about["count"], rate, delay=delay, name=NAME)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(
            "the testbed is not whole",
            rule="what was interrupted as it was made is made again",
            values=", ".join(there()),
            remedy="jaxdist testbed down",
        ) from error


def down() -> list[str]:
    """Remove the testbed, also a part of one, and hosts whose maker is gone.

    Returns:
        The names of the network namespaces.

    Raises:
        BadInput: a machine that cannot make hosts either.
    """
    check_machine()
    return [*remove(NAME), *sweep()]


def there() -> tuple[str, ...]:
    """Name what there is of the testbed."""
    return tuple(sorted(name for name in known() if name.startswith(f"{NAME}-")))
