"""Once: something that a device does or leaves, decided as the program runs.

A loop of one turn or none, not a conditional: the compiler keeps what a loop carries in
place, and copies what goes through a conditional. With 48 MB carried a tick of a switch
takes 11 ms on a core, of a loop 0.7 (2 shared AMD EPYC cores, 2026-11-22).
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

T = TypeVar("T")

ScheduleRow = Mapping[str, jax.Array]
"""Numbers by name: what a device is to do, and in which turn."""

CondBody = Callable[[ScheduleRow, T], T]
"""What a device may do to what it carries."""


def device_cond(pred: jax.Array, body: CondBody[T], row: ScheduleRow, carry: T) -> T:
    """Do something, or nothing, in place.

    The body is told the turn, which is 0 and added to its row, and what it reads shall
    depend on it: the compiler moves work that is the same in every turn out of a loop,
    and then it would be done in every beat.
    """
    turns = pred.astype(jnp.int32)

    def turn(state: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        mine = {name: number + state[0] for name, number in row.items()}
        return state[0] + 1, body({**mine, "turn": state[0]}, state[1])

    first = jnp.int32(0), carry
    return lax.while_loop(lambda state: state[0] < turns, turn, first)[1]


def tie_to_iteration(row: ScheduleRow, tree: Any) -> Any:
    """Return the same arrays, depending on the tick: see `device_cond`."""
    return jax.tree.map(
        lambda x: jnp.where(row["turn"] == 0, x, jnp.zeros_like(x)), tree
    )
