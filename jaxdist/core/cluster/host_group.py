"""Groups of hosts with one kind of device, and links in which they differ.

Levels say how devices are counted: so many in a host, so many hosts in a room. Groups
say which of the hosts have which device, in the order in which they are counted, and
where a link of theirs is not that of its level: PCIe inside of some hosts, a slower
port of one of them, a thin line between two rooms.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxdist.core.cluster.device import Device
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput, did_you_mean


@dataclass(frozen=True, kw_only=True)
class GroupLink:
    """Links of a group's units at a level; what is None is as the level says."""

    level: str
    """Name of the level."""
    alpha: SourcedNumber | None = None
    """Seconds that a message takes without its bytes."""
    bandwidth: SourcedNumber | None = None
    """Bytes a second that one unit below the level sends in all, one way."""

    @property
    def name(self) -> str:
        """As it stands in a path."""
        return self.level


@dataclass(frozen=True, kw_only=True)
class InterGroupLink:
    """Links between the hosts of two groups, beside those of their levels."""

    groups: tuple[str, str]
    """Names of the two."""
    alpha: SourcedNumber | None = None
    """Seconds that a message between them takes without its bytes; None: as levels."""
    bandwidth: SourcedNumber | None = None
    """Bytes a second that one host sends to those of the other group, one way."""

    @property
    def name(self) -> str:
        """As it stands in a path: `a100/t4`."""
        return "/".join(self.groups)


@dataclass(frozen=True, kw_only=True)
class HostGroup:
    """Hosts that stand side by side and have one kind of device."""

    name: str
    """As plans and paths name it."""
    hosts: int
    """How many there are."""
    device: Device | None = None
    """Their kind of device; None: the cluster's."""
    links: tuple[GroupLink, ...] = ()
    """Where their links are not those of a level."""


def distinct_devices(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return the kinds among devices, each once, in their order."""
    found: list[Device] = []
    # Tables of a device are mappings, which have no hash.
    for device in devices:
        if device not in found:
            found.append(device)
    return tuple(found)


def check_host_groups(
    cluster: str,
    groups: Sequence[HostGroup],
    links: Sequence[InterGroupLink],
    levels: Sequence[str],
    *,
    hosts: int,
) -> None:
    """Refuse groups that are not the hosts of a cluster, and links of nothing.

    Args:
        cluster: its name, for errors.
        groups: in the order of devices.
        links: between two of them.
        levels: names of its levels.
        hosts: as many as its levels have.

    Raises:
        BadInput: with the numbers or the names.
    """
    names = [group.name for group in groups]
    counted = sum(group.hosts for group in groups)
    if counted != hosts or any(group.hosts < 1 for group in groups):
        said = ", ".join(f"{group.name}: {group.hosts}" for group in groups)
        raise BadInput(
            f"the host groups of {cluster} are not its hosts",
            rule=f"host_groups have {hosts:,} hosts together, as the sizes of the "
            "levels say, and at least one each",
            values=f"{counted:,} hosts ({said or 'no groups'})",
            remedy=f"hosts that add up to {hosts:,}, or another size of a level",
        )
    check_once(names, f"the host groups of {cluster}")
    for group in groups:
        where = f"the links of group {group.name}"
        own = [link.level for link in group.links]
        for level in own:
            check_known(level, levels, where)
        check_once(own, where)
    # Links have no direction: a/b and b/a are one.
    pairs = ["/".join(sorted(link.groups)) for link in links]
    for link in links:
        for name in link.groups:
            check_known(name, names, f"the link {link.name} between groups")
        rate = link.bandwidth
        if len({*link.groups}) < 2 or (rate is not None and rate.value == 0):
            raise BadInput(
                f"the link {link.name} connects no two groups",
                rule="a link between groups has two of them, and a bandwidth above 0",
                values=f"groups: {list(link.groups)}, bandwidth: {rate}",
                remedy=f"groups: [{', '.join([*names, '...'][:2])}]",
            )
    check_once(pairs, "links between groups")


def check_known(name: str, known: Sequence[str], where: str) -> None:
    """Refuse a name that is none of some.

    Raises:
        BadInput: with those that there are.
    """
    if name not in known:
        near = did_you_mean(name, known)
        raise BadInput(
            f"{where}: there is no {name}",
            rule=f"one of {', '.join(known) or 'none: there are no groups'}",
            values=name,
            remedy=f"did you mean {near}?" if near else f"one of {', '.join(known)}",
        )


def check_once(names: Sequence[str], where: str) -> None:
    """Refuse a name that stands twice.

    Raises:
        BadInput: with each of them once.
    """
    once = list(dict.fromkeys(names))
    if once != list(names):
        raise BadInput(
            f"{where}: one stands there twice",
            rule="each has a name of its own, and stands there once",
            values=", ".join(names),
            remedy=", ".join(once),
        )
