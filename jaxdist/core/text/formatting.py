"""Numbers for people: SI units, thousands with commas, a space before the unit."""

from typing import Final

_STEPS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_count(value: int) -> str:
    """Write a count with commas.

    >>> format_count(78330)
    '78,330'
    """
    return f"{value:,}"


def format_size(value: float, unit: str = "B") -> str:
    """Write bytes (or FLOPs) with a decimal SI prefix and three digits.

    >>> format_size(548_310), format_size(8), format_size(13.9e9), format_size(0)
    ('548 kB', '8 B', '13.9 GB', '0 B')
    """
    for step, prefix in _STEPS:
        # What rounds to 1,000 at three digits has the next prefix: 1 MB, not 1000 kB.
        if abs(value) >= 0.9995 * step:
            return f"{_three(value / step)} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def format_duration(seconds: float) -> str:
    """Write a time in the unit a person would use.

    >>> tuple(format_duration(seconds) for seconds in (0.0364, 8.71, 960, 76_800))
    ('36.4 ms', '8.7 s', '16 min', '21 h 20 min')
    """
    if seconds < 1:
        return f"{_three(1e3 * seconds)} ms" if seconds >= 1e-4 else "< 0.1 ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"


def format_percent(fraction: float, decimals: int = 1) -> str:
    """Write a share of one as per cent.

    >>> format_percent(0.99167, 2)
    '99.17 %'
    """
    return f"{100 * fraction:.{decimals}f} %"


def _three(value: float) -> str:
    """Round to three significant digits, never to an exponent."""
    # The bounds are where rounding adds a digit: 9.995 is written 10.0.
    magnitude = abs(value)
    decimals = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    return f"{value:.{decimals}f}"
