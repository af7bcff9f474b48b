"""Charts of the report as SVG: lines over one axis, stacked bars, rows.

Bars from zero: the parts of a whole, predicted over measured, rows on one axis.

Three looks tell where a number is from: hollow is predicted, half tone was read from
the compiled program, filled was measured.

Inline SVG: escaped elements, lengths in per cent, and the ticks of an axis.

Colours are classes: the style sheet gives them, so dark mode needs no second drawing.
Across, lengths are per cent and text is not scaled, so a drawing of any width has
labels of the same size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup, escape

from jaxdist.core.axes import AXES, POSITION_AXES
from jaxdist.core.text.formatting import format_percent
from jaxdist.core.text.theme import FILLS


def tag(name: str, *inside: Markup | str, **attributes: object) -> Markup:
    """Write an element; text and attributes are escaped, `None` leaves one out.

    Underscores stand for hyphens, a trailing one keeps a name off a Python keyword.

    >>> tag("text", "a < b", class_="tick", text_anchor="end")
    Markup('<text class="tick" text-anchor="end">a &lt; b</text>')
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    # Joining through Markup escapes plain strings and leaves elements as they are.
    return Markup(f"<{name}{written}>{Markup('').join(inside)}</{name}>")


def percent_length(share: float) -> str:
    """Write a share of one as a length.

    >>> percent_length(0.125)
    '12.5%'
    """
    return f"{round(100 * share, 3):g}%"


def labelled_svg(title: str, *inside: Markup, height: int, desc: str = "") -> Markup:
    """Write a drawing with its title, and a description, for screen readers."""
    told = (tag("title", title), *((tag("desc", desc),) if desc else ()))
    size = {"width": "100%", "height": height}
    return tag("svg", *told, *inside, role="img", aria_label=title, **size)


