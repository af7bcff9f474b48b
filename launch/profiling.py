"""Profiling: a jax.profiler trace of a window of steps."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput

if TYPE_CHECKING:
    import jax

Window = tuple[int, int]
"""First and last step to profile, counted from 1."""


def read_window(word: str | None) -> Window | None:
    """Read `steps=A:B`.

    Raises:
        BadInput: another form, or a window without steps.

    >>> read_window("steps=10:15")
    (10, 15)
    """
    if word is None:
        return None
    found = re.fullmatch(r"steps=(\d+):(\d+)", word)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise BadInput(
            f"no window of steps {word}",
            rule="--profile takes steps=FIRST:LAST, counted from 1",
            remedy="--profile steps=10:15",
        )
    return int(found[1]), int(found[2])


def profiled(
    batches: "Iterator[Mapping[str, jax.Array]]",
    start: int,
    window: Window | None,
    folder: Path,
) -> "Iterator[Mapping[str, jax.Array]]":
    """Pass batches on, and trace while those of the window are trained on.

    Args:
        batches: the batches of a run from step `start` on.
        start: steps done before.
        window: steps to trace; None passes batches through.
        folder: where the trace goes.
    """
    if window is None:
        yield from batches
        return
    import jax

    tracing = False
    try:
        for step, batch in enumerate(batches, start=start + 1):
            if step == window[0]:
                jax.profiler.start_trace(str(folder), profiler_options=_options())
                tracing = True
            if step == window[1] + 1 and tracing:
                jax.profiler.stop_trace()
                tracing = False
            yield batch
    finally:
        if tracing:
            jax.profiler.stop_trace()


def _options() -> "jax.profiler.ProfileOptions":
    """Leave calls of Python out: to watch each makes a step several times longer."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    return options
