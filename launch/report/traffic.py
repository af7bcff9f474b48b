"""Moved: bytes of a step by collective, by what they are for, and by link."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from jaxdist.core.run_record import Run
from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.core.text.theme import collective_fill
from jaxdist.launch.report.bar_chart import BarSegment
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.svg import labelled_svg, tag
from jaxdist.launch.report.svg import percent_length as length
from jaxdist.launch.report.time_and_bytes import BYTE_UNITS, BarChart, make_bar_chart

LinkRow = Mapping[str, Any]
"""What a set of axes has of the links, as `compared.json` has it."""


@dataclass(frozen=True, kw_only=True)
class CollectiveRow:
    """A kind of collective over its axes, as a row of the table."""

    name: str
    svg: Markup
    count: str
    ledger: str
    program: str
    sent: str
    link: str


@dataclass(frozen=True, kw_only=True)
class TrafficSection:
    """What the section shows."""

    terms: BarChart | None
    lines: Sequence[CollectiveRow]
    links: BarChart | None
    how: str


def traffic_caption(record: RunData) -> Markup:
    """Say how much a device sends a step, and what most of it is."""
    terms = record.run.bytes_by_collective
    whole = sum(terms.values())
    if not record.summarised:
        return Markup("Not counted: the run has no summary.")
    if not whole:
        one = record.plan is not None and record.plan.mesh.devices == 1
        why = "the plan has one device" if one else "the step has no collective"
        return Markup("No bytes move: {}.").format(why)
    largest = max(terms, key=lambda term: terms[term])
    text = "A device sends <b>{}</b> a step; {} is {} of it.{}"
    share = format_percent(terms[largest] / whole)
    return Markup(text).format(
        format_size(whole), largest, share, _busiest_level_text(record)
    )


def _busiest_level_text(record: RunData) -> str:
    """Say which links carry most, where a cluster says which there are."""
    sent = _bytes_by_level(record)
    if not sent:
        return ""
    level, most = sent.most_common(1)[0]
    return f" Links of level {level} carry {format_percent(most / sum(sent.values()))}."


def traffic_section(record: RunData) -> TrafficSection | None:
    """Return what is shown of a step that moves bytes; None of any other."""
    run = record.run
    if not sum(run.bytes_by_collective.values()):
        return None
    return TrafficSection(
        terms=_term_chart(run),
        lines=[_collective_row(row, record) for row in run.collectives],
        links=_link_chart(record),
        how=_method_note(record),
    )


def _term_chart(run: Run) -> BarChart | None:
    """Draw what the bytes are for, as the plan's ledger has it: a formula is hollow."""
    terms = sorted(run.bytes_by_collective.items(), key=lambda term: -term[1])
    marks = [
        BarSegment(
            fill=collective_fill(name),
            size=sent,
            title=name,
            label=format_size(sent),
            hollow=True,
        )
        for name, sent in terms
    ]
    return make_bar_chart(marks, BYTE_UNITS, "bytes a step and device")


def _collective_row(row: Mapping[str, Any], record: RunData) -> CollectiveRow:
    axes = " x ".join(row["axes"])
    link = _links_by_axes(record).get(axes)
    return CollectiveRow(
        name=f"{row['kind']}, {axes}",
        svg=_bar_pair(row, max(_max_bytes(one) for one in record.run.collectives)),
        count=format_count(row["count"]),
        ledger=format_size(row["ledger"]),
        program=format_size(row["program"]),
        sent=format_size(row["wire"]),
        link="" if link is None else _link_text(link),
    )


def _links_by_axes(record: RunData) -> Mapping[str, LinkRow]:
    return (record.compared or {}).get("links") or {}


def _link_text(link: LinkRow) -> str:
    return f"{link['level']}, {format_size(link['bytes_per_s'])}/s"


def _max_bytes(row: Mapping[str, Any]) -> int:
    return max(row["ledger"], row["program"], 1)


def _bar_pair(row: Mapping[str, Any], whole: int) -> Markup:
    """Draw the ledger's bytes hollow above those of the program in half tone."""
    axes = " x ".join(row["axes"])
    fill = collective_fill(f"{row['kind']}, {axes}")
    title = f"{row['kind']}, {axes}: ledger {format_size(row['ledger'])}, "
    title += f"compiled step {format_size(row['program'])}"
    marks = (
        (row["ledger"], f"p t-{fill}", 4, 9),
        (row["program"], f"m half t-{fill}", 16, 10),
    )
    parts = [tag("line", class_="ax", x1=0, x2=0, y1=0, y2=30)]
    parts += [
        tag("rect", class_=look, x=0, y=y, width=length(held / whole), height=tall)
        for held, look, y, tall in marks
    ]
    return labelled_svg(title, *parts, height=30)


def _bytes_by_level(record: RunData) -> Counter[str]:
    """Add up what a device sends in a step, by the level whose links it needs."""
    found: Counter[str] = Counter()
    for link, sent in _link_traffic(record):
        found[link["level"]] += sent
    return found


def _link_traffic(record: RunData) -> list[tuple[LinkRow, int]]:
    """Return the link of each term that a cluster has one for, with its bytes."""
    known, terms = _links_by_axes(record), record.run.bytes_by_collective.items()
    found = [(known.get(term.rpartition(", ")[2]), sent) for term, sent in terms]
    return [(link, sent) for link, sent in found if link is not None]


def _link_chart(record: RunData) -> BarChart | None:
    """Draw what each level's links carry for a device, with the time at their rate."""
    took: defaultdict[str, float] = defaultdict(float)
    for link, sent in _link_traffic(record):
        took[link["level"]] += sent / link["bytes_per_s"]
    marks = [
        BarSegment(
            fill="data",
            size=sent,
            title=f"{level}, {format_duration(took[level])} at their rate",
            label=format_size(sent),
            hollow=True,
        )
        for level, sent in _bytes_by_level(record).most_common()
    ]
    return make_bar_chart(marks, BYTE_UNITS, "bytes a step and device")


def _method_note(record: RunData) -> str:
    text = "Hollow: the plan's ledger. Half tone: the compiled step. "
    text += "A device sends at least what the collective's formula says. "
    if not _links_by_axes(record):
        text += "Links: jaxdist compare names those of a cluster. "
    wire = f"jaxdist bytes {record.run.experiment} --wire"
    return f"{text}The wire is not counted in a training: {wire} counts it."
