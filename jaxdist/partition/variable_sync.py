"""Variables of a network's own: how devices agree on what a step has changed.

    constant       frozen parameters, random keys, and whatever else a step leaves as
                   it is: nothing is moved
    synchronized   statistics of this library's batch norms, which layers average
    mean           other real and complex numbers: their mean over devices
    maximum        integers and booleans, such as counters: their maximum

Devices along an axis that splits samples, images or stages see different things; along
the others means and maxima change nothing. Traffic a step of G bytes that change: an
all-reduce of G over all axes that share the loss, once, behind the last microbatch.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.plan import Plan
from jaxdist.partition.gradient_buckets import replicated_axes
from jaxdist.partition.param_sharding import LeafSharding, StateUpdate
from jaxdist.partition.traffic import PlannedCollective

SYNC_SCOPE: Final = "sync_variables"

Axes = tuple[str, ...]
Message = tuple[Axes, StateUpdate, np.dtype[Any]]
"""Axes, way of agreeing and dtype of variables that travel as one array."""


def sync_axes(plan: Plan, leaves: Sequence[LeafSharding]) -> list[Axes]:
    """Return the axes over which devices agree on each variable in a step."""
    return [
        replicated_axes(plan.sum_axes, leaf.spec(include_fsdp=False))
        if leaf.update in ("mean", "maximum")
        else ()
        for leaf in leaves
    ]


def sync_variables(
    arrays: Sequence[jax.Array], leaves: Sequence[LeafSharding], axes: Sequence[Axes]
) -> list[jax.Array]:
    """Return variables on which the devices along some axes agree.

    Args:
        arrays: this device's values.
        leaves: how each is split, and how devices agree on it.
        axes: for each, manual mesh axes; none leave it as it is.
    """
    whole = list(arrays)
    with jax.named_scope(SYNC_SCOPE):
        for (over, update, dtype), places in _messages(leaves, axes).items():
            parts = [arrays[place].astype(dtype).ravel() for place in places]
            # Devices have as many samples each: the mean of averages is that of all.
            agree = lax.pmax if update == "maximum" else lax.pmean
            packed, start = agree(jnp.concatenate(parts), over), 0
            for place in places:
                old = arrays[place]
                own = packed[start : start + old.size].reshape(old.shape)
                whole[place] = own.astype(old.dtype)
                start += old.size
    return whole


def variable_traffic(
    plan: Plan, leaves: Sequence[LeafSharding], axes: Sequence[Axes]
) -> Iterator[PlannedCollective]:
    """Yield the all-reduces with which devices agree on variables."""
    for (over, _, dtype), places in _messages(leaves, axes).items():
        count = sum(
            math.prod(leaves[place].local_shape(plan, include_fsdp=False))
            for place in places
        )
        yield PlannedCollective(
            what="variables",
            kind="all-reduce",
            axes=over,
            payload=count * dtype.itemsize,
            layer=SYNC_SCOPE,
        )


def _messages(
    leaves: Sequence[LeafSharding], axes: Sequence[Axes]
) -> dict[Message, list[int]]:
    """Return the places of the variables that each message has."""
    # Variables are small, so messages of their own would be latency alone: all that
    # agree alike travel in one.
    found: dict[Message, list[int]] = defaultdict(list)
    for place, (leaf, over) in enumerate(zip(leaves, axes, strict=True)):
        if not over or not math.prod(leaf.shape):
            continue
        # Sums of 16 bits lose what is small, and backends move no booleans.
        wide = accumulation_dtype(leaf.dtype)
        if leaf.update == "maximum":
            given = np.dtype(leaf.dtype)
            wide = given if given.itemsize >= 4 else np.dtype(np.int32)
        found[over, leaf.update, wide].append(place)
    return found
