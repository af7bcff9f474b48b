"""Predicted and measured: the terms of a step side by side, as bars and numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.launch.report.charts import (
    BYTE_UNITS,
    BarChart,
    BarSegment,
    bar_pair,
    collective_fill,
    format_tick,
    make_bar_chart,
    ticks,
)
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.terminal.run_summary import pluralize

_TERM_FILLS: Final = {
    "compute": "backward",
    "packing": "update",
    "update": "update",
    "bubble": "wait",
    "waiting": "wait",
    "other": "wait",
    "input": "input",
}
_MAX_LAYERS: Final = 8
"""Layers that are shown."""
TermRow = Mapping[str, Any]
"""A term, as `compared.json` has it."""


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    """A row of a table."""

    name: str
    predicted: str
    measured: str
    off: str
    accurate: str
    svg: Markup | None = None
    miss: bool = False


@dataclass(frozen=True, kw_only=True)
class PredictionSection:
    """What the section shows."""

    terms: Sequence[PredictionRow]
    step: PredictionRow
    axis: str
    misses: Sequence[Mapping[str, str]]
    """The largest misses: `name`, `off`, `cause` and `remedy` of each."""
    layers: Sequence[PredictionRow]
    layer_axis: str
    memory: BarChart | None
    how: str


def prediction_section(record: RunData) -> PredictionSection | None:
    """Return what is shown of a run that was compared; None of another."""
    found = record.compared
    if found is None:
        return None
    # Terms in bytes are drawn with the memory.
    terms, axis = _prediction_rows(
        [term for term in found["terms"] if term["unit"] == "s"],
        missed=[miss["term"] for miss in found["misses"]],
    )
    layers, layer_axis = _prediction_rows(found["layers"][:_MAX_LAYERS], "backward")
    (step,), _ = _prediction_rows([found["step"]], "backward")
    # The signed difference tells whether the prediction was too high or too low.
    misses = [
        {
            "name": miss["term"],
            "off": f"{_signed_ms(1e3 * miss['seconds'])} ms",
            "cause": miss["likely_cause"],
            "remedy": miss["remedy"],
        }
        for miss in found["misses"]
    ]

    # Predicted bytes by term and their sum are hollow; filled below them is what the
    # compiler laid out, which is known as a whole alone.
    by_term = sorted(found["memory_by_term"].items(), key=lambda pair: -pair[1])
    whole = sum(held for _, held in by_term)
    held = [(name, size, True) for name, size in (*by_term, ("all of them", whole))]
    if record.run.memory_bytes:
        held.append(("compiled step", record.run.memory_bytes, False))
    bars = [
        BarSegment(
            fill="forward",
            size=size,
            title=name,
            label=format_size(size),
            hollow=hollow,
        )
        for name, size, hollow in held
    ]

    how, watched = "Measured step: the median of the run. ", found["watched"]
    if watched is None:
        how += "Terms were not watched: train with --profile steps=10:19."
    else:
        # The device that computed longest is the one that the others waited for.
        computed = [one["terms_s"].get("compute", 0.0) for one in watched["devices"]]
        one = watched["devices"][computed.index(max(computed))]
        how += (
            f"Terms: shares of {pluralize(one['steps'], 'profiled step')} of "
            f"{format_duration(one['step_s'])} on device {one['device']}, which "
            "computed longest; overlapped communication takes no time."
        )
    return PredictionSection(
        terms=terms,
        step=step,
        axis=axis,
        misses=misses,
        layers=layers,
        layer_axis=layer_axis,
        memory=make_bar_chart(bars, BYTE_UNITS, "bytes a device", shares=False),
        how=f"{how} Accuracy is 1 - |predicted - measured| / measured.",
    )


def _prediction_rows(
    terms: Sequence[TermRow], fill: str = "", missed: Sequence[str] = ()
) -> tuple[list[PredictionRow], str]:
    """Return a row a term, with bars on one axis from zero, and what the axis says.

    Args:
        terms: predicted and measured seconds of each.
        fill: name of the fill of all bars; empty: each its own, by what it is.
        missed: names of those that are marked.
    """
    longest = max((max(t["predicted"], t["measured"] or 0) for t in terms), default=0)
    # All bars of a table end at one tick, so that terms compare by eye.
    end = ticks(0.0, 1e3 * longest)[-1] if longest else 1.0
    rows = []
    for term in terms:
        name, predicted = term["name"] or "no layer", 1e3 * term["predicted"]
        measured = None if term["measured"] is None else 1e3 * term["measured"]
        seen, off, share = "not watched", "", None
        title = f"{name}: predicted {_format_ms(predicted)} ms, not watched"
        if measured is not None:
            seen, off = _format_ms(measured), _signed_ms(measured - predicted)
            title = f"{name}: predicted {_format_ms(predicted)} ms, measured {seen} ms"
            share = measured / end
        own = fill or _TERM_FILLS.get(term["name"]) or collective_fill(term["name"])
        accurate = term["accurate"]
        row = PredictionRow(
            name=name,
            predicted=_format_ms(predicted),
            measured=seen,
            off=off,
            accurate="" if accurate is None else format_percent(accurate),
            svg=bar_pair(title, own, predicted / end, share),
            miss=term["name"] in missed,
        )
        rows.append(row)
    return rows, f"0 to {format_tick(end)} ms a step"


def _format_ms(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def _signed_ms(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{_format_ms(abs(value))}"
