"""Position: where a loop is in its data, as a few values for its checkpoint.

The step says all; the rest tells whether the step still means the same samples. It is
the same on every process, and as large for any number of them.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.order import SampleOrder, SourceOrder

ResumePoint = int | Mapping[str, Any]
"""Steps that are done, or the position of the loop that has done them."""
LoaderState = dict[str, int | str]
"""A step and what it counts in; JSON of at most 512 bytes."""
_VERSION: Final = 1
"""Of the order and of these values: another order is another version."""


def make_loader_state(order: SampleOrder, fingerprint: str, step: int) -> LoaderState:
    """Describe a loop that has done so many steps.

    Args:
        order: which samples a step takes.
        fingerprint: fingerprint of the samples, any text.
        step: steps that are done.

    >>> from jaxdist.input.order import GlobalShuffleOrder
    >>> order = GlobalShuffleOrder(num_samples=10, batch=4)
    >>> make_loader_state(order, "scans, version 1", 7)["step"]
    7
    """
    return {**_order_identity(order, fingerprint), "step": step}


def resume_step(
    saved: ResumePoint, order: SampleOrder, fingerprint: Callable[[], str]
) -> int:
    """Return the steps that are done, if they took the samples that this order takes.

    Args:
        saved: what `make_loader_state` returned, its JSON read back, or the steps
            alone.
        order: which samples a step takes now.
        fingerprint: names the samples now, by their fingerprint; asked for a position.

    Raises:
        BadInput: other samples, another order, no position, or fewer steps than none.
    """
    if isinstance(saved, int):
        if saved < 0:
            raise BadInput(
                "no loop has done fewer than no steps",
                rule="start is the number of steps that are done, from 0",
                values=f"start = {saved}",
                remedy="start=0",
            )
        return saved
    # A state of another version may have other keys: they are compared first.
    now = _order_identity(order, fingerprint())
    step = saved.get("step")
    if set(saved) != {*now, "step"} or not isinstance(step, int) or step < 0:
        raise BadInput(
            "this is no state of a loader",
            rule="a state is what state() returned, or its JSON read back",
            values=f"keys: {', '.join(map(str, saved)) or 'none'}; step = {step!r}",
            remedy="start=STEPS, where the steps that are done are known",
        )
    changed = [f"{k}: was {saved[k]}, is {now[k]}" for k in now if saved[k] != now[k]]
    if changed:
        raise BadInput(
            "the loop was started with other samples or in another order",
            rule="a loop resumes with the samples and the order that it began with",
            values="; ".join(changed),
            remedy="data and arguments as they were, or a loop from the start",
        )
    return step


def _order_identity(order: SampleOrder, data: str) -> LoaderState:
    """Return what a step counts in."""
    # Hosts and processes are not in it: batches do not depend on their number.
    partial = order.shuffle if isinstance(order, PartialShuffleOrder) else None
    whole = "source" if isinstance(order, SourceOrder) else "global"
    return {
        "version": _VERSION,
        "order": whole if partial is None else "partial",
        "seed": int(order.seed),
        "samples": order.num_samples,
        "batch": order.batch,
        "partitions": 0 if partial is None else partial.partitions,
        "exchanged": 0 if partial is None else partial.exchange_count,
        # Cut: a fingerprint is of any length, and the state stays below 512 bytes.
        "data": hashlib.sha256(data.encode()).hexdigest()[:32],
    }
