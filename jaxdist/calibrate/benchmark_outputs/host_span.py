"""The level of a cluster that ranks span: whose links they measured."""

from collections.abc import Sequence

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput, did_you_mean

_HOST_LEVEL = "host"
"""What clusters call the level of one host's devices."""


def find_spanned_level(
    cluster: Cluster, ranks: int, hosts: Sequence[str], name: str | None
) -> int:
    """Return the place of the level whose links the slowest step crosses.

    Args:
        cluster: where the ranks were.
        ranks: one device each.
        hosts: on which they were; none where nobody knows.
        name: of the level, where it was given.

    Raises:
        BadInput: no such level, one that cannot be, or nothing that says which.
    """
    if ranks > cluster.devices:
        raise BadInput(
            f"{cluster.name} has too few devices",
            rule=f"{cluster.name} has {cluster.devices:,} devices",
            values=f"{ranks:,} ranks",
            remedy="--cluster with the machine that was measured",
        )
    place = (
        _level_by_name(cluster, name)
        if name
        else _level_by_ranks(cluster, ranks, hosts)
    )
    _check_level(cluster, ranks, hosts, place)
    return place


def _level_by_name(cluster: Cluster, name: str) -> int:
    names = [level.name for level in cluster.levels]
    if name in names:
        return names.index(name)
    near = did_you_mean(name, names)
    raise BadInput(
        f"{cluster.name} has no level {name}",
        rule=f"its levels are {', '.join(names)}",
        values=f"--level {name}",
        remedy=f"did you mean {near}?" if near else f"--level {names[-1]}",
    )


def _level_by_ranks(cluster: Cluster, ranks: int, hosts: Sequence[str]) -> int:
    place, last = cluster.level_of(ranks), len(cluster.levels) - 1
    if not hosts and place < last:
        names = [level.name for level in cluster.levels[place:]]
        raise BadInput(
            "nothing says which links were measured",
            rule="OSU does not print hosts, and so many ranks are in one unit or in "
            "several",
            values=f"{ranks} ranks: {' or '.join(names)} of {cluster.name}",
            remedy=[f"--level {name}" for name in names],
        )
    if len(hosts) > 1 and cluster.levels[place].name == _HOST_LEVEL and place < last:
        return place + 1
    return place


def _check_level(
    cluster: Cluster, ranks: int, hosts: Sequence[str], index: int
) -> None:
    """Refuse a level that the ranks are not within, or do not cross."""
    level = cluster.levels[index]
    if ranks > cluster.sizes[index]:
        raise BadInput(
            f"{ranks} ranks are not within one {level.name}",
            rule=f"a {level.name} of {cluster.name} has {cluster.sizes[index]} devices",
            values=f"{ranks} ranks, --level {level.name}",
            remedy=f"--level {cluster.levels[cluster.level_of(ranks)].name}",
        )
    inner = cluster.levels[:index]
    if len(hosts) == 1 and any(one.name == _HOST_LEVEL for one in inner):
        raise BadInput(
            f"ranks of one host measure no links of a {level.name}",
            rule=f"links of a {level.name} are between hosts",
            values=f"{ranks} ranks on {hosts[0]}, --level {level.name}",
            remedy=f"--level {_HOST_LEVEL}",
        )
    if len(hosts) > 1 and level.name == _HOST_LEVEL:
        raise BadInput(
            "ranks of several hosts measure no links of a host",
            rule="links of a host are between its own devices",
            values=f"{ranks} ranks on {len(hosts)} hosts, --level {level.name}",
            remedy="--level of what connects hosts, or a cluster that has it",
        )
