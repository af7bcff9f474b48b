"""Conditional work: what a device does or leaves, decided as the program runs."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

T = TypeVar("T")

ScheduleRow = Mapping[str, jax.Array]
"""Numbers by name: what a device does in a superstep, and the iteration."""

CondBody = Callable[[ScheduleRow, T], T]
"""From the row and the carry to the next carry."""


def device_cond(pred: jax.Array, body: CondBody[T], row: ScheduleRow, carry: T) -> T:
    """Apply a body to the carry, or do nothing, in place.

    Args:
        pred: whether to apply the body.
        body: what it reads has to depend on the iteration: see `tie_to_iteration`.
        row: passed to the body, with the iteration, 0, as "turn".
        carry: passed to the body, and returned as it is where there is nothing to do.
    """
    # A loop of one iteration or none, not `lax.cond`: the compiler keeps what a loop
    # carries in place, and copies what goes through a conditional. With 48 MB carried a
    # tick of a switch takes 11 ms on a core, of a loop 0.7 (2 shared AMD EPYC cores,
    # 2026-11-22).
    turns = pred.astype(jnp.int32)

    def turn(state: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        # Work that is the same in every iteration would be moved out of the loop, and
        # then be done in every superstep. So everything depends on the iteration.
        mine = {name: number + state[0] for name, number in row.items()}
        return state[0] + 1, body({**mine, "turn": state[0]}, state[1])

    first = jnp.int32(0), carry
    return lax.while_loop(lambda state: state[0] < turns, turn, first)[1]


def tie_to_iteration(row: ScheduleRow, tree: Any) -> Any:
    """Return the same arrays, made to depend on the iteration of a `device_cond`."""
    return jax.tree.map(
        lambda x: jnp.where(row["turn"] == 0, x, jnp.zeros_like(x)), tree
    )
