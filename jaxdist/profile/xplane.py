"""Spans: which operation ran when on which device, from a profiler's trace."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WAIT_EVENT: Final = re.compile(r"Wait: pending_threads")
"""What a collective of one process does until the last of its devices is there."""


@dataclass(frozen=True, kw_only=True)
class TraceSpan:
    """One operation of a compiled program, once, on one device."""

    device: int
    """Place of the device."""
    run: int
    """Which run of the program it belongs to."""
    instruction: str
    """Name of the instruction."""
    start_ns: float
    """Nanoseconds."""
    end_ns: float
    """Nanoseconds."""
    is_wait: bool = False
    """Whether it is the part of a collective in which others are waited for."""


def read_spans(path: Path, module: str) -> tuple[TraceSpan, ...]:
    """Read the operations of one program from a trace.

    A profiler that does not say of an operation which run of the program and which
    device it is of, as that of graphics processors, gives none.

    Args:
        path: an `xplane.pb` that `jax.profiler` wrote.
        module: name of the program.
    """
    from jax.profiler import ProfileData

    planes = ProfileData.from_file(str(path)).planes
    lines = (line for plane in planes for line in plane.lines)
    return tuple(span for line in lines for span in _thread_spans(line.events, module))


def _thread_spans(events: Iterable[Any], module: str) -> Iterator[TraceSpan]:
    """Yield what a thread did; a wait is of the operation that it lies in."""
    inside: TraceSpan | None = None
    for event in sorted(events, key=lambda e: (e.start_ns, -e.duration_ns)):
        start, end = event.start_ns, event.start_ns + event.duration_ns
        if WAIT_EVENT.match(event.name):
            if inside is not None and start < inside.end_ns:
                yield TraceSpan(
                    device=inside.device,
                    run=inside.run,
                    instruction=inside.instruction,
                    start_ns=start,
                    end_ns=min(end, inside.end_ns),
                    is_wait=True,
                )
            continue
        about = dict(event.stats)
        if about.get("hlo_module") != module or "run_id" not in about:
            continue
        inside = TraceSpan(
            device=int(about.get("device_ordinal", 0)),
            run=int(about["run_id"]),
            instruction=str(about["hlo_op"]),
            start_ns=start,
            end_ns=end,
        )
        yield inside
