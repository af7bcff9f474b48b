"""A run's spans as a trace that Perfetto opens: one track a phase."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxdist.core.files import write_output
from jaxdist.core.run_record import PHASES
from jaxdist.core.validation import json_text
from jaxdist.launch.run_folder.folder import (
    SPAN_KEYS,
    RunFolder,
    complete_spans,
    read_rows,
)

TraceEvent = dict[str, Any]


def chrome_trace(spans: Iterable[Mapping[str, Any]], name: str = "run") -> TraceEvent:
    """Turn spans into the trace event format, in microseconds from the first span.

    A span that began and never ended (the process was killed in it) is drawn to the
    last moment known and marked `unfinished`.

    Args:
        spans: lines of `spans.jsonl`: name, start (Unix seconds), seconds, step.
        name: what the process is called in the viewer.

    >>> span = {"name": "compute", "start": 5.0, "seconds": 0.5, "step": 1}
    >>> trace = chrome_trace([span])
    >>> [(e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [(0, 500000)]
    """
    whole = complete_spans(spans)
    # One track (a thread, to the viewer) for each phase, in the order of the phases.
    used = dict.fromkeys(span["name"] for span in whole)
    tracks = [n for n in PHASES if n in used] + [n for n in used if n not in PHASES]
    process = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": name}}
    events: list[TraceEvent] = [process]
    for tid, track in enumerate(tracks):
        at = {"ph": "M", "pid": 0, "tid": tid}
        events.append(at | {"name": "thread_name", "args": {"name": track}})
        # Without a sort index the viewer orders tracks by their first event.
        events.append(at | {"name": "thread_sort_index", "args": {"sort_index": tid}})

    origin = min((span["start"] for span in whole), default=0.0)
    slices = [
        {
            "ph": "X",
            "name": span["name"],
            "pid": 0,
            "tid": tracks.index(span["name"]),
            # The format counts in microseconds.
            "ts": round(1e6 * (span["start"] - origin)),
            "dur": round(1e6 * span["seconds"]),
            "args": {key: span[key] for key in ("step", "unfinished") if key in span},
        }
        for span in whole
    ]
    slices.sort(key=lambda event: event["ts"])
    return {"traceEvents": events + slices, "displayTimeUnit": "ms"}


def write_trace(folder: Path, path: Path, *, force: bool = False) -> Path:
    """Write the trace of a run folder to a file and return its path.

    Raises:
        BadInput: the file is there and `force` is not given, or the spans are damaged.
    """
    spans = read_rows(RunFolder(folder).spans, SPAN_KEYS).rows
    text = json_text(chrome_trace(spans, folder.resolve().name))
    write_output(path, text + "\n", force=force)
    return path
