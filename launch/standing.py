"""Standing: hosts in a box that are there until they are taken down, by whom ever.

What is known of them is beside what is made of them, so that one command finds what
another has made, and nothing speaks of hosts that are gone.
"""

import json
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.launch.iproute import check_machine
from jaxdist.launch.links import bits_per_second, lag
from jaxdist.launch.local import MOST
from jaxdist.launch.named import NAME, begins, option
from jaxdist.launch.request import check_number
from jaxdist.launch.spaces import FILES, known, remove, sweep
from jaxdist.launch.testbed import Hosts


def up(
    count: int, rate: str | None, delay: str | None = None, *, name: str = NAME
) -> Hosts:
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
    hosts = Hosts(count, rate, delay=delay, name=start)
    hosts.up()
    about = _about(name)
    about.parent.mkdir(parents=True, exist_ok=True)
    about.write_text(json.dumps({"count": count, "rate": rate, "delay": delay}))
    return hosts


def standing(name: str = NAME) -> Hosts:
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
        return Hosts(about["count"], rate, delay=delay, name=start)
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
