"""Inline SVG: escaped elements, lengths in per cent, and the ticks of an axis.

Colours are classes: the style sheet gives them, so dark mode needs no second drawing.
Across, lengths are per cent and text is not scaled, so a drawing of any width has
labels of the same size.
"""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape


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
    return [round(n * step, 12) for n in range(first, last + 1)]


def format_tick(value: float) -> str:
    """Write the number at a tick, without its unit."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def tick_labels(axis: Sequence[float], y: float) -> list[Markup]:
    """Write the numbers of an axis that begins at zero, on one base line."""
    return [
        tag(
            "text",
            format_tick(tick),
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
