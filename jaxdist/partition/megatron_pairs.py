"""Pairs: the filters of one layer, then the channels of the layer that reads them.

Rule: the features between the two divide over the tensor axis, heads undivided. Layers
in no pair are split by filters where these divide, and tables by rows; a layer whose
filters do not divide stays whole. Where a network says which layer makes its logits
(`LogitsLayer`), the loss takes them in slices.
Traffic a step of a pair: one sum of its output, and one backward.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; for convolutions the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from flax import nnx

from jaxdist.core.block_protocol import ColumnRowPair, LogitsLayer, SingleLayerBlock
from jaxdist.core.errors import BadInput
from jaxdist.layers import Embed
from jaxdist.layers.pool import Pool
from jaxdist.layers.tensor_role import Role, Roles, role_key
from jaxdist.partition import column_parallel
from jaxdist.partition.weights import ShardableLayer


def megatron_roles(
    shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
) -> Roles:
    """Say what each layer does with the tensor axis.

    Raises:
        BadInput: a pair whose features do not divide.
    """
    by_path = {w.path: w for w in shardable}
    answers = logits_layer_path(network)
    given: dict[str, Role] = {}
    for pair in iter_column_row_pairs(network):
        if can_split_pair(pair, by_path):
            _check_pair_divides(pair, by_path, devices)
            given |= _pair_roles(pair)
    for w in shardable:
        if w.path in given:
            continue
        if isinstance(w.layer, Embed):
            given |= (
                _embedding_roles(w, answers) if w.out_features % devices == 0 else {}
            )
        elif column_parallel.filters_divide(w, devices):
            given[w.path] = "logits" if w.path == answers else "filter"
    return given


def logits_layer_path(network: nnx.Module) -> str:
    """Name the use of a layer that makes a network's logits; empty: it says none."""
    found = getattr(network, "answers", None)
    return role_key(found.layer, found.method) if isinstance(found, LogitsLayer) else ""


def _embedding_roles(table: ShardableLayer, answers: str) -> Roles:
    """Say what a table does that is split by rows, and with likenesses to them."""
    attend = role_key(table.path, "attend")
    asked: Role = "logits" if attend == answers else "filter"
    return {table.path: "vocabulary", **({attend: asked} if table.has_attend else {})}


def iter_column_row_pairs(network: nnx.Module) -> Iterator[ColumnRowPair]:
    """Yield the pairs that modules declare, and those of units in chains."""
    for path, module in nnx.iter_modules(network):
        name = ".".join(map(str, path))
        for pair in getattr(module, "pairs", ()):
            yield pair.under(name)
        if hasattr(module, "chain"):
            yield from (pair.under(name) for pair in _chain_pairs(module.chain()))


def can_split_pair(
    pair: ColumnRowPair, layers_by_path: dict[str, ShardableLayer]
) -> bool:
    """Tell whether a pair can be dealt out: one group, every layer called."""
    paths = (*pair.first, pair.last)
    return (
        all(path in layers_by_path for path in paths)
        and layers_by_path[pair.last].groups == 1
    )


def _pair_roles(pair: ColumnRowPair) -> Roles:
    columns: dict[str, Role] = dict.fromkeys(pair.first, "column")
    inner: dict[str, Role] = dict.fromkeys(pair.inner, "inner")
    return {**columns, pair.last: "row", **inner}


def _chain_pairs(blocks: Iterator[tuple[str, Any]]) -> Iterator[ColumnRowPair]:
    """Pair up the units of a chain that follow each other, each used once."""
    first: tuple[str, SingleLayerBlock] | None = None
    pools: list[str] = []
    for name, block in blocks:
        unit = getattr(block, "unit", None)
        if first is not None and isinstance(unit, SingleLayerBlock):
            yield _make_pair(first, pools, (name, unit))
            first = None
        elif isinstance(unit, SingleLayerBlock):
            first, pools = (name, unit), []
        elif first is not None and isinstance(block, Pool):
            pools.append(name)
        else:
            first = None


def _make_pair(
    one: tuple[str, SingleLayerBlock],
    pools: list[str],
    two: tuple[str, SingleLayerBlock],
) -> ColumnRowPair:
    (before, first), (behind, last) = one, two
    return ColumnRowPair(
        first=(f"{before}.{first.weights}",),
        last=f"{behind}.{last.weights}",
        inner=(
            *(f"{before}.{part}" for part in first.behind),
            *pools,
            *(f"{behind}.{part}" for part in last.before),
        ),
    )


def _check_pair_divides(
    pair: ColumnRowPair, weights: dict[str, ShardableLayer], devices: int
) -> None:
    for path in pair.first:
        units = weights[path].out_features // pair.unit
        if units % devices:
            works = max(n for n in range(1, devices) if units % n == 0)
            what = "heads" if pair.unit > 1 else "filters"
            raise BadInput(
                f"{path} cannot be dealt out over {devices} devices",
                rule=f"the {what} of a pair of layers divide over the tensor axis",
                values=f"{path} has {units} {what}, plan.mesh.tensor = {devices}",
                remedy=f"plan.mesh.tensor={works}",
            )
