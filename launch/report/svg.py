"""Inline SVG: elements with everything escaped, lengths, and the ticks of an axis.

Colours are classes: the style sheet gives them, so dark needs no second drawing.
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
    return Markup(f"<{name}{written}>{join(inside)}</{name}>")


def join(parts: Sequence[Markup | str]) -> Markup:
    """Put elements and texts one after the other."""
    return Markup("").join(parts)


def percent_length(share: float) -> str:
    """Write a share of one as a length.

    >>> percent_length(0.125)
    '12.5%'
    """
    return f"{round(100 * share, 3):g}%"


def labelled_svg(title: str, *inside: Markup, height: int, desc: str = "") -> Markup:
    """Write a drawing that says in words what it shows."""
    told = (tag("title", title), *((tag("desc", desc),) if desc else ()))
    return tag(
        "svg",
        *told,
        *inside,
        role="img",
        aria_label=title,
        width="100%",
        height=height,
    )


def ticks(low: float, high: float, max_intervals: int = 6) -> list[float]:
    """Choose axis ticks at 1, 2, 2.5 or 5 times a power of ten, around the values.

    Args:
        low: smallest value to show.
        high: largest value to show.
        max_intervals: how many intervals there may be.

    >>> ticks(0, 23.6), ticks(0.0, 0.1)
    ([0.0, 5.0, 10.0, 15.0, 20.0, 25.0], [0.0, 0.02, 0.04, 0.06, 0.08, 0.1])
    """
    span = high - low if high > low else abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / max_intervals))
    step = next(
        power * m for m in (1, 2, 2.5, 5, 10, 20) if span / (power * m) <= max_intervals
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return [round(n * step, 12) for n in range(first, last + 1)]


def format_tick(value: float) -> str:
    """Write a bare tick number."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
