"""Testbeds that outlive the command that made them, until another one removes them.

Their settings lie in the folder of their switch's namespace, so that any command finds
them, and they go with the hosts.
"""

import json
import re
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import json_text
from jaxdist.launch.launchers.local import MAX_LOCAL_PROCESSES
from jaxdist.launch.launchers.program import check_option_range
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.link_shaping import netem_delay, parse_link_rate
from jaxdist.launch.testbed.namespaces import (
    NETNS_FOLDER,
    check_netns_support,
    existing_namespaces,
    remove_orphans,
    remove_with_prefix,
)

DEFAULT_NAME: Final = "testbed"
"""Name of a testbed that was given none."""


def name_option(name: str) -> str:
    """Return what to add to a command so that it is for the testbed of a name.

    >>> name_option("testbed"), name_option("slow")
    ('', ' --name slow')
    """
    return "" if name == DEFAULT_NAME else f" --name {name}"


def namespace_prefix(name: str) -> str:
    """Return the prefix of a testbed's namespaces.

    Raises:
        BadInput: it is no name.

    >>> namespace_prefix("slow")
    'jaxdist-slow'
    """
    # Without hyphens no name begins as another does with its hyphen, and a number first
    # would look like the process of `temporary_prefix`.
    if not re.fullmatch(r"[a-z][a-z0-9]{0,15}", name):
        raise BadInput(
            f"{name} names no testbed",
            rule="a name is a letter and at most 15 letters and digits, all small",
            values=f"--name {name}",
            remedy="--name slow",
        )
    return f"jaxdist-{name}"


def create_testbed(
    num_hosts: int,
    rate: str | None,
    delay: str | None = None,
    *,
    name: str = DEFAULT_NAME,
) -> EmulatedCluster:
    """Make a testbed on this machine, which stays until it is removed.

    Args:
        num_hosts: how many hosts.
        rate: of each link, both ways; None is no limit.
        delay: of each packet; None is none.
        name: tells it from others, which do not see it.

    Raises:
        BadInput: an invalid number or name, a machine that cannot make hosts, or a
            testbed of this name that is there already.
    """
    start = namespace_prefix(name)
    # Numbers are refused before the machine: they are wrong on any.
    check_option_range("--hosts", num_hosts, MAX_LOCAL_PROCESSES)
    if rate is not None:
        parse_link_rate(rate)
    if delay is not None:
        netem_delay(delay)
    check_netns_support()
    remove_orphans()
    if netns_names(name):
        raise BadInput(
            "a testbed is up already, or left over from one",
            rule="a machine has one testbed of a name",
            values=", ".join(netns_names(name)),
            remedy=(f"jaxdist testbed down{name_option(name)}", "or another --name"),
        )
    hosts = EmulatedCluster(num_hosts, rate, delay=delay, name_prefix=start)
    hosts.create()
    # Written last: without this file the testbed counts as incomplete.
    about = _metadata_file(name)
    about.parent.mkdir(parents=True, exist_ok=True)
    about.write_text(json_text({"count": num_hosts, "rate": rate, "delay": delay}))
    return hosts


def load_testbed(name: str = DEFAULT_NAME) -> EmulatedCluster:
    """Return the testbed that is up.

    Raises:
        BadInput: there is none of this name, or only a part of one.
    """
    start = namespace_prefix(name)
    check_netns_support()
    if not netns_names(name):
        raise BadInput(
            "no testbed is up" if name == DEFAULT_NAME else f"no testbed {name} is up",
            rule="its hosts are made before something runs on them",
            remedy=f"jaxdist testbed up --hosts 4 --rate 200mbit{name_option(name)}",
        )
    try:
        about = json.loads(_metadata_file(name).read_text())
        rate, delay = about["rate"], about["delay"]
        return EmulatedCluster(about["count"], rate, delay=delay, name_prefix=start)
    # The file is missing or cut off where `up` was interrupted.
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(
            "the testbed is not whole",
            rule="what was interrupted as it was made is made again",
            values=", ".join(netns_names(name)),
            remedy=f"jaxdist testbed down{name_option(name)}",
        ) from error


def remove_testbed(name: str = DEFAULT_NAME) -> list[str]:
    """Remove a testbed, even an incomplete one, and hosts whose process is gone.

    Returns:
        The names of the network namespaces.

    Raises:
        BadInput: a machine that cannot make hosts either.
    """
    start = namespace_prefix(name)
    check_netns_support()
    # Hosts that a killed process left behind belong to no testbed: they go as well.
    return [*remove_with_prefix(start), *remove_orphans()]


def netns_names(name: str = DEFAULT_NAME) -> tuple[str, ...]:
    """Return the names of a testbed's namespaces, none where it is not up."""
    prefix = f"{namespace_prefix(name)}-"
    return tuple(sorted(n for n in existing_namespaces() if n.startswith(prefix)))


def _metadata_file(name: str) -> Path:
    return NETNS_FOLDER / f"{namespace_prefix(name)}-switch" / "about.json"
