"""Beside: the terms of a run, predicted above measured, as bars and numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.core.text.theme import collective_fill
from jaxdist.launch.report.bar_chart import BarSegment, bar_axis, bar_row
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.svg import format_tick, labelled_svg, tag, ticks
from jaxdist.launch.report.svg import percent_length as length
from jaxdist.launch.report.time_and_bytes import BYTE_UNITS, BarChart, BarRow
from jaxdist.launch.terminal.run_header import pluralize

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
class MispredictionCard:
    """One of the largest misses."""

    name: str
    off: str
    cause: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class PredictionSection:
    """What the section shows."""

    terms: Sequence[PredictionRow]
    step: PredictionRow
    axis: str
    misses: Sequence[MispredictionCard]
    layers: Sequence[PredictionRow]
    layer_axis: str
    memory: BarChart | None
    how: str


def prediction_section(record: RunData) -> PredictionSection | None:
    """Return what is shown of a run that was compared; None of another."""
    found = record.compared
    if found is None:
        return None
    terms = [term for term in found["terms"] if term["unit"] == "s"]
    worst = found["layers"][:_MAX_LAYERS]
    missed = [miss["term"] for miss in found["misses"]]
    axis, layer_axis = _axis(terms), _axis(worst)
    return PredictionSection(
        terms=[
            _prediction_row(
                term, _fill(term["name"]), axis, miss=term["name"] in missed
            )
            for term in terms
        ],
        step=_prediction_row(found["step"], "backward", None),
        axis=_axis_title(axis),
        misses=[
            MispredictionCard(
                name=miss["term"],
                off=f"{_signed_ms(1e3 * miss['seconds'])} ms",
                cause=miss["likely_cause"],
                remedy=miss["remedy"],
            )
            for miss in found["misses"]
        ],
        layers=[_prediction_row(layer, "backward", layer_axis) for layer in worst],
        layer_axis=_axis_title(layer_axis),
        memory=_memory_chart(found, record.run.memory_bytes),
        how=_method_note(found),
    )


def _fill(name: str) -> str:
    return _TERM_FILLS.get(name) or collective_fill(name)


def _axis(terms: Sequence[TermRow]) -> list[float]:
    longest = max((max(t["predicted"], t["measured"] or 0) for t in terms), default=0)
    return ticks(0.0, 1e3 * longest) if longest else [0.0, 1.0]


def _axis_title(axis: Sequence[float]) -> str:
    return f"0 to {format_tick(axis[-1])} ms a step"


def _prediction_row(
    term: TermRow, fill: str, axis: Sequence[float] | None, *, miss: bool = False
) -> PredictionRow:
    said, seen = 1e3 * term["predicted"], term["measured"]
    took = None if seen is None else 1e3 * seen
    name = term["name"] or "no layer"
    return PredictionRow(
        name=name,
        predicted=_format_ms(said),
        measured="not watched" if took is None else _format_ms(took),
        off="" if took is None else _signed_ms(took - said),
        accurate="" if term["accurate"] is None else format_percent(term["accurate"]),
        svg=None if axis is None else _bar_pair(name, fill, said, took, axis[-1]),
        miss=miss,
    )


def _bar_pair(
    name: str, fill: str, said: float, took: float | None, whole: float
) -> Markup:
    """Draw a hollow bar above a filled one, from zero."""
    title = f"{name}: predicted {_format_ms(said)} ms, "
    title += "not watched" if took is None else f"measured {_format_ms(took)} ms"
    parts = [
        tag("line", class_="ax", x1=0, x2=0, y1=0, y2=30),
        tag(
            "rect",
            class_=f"p t-{fill}",
            x=0,
            y=4,
            width=length(said / whole),
            height=9,
        ),
    ]
    if took is not None:
        width = length(took / whole)
        bar = tag("rect", class_=f"m t-{fill}", x=0, y=16, width=width, height=10)
        parts.append(bar)
    return labelled_svg(title, *parts, height=30)


def _memory_chart(found: TermRow, compiled: int) -> BarChart | None:
    """Draw predicted bytes by term, and below them what the compiler laid out."""
    said = sorted(found["memory_by_term"].items(), key=lambda pair: -pair[1])
    whole = sum(held for _, held in said)
    rows = [(name, held, True) for name, held in (*said, ("all of them", whole))]
    rows += [("compiled step", compiled, False)] if compiled else []
    longest = max(held for _, held, _ in rows)
    if not longest:
        return None
    scale, unit = next(u for u in BYTE_UNITS if longest >= u[0])
    axis = ticks(0.0, longest / scale)
    return BarChart(
        rows=[
            BarRow(
                name=name,
                svg=bar_row(
                    BarSegment(
                        fill="forward",
                        size=held,
                        title=name,
                        label=format_size(held),
                        hollow=hollow,
                    ),
                    scale,
                    axis,
                ),
                share="",
            )
            for name, held, hollow in rows
        ],
        axis=bar_axis(axis),
        unit=f"bytes a device, {unit}",
    )


def _method_note(found: TermRow) -> str:
    step = "Measured step: the median of the run."
    watched = found["watched"]
    if watched is None:
        return (
            f"{step} Terms were not watched: train with --profile steps=10:19. "
            "Accuracy is 1 - |predicted - measured| / measured."
        )
    one = max(watched["devices"], key=lambda d: d["terms_s"].get("compute", 0.0))
    return (
        f"{step} Terms: shares of {pluralize(one['steps'], 'profiled step')} of "
        f"{format_duration(one['step_s'])} on device {one['device']}, which computed "
        "longest; "
        "what is moved beside computing takes no time. Accuracy is "
        "1 - |predicted - measured| / measured."
    )


def _format_ms(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def _signed_ms(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{_format_ms(abs(value))}"