def ticks(low: float, high: float, max_intervals: int = 6) -> list[float]:
    """Choose axis ticks at 1, 2, 2.5 or 5 times a power of ten, around the values.

    Args:
        low: smallest value to show.
        high: largest value to show.
        max_intervals: most intervals between ticks.

    >>> ticks(0, 23.6), ticks(0.0, 0.1)
    ([0.0, 5.0, 10.0, 15.0, 20.0, 25.0], [0.0, 0.02, 0.04, 0.06, 0.08, 0.1])
    """
    span = high - low if high > low else abs(high) or 1.0
    # The first of 1, 2, 2.5, 5, 10, 20 that needs no more intervals than are allowed is
    # the finest grid.
    power = 10.0 ** math.floor(math.log10(span / max_intervals))
    step = next(
        power * m for m in (1, 2, 2.5, 5, 10, 20) if span / (power * m) <= max_intervals
    )
    # The slack keeps a rounding error of the division from adding an empty interval.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    # Rounded: 3 x 0.1 is 0.30000000000000004.
    return [round(n * step, 12) for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Choose ticks of a logarithmic axis around positive values.

    Powers of ten, some seven at most; within two decades 2 and 5 times them as well.

    >>> log_ticks(0.006, 2.9), log_ticks(30, 400)
    ([0.001, 0.01, 0.1, 1.0, 10.0], [20.0, 50.0, 100.0, 200.0, 500.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    # A logarithm that is rounded may be a power's own beside the power.
    first -= float(f"1e{first}") > low
    last += float(f"1e{last}") < high
    if last - first > 2:
        every = -(-(last - first) // 6)
        # From above: what rounding adds lies below the lowest value.
        return [float(f"1e{n}") for n in reversed(range(last, first - every, -every))]
    grid = [float(f"{m}e{n}") for n in range(first, last + 2) for m in (1, 2, 5)]
    begin = max(n for n, tick in enumerate(grid) if tick <= low)
    end = next(n for n, tick in enumerate(grid) if tick >= high and n > begin)
    return grid[begin : end + 1]


def format_tick(value: float, largest: float = 0.0) -> str:
    """Write the number at a tick, without its unit.

    Args:
        value: the number.
        largest: of its axis; from 10,000 on numbers are in thousands or millions.

    >>> [format_tick(x, 15_000) for x in (0, 5_000, 15_000)], format_tick(5_000)
    (['0', '5k', '15k'], '5,000')
    """
    if max(abs(value), largest) >= 1e4:
        for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:g}{letter}"
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def tick_labels(axis: Sequence[float], y: float) -> list[Markup]:
    """Write the numbers of an axis that begins at zero, on one base line."""
    return [
        tag(
            "text",
            format_tick(tick, axis[-1]),
            class_="tick",
            x=percent_length(tick / axis[-1]),
            y=y,
            # A centred zero would stick out of the drawing on the left.
            text_anchor="middle" if tick else "start",
        )
        for tick in axis
    ]


def grid_lines(axis: Sequence[float], height: int) -> list[Markup]:
    """Draw a vertical line at each tick of an axis that begins at zero."""
    places = (percent_length(tick / axis[-1]) for tick in axis)
    return [tag("line", class_="grid", x1=x, x2=x, y1=0, y2=height) for x in places]


SERIES_STROKES: Final = (
    *("backward", "data", "input", "tensor", "spatial", "pipe", "forward"),
    "checkpoint",
)
"""Colours of curves that are alike but for what made them, in their order."""
PLOT_HEIGHT: Final = 200
"""Height of a plot, pixels."""
_MAX_DOTS: Final = 40
"""Points of a curve up to which each is marked."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a plot."""

    stroke: str
    """Name of its colour in `jaxdist.core.text.theme`."""
    points: Sequence[tuple[float, float]]
    """(x, y), x growing."""
    label: str
    """What it is and where it ends, written beside its end."""
    name: str = ""
    """What it is alone, for a pointer that asks for values."""
    peak: tuple[float, float] | None = None
    """Where the label stands instead, if not at the end."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with its caption and the titles of its axes."""

    name: str
    """What is shown."""
    unit: str
    """Quantity and unit of the vertical axis."""
    svg: Markup
    """The drawing."""
    below: str
    """Title of the horizontal axis; empty where it stands beside its numbers."""
    log_svg: Markup | None = None
    """The same over a logarithmic axis, where there are decades to see."""
    prefers_log: bool = False
    """Whether that one is shown first."""


_MAX_NAMED_MARKS: Final = 3


@dataclass(frozen=True, kw_only=True)
class AxisMark:
    """A place on the horizontal axis where something happened to a run."""

    place: float
    """Where, in the unit of the axis."""
    label: str
    """What, in a word or two."""
    title: str = ""
    """The same in a sentence, for a pointer that rests there."""


@dataclass(frozen=True, kw_only=True)
class XAxis:
    """The horizontal axis of a plot, which begins at zero."""

    title: str
    """What it counts."""
    ticks: Sequence[float]
    """Where its numbers stand."""
    end: float = 0.0
    """Where it ends; 0: at its last tick."""
    marks: Sequence[AxisMark] = ()
    """Where to draw dotted lines: the run was resumed or changed."""
    epoch: float | None = None
    """Steps of an epoch, for a second row of numbers; None draws none."""

    def share(self, value: float) -> float:
        """Place a value as a share of the plot's width."""
        # The last step is rarely a round number: the axis may go on behind its ticks.
        return value / (self.end or self.ticks[-1])

    @property
    def epochs(self) -> list[float]:
        """Whole epochs that a number stands at; none where the axis has less than 1."""
        if self.epoch is None:
            return []
        last = (self.end or self.ticks[-1]) / self.epoch
        # The last epoch may end a rounding error behind the axis.
        found = [n for n in ticks(0.0, last) if n <= last * (1 + 1e-9) and n % 1 == 0]
        return found if len(found) > 1 else []


@dataclass(frozen=True, kw_only=True)
class YAxis:
    """The vertical axis of a plot."""

    title: str
    """Quantity and unit."""
    ticks: Sequence[float]
    """Where its numbers stand; first and last are its ends."""
    is_log: bool = False
    """Whether it is logarithmic."""

    def share(self, value: float) -> float:
        """Place a value as a share of the plot's height, from above, 0 to 1."""
        low, value, high = (
            math.log10(x) if self.is_log else x
            for x in (self.ticks[0], value, self.ticks[-1])
        )
        return 1 - min(1.0, max(0.0, (value - low) / (high - low)))


def draw_line_chart(
    name: str,
    curves: Sequence[Curve],
    x: XAxis,
    y: YAxis,
    *,
    labels_below: bool = False,
    offers_log: bool = False,
    labelled: bool = True,
) -> Figure:
    """Draw curves over one axis; screen readers hear the name and the curves' labels.

    Args:
        name: what is shown.
        curves: at least one, each with at least one point.
        x: the horizontal axis.
        y: the vertical axis.
        labels_below: write the labels below the ends of the curves, for curves that
            rise.
        offers_log: draw them over a logarithmic axis as well, where they are positive
            and span a decade; over two decades it is the first to be seen.
        labelled: write labels at curves; of many the page has a key.
    """
    labels = _labels(curves, x, y, below=labels_below) if labelled else []
    drawn = _draw_plot(name, curves, x, y, labels)
    below = "" if x.epochs else x.title
    figure = Figure(name=name, unit=y.title, svg=drawn, below=below)
    values = [value for curve in curves for _, value in curve.points]
    low, high = min(values), max(values)
    if not offers_log or low <= 0 or high < 10 * low:
        return figure
    y = YAxis(title=y.title, ticks=log_ticks(low, high), is_log=True)
    labels = _labels(curves, x, y, below=False) if labelled else []
    drawn = _draw_plot(f"{name}, logarithmic", curves, x, y, labels)
    return replace(figure, log_svg=drawn, prefers_log=high >= 100 * low)


def _draw_plot(
    name: str, curves: Sequence[Curve], x: XAxis, y: YAxis, labels: Sequence[Markup]
) -> Markup:
    placed = [[(x.share(a), y.share(b)) for a, b in c.points] for c in curves]

    parts = []
    for tick in y.ticks:
        up = percent_length(y.share(tick))
        parts.append(tag("line", class_="grid", x1=0, x2="100%", y1=up, y2=up))
        at = {"x": -8, "y": up, "dy": 4, "text_anchor": "end"}
        number = format_tick(tick, y.ticks[-1])
        parts.append(tag("text", number, class_="tick", **at))
    epochs = x.epochs
    rows = [(x.title, [(tick, tick) for tick in x.ticks])]
    rows += [("epoch", [(n, n * (x.epoch or 1)) for n in epochs])] if epochs else []
    for row, (title, numbers) in enumerate(rows):
        down = PLOT_HEIGHT + 17 + 16 * row
        for tick, place in numbers:
            at = {"x": percent_length(x.share(place)), "y": down}
            middle = {"class_": "tick", **at, "text_anchor": "middle"}
            number = format_tick(tick, numbers[-1][0])
            parts.append(tag("text", number, **middle))
        if epochs:
            at = {"x": -8, "y": down, "text_anchor": "end"}
            parts.append(tag("text", title, class_="tick", **at))
    base = {"x1": 0, "x2": "100%", "y1": PLOT_HEIGHT, "y2": PLOT_HEIGHT}
    parts.append(tag("line", class_="ax", **base))

    for mark in x.marks:
        across = percent_length(x.share(mark.place))
        told = (tag("title", mark.title),) if mark.title else ()
        line = {"x1": across, "x2": across, "y1": 0, "y2": "100%"}
        parts.append(tag("line", *told, class_="rst", **line))
        if len(x.marks) <= _MAX_NAMED_MARKS:  # the texts of more would overlap
            at = {"x": across, "y": -5, "text_anchor": "middle"}
            parts.append(tag("text", mark.label, class_="tick", **at))

    # A polyline takes no per cent. It lies in an inner drawing of 100 by 100 units that
    # is stretched to the plot; texts and dots stay outside it and keep their shape.
    lines = []
    for curve, places in zip(curves, placed):
        points = " ".join(f"{100 * a:.2f},{100 * b:.2f}" for a, b in places)
        # What a pointer is told, where places are too coarse; a drawing over another
        # axis of the same curves has it from the first one.
        values = " ".join(f"{a:g},{b:.4g}" for a, b in curve.points)
        known = {"data_values": None if y.is_log else values}
        look = {"class_": f"ln s-{curve.stroke}", "data_name": curve.name or None}
        lines.append(tag("polyline", **look, points=points, **known))
    inner = {"width": "100%", "height": PLOT_HEIGHT, "viewBox": "0 0 100 100"}
    stretch = {"preserveAspectRatio": "none", "overflow": "visible"}
    axis = {"data_x": x.title, "data_epoch": f"{x.epoch:g}" if epochs else None}
    parts.append(tag("svg", *lines, **inner, **stretch, **axis))
    # A curve of one point has no line at all: without a dot it would not be seen.
    parts += [
        tag("circle", class_=f"t-{curve.stroke}", cx=cx, cy=cy, r=2.5)
        for curve, places in zip(curves, placed)
        if len(places) <= _MAX_DOTS
        for cx, cy in ((percent_length(a), percent_length(b)) for a, b in places)
    ]
    parts += labels

    title = f"{name}: {'; '.join(curve.label for curve in curves)}"
    return labelled_svg(title, *parts, height=PLOT_HEIGHT)


def _labels(
    curves: Sequence[Curve], x: XAxis, y: YAxis, *, below: bool
) -> list[Markup]:
    """Write the names at the ends, the higher curve's above the lower one's."""

    def shares(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(x.share(a), y.share(b)) for a, b in points]

    ends = [(c, shares(c.points)) for c in curves if c.peak is None]
    ends.sort(key=lambda end: end[1][-1][1])
    last = max((places[-1][0] for _, places in ends), default=1.0)
    # Labels are written towards the left: they stand clear of every curve there.
    near = [b for _, places in ends for a, b in places if a >= 0.6 * last]
    below = below and max(near) < 0.75  # there is room down to the axis
    # Pixels from the curves: a line of text takes 16.
    offsets = [24 + 16 * n if below else -10 - 16 * n for n in range(len(ends))]
    places = [
        (curve, last, max(near) if below else min(near), dy)
        for (curve, _), dy in zip(ends if below else reversed(ends), offsets)
    ]
    for curve in curves:
        if curve.peak is not None:
            ((left, up),) = shares([curve.peak])
            places.append((curve, left, up, -10))

    labels = []
    for curve, left, up, dy in places:
        sample = tag("tspan", "\u2501 ", class_=f"t-{curve.stroke}")
        at = {"x": percent_length(left), "y": percent_length(up), "dy": dy}
        # Text runs towards the side that has more room.
        look = {"class_": "dl", **at, "text_anchor": "start" if left < 0.5 else "end"}
        labels.append(tag("text", sample, curve.label, **look))
    return labels


TIME_UNITS: Final = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
BYTE_UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


@dataclass(frozen=True, kw_only=True)
class BarSegment:
    """A part of a bar."""

    fill: str
    """Name of its fill in `jaxdist.core.text.theme`."""
    size: float
    """Length in the unit of the bar."""
    title: str
    """What it is and how much, shown on hover."""
    label: str
    """What is written in it or behind it."""
    half: bool = False
    """Whether it was read from the compiled program: half tone."""
    hollow: bool = False
    """Whether it was predicted."""


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """A labelled bar, and the share of the whole it stands for."""

    name: str
    svg: Markup
    share: str


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Rows that share one axis."""

    rows: Sequence[BarRow]
    axis: Markup
    unit: str


def stacked_bar(title: str, segments: Sequence[BarSegment]) -> Markup:
    """Draw parts of a whole as one bar over the full width."""
    # Parts that are all zero make an empty bar and not a division by zero.
    whole = sum(s.size for s in segments) or 1.0
    marks, x = [], 0.0
    for segment in segments:
        share = segment.size / whole
        marks.append(_rect(segment, x, share, y=1, height=28))
        # A letter takes at most some 1.6 % of the width. A label that does not fit its
        # part, with the room of a letter on either side, is left to the title.
        if share > 0.016 * (len(segment.label) + 2):
            look, middle = f"in in-{segment.fill}", percent_length(x + share / 2)
            place = {"x": middle, "y": 19.5, "text_anchor": "middle"}
            marks.append(tag("text", segment.label, class_=look, **place))
        x += share
    return labelled_svg(title, *marks, height=30)


def bar_pair(
    title: str,
    fill: str,
    predicted: float,
    measured: float | None,
    *,
    half: bool = False,
) -> Markup:
    """Draw a hollow bar above a filled one, each as a share of the full width.

    Args:
        title: what both are, with their numbers.
        fill: name of their fill in `jaxdist.core.text.theme`.
        predicted: length of the hollow bar.
        measured: length of the filled bar; None draws none.
        half: draw the lower bar in half tone, as read from the compiled program.
    """
    marks = [(predicted, "p", 4, 9)]
    if measured is not None:
        marks.append((measured, "m half" if half else "m", 16, 10))
    parts = [tag("line", class_="ax", x1=0, x2=0, y1=0, y2=30)]
    for share, tone, y, height in marks:
        size = {"width": percent_length(share), "height": height}
        parts.append(tag("rect", class_=f"{tone} t-{fill}", x=0, y=y, **size))
    return labelled_svg(title, *parts, height=30)


def make_bar_chart(
    segments: Sequence[BarSegment],
    units: Sequence[tuple[float, str]],
    quantity: str,
    whole: float | None = None,
    *,
    shares: bool = True,
) -> BarChart | None:
    """Draw a row a bar, all on one axis; None where there is nothing to draw.

    Args:
        segments: bars, in their order, each in the unit of the last of `units`.
        units: how much each unit is, and its name, the largest first.
        quantity: what the axis measures.
        whole: what shares are of; None: of all bars together.
        shares: write beside each bar its share of the whole.
    """
    longest = max((mark.size for mark in segments), default=0.0)
    if not longest:
        return None
    whole = whole or sum(mark.size for mark in segments)
    # The largest unit in which the longest bar is at least one: the axis then has short
    # numbers, and all rows the same ones.
    scale, unit = next((u for u in units if longest >= u[0]), units[-1])
    axis = ticks(0.0, longest / scale)

    rows = []
    for mark in segments:
        end = mark.size / scale / axis[-1]
        bar = _rect(mark, 0, end, y=5, height=16)
        place = {"x": percent_length(end), "dx": 7, "y": 17.5}
        value = tag("text", mark.label, class_="val", **place)
        # The bar hides the grid, its value at the end is written over both.
        drawn = labelled_svg(
            f"{mark.title}: {mark.label}", *grid_lines(axis, 26), bar, value, height=26
        )
        share = mark.size / whole
        # What took some time must not read as having taken none.
        text = format_percent(share) if share >= 0.0005 else "< 0.1 %"
        rows.append(BarRow(name=mark.title, svg=drawn, share=text if shares else ""))

    numbers = tick_labels(axis, 14)
    below = tag("svg", *numbers, width="100%", height=18, aria_hidden="true")
    return BarChart(rows=rows, axis=below, unit=f"{quantity}, {unit}")


def _rect(
    segment: BarSegment, x: float, width: float, *, y: int, height: int
) -> Markup:
    tone = "p" if segment.hollow else "m half" if segment.half else "m"
    return tag(
        "rect",
        tag("title", segment.title),
        class_=f"{tone} t-{segment.fill}",
        x=percent_length(x),
        y=y,
        width=percent_length(width),
        height=height,
    )


def collective_fill(label: str) -> str:
    """Name the fill of a traffic term `collective, axes`: the hue of its first axis.

    A sum named by what it sums (`all-reduce, loss`) runs with the gradients and has
    their hue.

    >>> collective_fill("halo, spatial_h")
    'spatial'
    >>> collective_fill("all-reduce, data x spatial_h")
    'data'
    """
    # A label of a sum by what it sums has no axis, and falls through to `data`.
    along = label.rpartition(", ")[2].split(" x ")[0].split(" ")[0]
    if along in POSITION_AXES:
        return "spatial"
    return along if along in AXES and along in FILLS else "data"
