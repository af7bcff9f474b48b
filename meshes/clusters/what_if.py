"""What if: a cluster with some of its numbers changed, as people write them."""

import contextlib
from collections.abc import Iterable

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.validation import check_fields
from jaxdist.meshes.clusters.load import parser_for


def apply_overrides(cluster: Cluster, overrides: Iterable[str]) -> Cluster:
    """Return the cluster with other numbers.

    Args:
        cluster: as it is.
        overrides: `levels.rack.bandwidth=100gbit`: one of `Cluster.paths`, and a
            value with its unit.

    Raises:
        BadInput: no such number, or a value that it cannot have.

    >>> from jaxdist.meshes.clusters.load import load_cluster
    >>> other = apply_overrides(load_cluster("testbed"), ["levels.net.bandwidth=1gbit"])
    >>> print(other.levels[0].bandwidth)
    1.25e+08 (given: what if levels.net.bandwidth=1gbit)
    """
    for word in overrides:
        path, equals, text = word.partition("=")
        if not equals:
            raise BadInput(
                f"{word} changes nothing",
                rule="a number has a path and a value",
                values=f"--what-if {word}",
                remedy="--what-if levels.net.bandwidth=1gbit",
            )
        check_fields({path: text}, cluster.paths, cluster.name)
        # On a command line all is text; parsers tell numbers without a unit from those
        # with one by their type.
        number: float | str = text
        with contextlib.suppress(ValueError):
            number = float(text)
        value = parser_for(path)(number, path)
        cluster = cluster.with_number(
            path, SourcedNumber(value, f"given: what if {word}")
        )
    return cluster
