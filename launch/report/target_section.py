"""The step compiled for a machine that is not here: memory, cycles and collectives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from jaxdist.core.files import write_atomic
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
    make_bar_chart,
)
from jaxdist.launch.report.html_document import read_resource, render_template

_MAX_LAYERS: Final = 12
"""Layers that are drawn."""
TargetAnswer = Mapping[str, Any]
"""What the compiler of a target said of a step, as `jaxdist compile --json` has it."""


@dataclass(frozen=True, kw_only=True)
class TargetSection:
    """What the section shows."""

    target: str
    memory: BarChart | None
    layers: BarChart | None
    collectives: Sequence[tuple[str, str, str, str, str]]
    """Kind and axes, how many, asynchronous of them, bytes, and how much is hidden."""
    differences: Sequence[str]
    rewrites: Sequence[tuple[str, str, str, str]]
    """Name, collective with its axes, bytes as planned, bytes in the program."""
    how: str


def target_caption(found: TargetAnswer | None, run: str) -> Markup:
    """Say whether the step fits, and how long it is estimated to take."""
    if found is None:
        text = "Not compiled: <code>jaxdist report {} --target CHIP:SHAPE</code>."
        return Markup(text).format(run)
    fits = Markup("The step fits: <b>{}</b> of {} a device of {}")
    if not found["fits"]:
        fits = Markup("The step <b>does not fit</b>: {} of {} a device of {}")
    sizes = format_size(found["memory_bytes"]), format_size(found["capacity_bytes"])
    told = fits.format(*sizes, found["target"])
    if found["host_bytes"]:
        told += Markup(", and {} on its host").format(format_size(found["host_bytes"]))
    if found["step_s"] is not None:
        text = "; a step is estimated at <b>{}</b>, {} of it waiting for collectives"
        step = found["step_s"]
        share = format_percent((found["exposed_s"] or 0.0) / step if step else 0.0)
        told += Markup(text).format(format_duration(step), share)
    return told + Markup(".")


def target_section(found: TargetAnswer | None) -> TargetSection | None:
    """Return what is shown of a compiler's answer; None without one."""
    if found is None:
        return None
    terms = dict(found["memory_terms"])
    # The compiler tells the sum alone: what is no state is what is left of it.
    rest = found["memory_bytes"] - sum(terms.values())
    terms |= {"activations and temporaries": rest} if rest > 0 else {}
    how = f"Compiled by {found['compiler']} for the plan {found['plan']}; nothing was "
    how += "run. Memory and collectives are the program's own; hidden: sent while a "
    how += "device computes. "
    if found["step_s"] is not None:
        how += "Cycles are the compiler's estimate; the step is without "
        how += f"{', '.join(found['not_estimated'])}. "
        mfu = format_percent(found["mfu"] or 0.0)
        how += f"Model FLOPs utilisation (MFU): {mfu}."
    return TargetSection(
        target=found["target"],
        memory=make_bar_chart(
            [
                BarSegment(
                    fill="forward",
                    title=name,
                    size=size,
                    label=format_size(size),
                    half=True,
                )
                for name, size in sorted(terms.items(), key=lambda term: -term[1])
            ],
            BYTE_UNITS,
            "bytes a device",
        ),
        layers=make_bar_chart(
            [
                BarSegment(
                    fill="backward",
                    title=row["layer"] or "loss, optimizer, the rest",
                    size=row["cycles"],
                    label=format_size(row["cycles"], "").strip(),
                    half=True,
                )
                for row in found["layers"][:_MAX_LAYERS]
            ],
            ((1e9, "billions"), (1e6, "millions"), (1e3, "thousands"), (1.0, "one")),
            "estimated cycles a step",
            # Of all layers, also of those that are not drawn.
            whole=sum(row["cycles"] for row in found["layers"]),
        ),
        collectives=[
            (
                f"{row['kind']}, {' x '.join(row['axes']) or 'unknown devices'}",
                format_count(row["count"]),
                format_count(row["async_count"]),
                format_size(row["sent_bytes"]),
                format_percent(row["hidden_bytes"] / max(1, row["sent_bytes"])),
            )
            for row in found["collectives"]
        ],
        differences=found["differences"],
        rewrites=[
            (
                row["name"],
                f"{row['kind']}, {' x '.join(row['axes'])}",
                format_size(row["planned"]),
                format_size(row["program"]),
            )
            for row in found["rewrites"]
        ],
        how=how,
    )


def write_target_page(found: TargetAnswer, page: Path) -> None:
    """Write a compiler's answer as a page of its own."""
    context = {
        "experiment": found["experiment"],
        "plan": found["plan"],
        "find": {"target": target_caption(found, "")},
        "compiled": target_section(found),
    }
    write_atomic(page, render_template(read_resource("target_page.html.j2"), context))
