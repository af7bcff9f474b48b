"""Traffic: bytes of a step by collective, by what they are for, and by link."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.launch.report.charts import (
    BYTE_UNITS,
    BarChart,
    BarSegment,
    bar_pair,
    collective_fill,
    make_bar_chart,
)
from jaxdist.launch.report.run_record import RunData

LinkRow = Mapping[str, Any]
"""The link that a set of mesh axes uses, as `compared.json` has it."""


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
    share = format_percent(terms[largest] / whole)
    text = "A device sends <b>{}</b> a step; {} is {} of it."
    found = Markup(text).format(format_size(whole), largest, share)

    # Only a run that was compared with a cluster knows which links there are.
    by_level, _ = _traffic_by_level(record)
    if by_level:
        level, most = by_level.most_common(1)[0]
        part = format_percent(most / sum(by_level.values()))
        found += Markup(" Links of level {} carry {}.").format(level, part)
    return found


def traffic_section(record: RunData) -> TrafficSection | None:
    """Return what is shown of a step that moves bytes; None of any other."""
    run = record.run
    if not sum(run.bytes_by_collective.values()):
        return None
    # What bytes are for is known from the plan's ledger, a formula, so bars are hollow.
    terms = [
        BarSegment(
            fill=collective_fill(name),
            size=sent,
            title=name,
            label=format_size(sent),
            hollow=True,
        )
        for name, sent in sorted(
            run.bytes_by_collective.items(), key=lambda term: -term[1]
        )
    ]

    links = (record.compared or {}).get("links") or {}
    # One axis for all rows; a collective of no bytes must not divide by zero.
    sizes = [max(row["ledger"], row["program"], 1) for row in run.collectives]
    lines = []
    for row in run.collectives:
        axes = " x ".join(row["axes"])
        name, link = f"{row['kind']}, {axes}", links.get(axes)
        ledger, program = format_size(row["ledger"]), format_size(row["program"])
        drawn = bar_pair(
            f"{name}: ledger {ledger}, compiled step {program}",
            collective_fill(name),
            row["ledger"] / max(sizes),
            row["program"] / max(sizes),
            half=True,
        )
        rate = format_size(link["bytes_per_s"]) if link else ""
        line = CollectiveRow(
            name=name,
            svg=drawn,
            count=format_count(row["count"]),
            ledger=ledger,
            program=program,
            sent=format_size(row["wire"]),
            link=f"{link['level']}, {rate}/s" if link else "",
        )
        lines.append(line)

    by_level, seconds = _traffic_by_level(record)
    levels = [
        BarSegment(
            fill="data",
            size=sent,
            title=f"{level}, {format_duration(seconds[level])} at their rate",
            label=format_size(sent),
            hollow=True,
        )
        for level, sent in by_level.most_common()
    ]

    how = "Hollow: the plan's ledger. Half tone: the compiled step. "
    how += "A device sends at least what the collective's formula says. "
    if not links:
        how += "Links: jaxdist compare names those of a cluster. "
    # Counters of an interface include all that a host sends, so the wire is counted by
    # a command of its own, on emulated hosts.
    wire = f"jaxdist bytes {run.experiment} --wire"
    how += f"The wire is not counted in a training: {wire} counts it."
    quantity = "bytes a step and device"
    return TrafficSection(
        terms=make_bar_chart(terms, BYTE_UNITS, quantity),
        lines=lines,
        links=make_bar_chart(levels, BYTE_UNITS, quantity),
        how=how,
    )


def _traffic_by_level(record: RunData) -> tuple[Counter[str], Mapping[str, float]]:
    """Return the bytes that a device sends over links of each level, and the seconds.

    Without a comparison with a cluster no link is known, and both are empty.
    """
    links: Mapping[str, LinkRow] = (record.compared or {}).get("links") or {}
    sizes: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for term, sent in record.run.bytes_by_collective.items():
        # A term ends in its axes: `all-reduce, data x spatial_h`.
        link = links.get(term.rpartition(", ")[2])
        if link is not None:
            sizes[link["level"]] += sent
            # Links of one level may have several rates: bytes do not give their time.
            seconds[link["level"]] += sent / link["bytes_per_s"]
    return sizes, seconds
