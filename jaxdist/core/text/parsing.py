"""Quantities as people write them: `12.5GB/s`, `100gbit`, `0.5us`, `312 TFLOP/s`."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jaxdist.core.errors import BadInput

_PREFIX: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY: Final = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_TIMES: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12}
_LENGTHS: Final = {"m": 1.0, "km": 1e3, "cm": 1e-2, "mm": 1e-3}
_NUMBER: Final = r"\s*([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*"
_MOST: Final = 1e16
"""Bytes a second above which a link is taken for a slip of the unit."""
SPEED_OF_LIGHT: Final = 299_792_458.0
"""Metres a second, which nothing passes."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of quantity: how it is written, and which of them there are."""

    of_text: Callable[[str], float | None]
    """Reads text; None where it is no such quantity."""
    example: str
    """One, or several, as people write them."""
    within: Callable[[float], bool]
    """Whether there is one of that size."""
    rule: str
    """The same in words."""
    nobody: str
    """What is said of one that there is not, `{}` being it."""
    unit: str
    """Of the number."""

    def read(self, value: object, where: str) -> float:
        """Return the number in SI units.

        Raises:
            BadInput: no such quantity, or none that there is.
        """
        if isinstance(value, int | float) and not isinstance(value, bool):
            number: float | None = float(value)
        else:
            number = self.of_text(str(value).strip())
        if number is None or math.isnan(number):
            raise BadInput(
                f"{where}: {value} is no such quantity",
                rule="a number and its unit, as in " + self.example,
                values=f"{value!r}",
                remedy=self.example,
            )
        if not self.within(number):
            raise BadInput(
                f"{where}: {self.nobody.format(value)}",
                rule=self.rule,
                values=f"{number:g} {self.unit}",
                remedy=self.example.partition(" or ")[0],
            )
        return number


def parse_bandwidth(value: object, context: str) -> float:
    """Read bytes a second.

    Args:
        value: a number, or text with a unit: B/s with k, M, G, T, Ki, Mi, Gi or Ti, or
            bit, kbit, mbit, gbit, tbit a second, in any case.
        context: what it is of, for errors.

    Raises:
        BadInput: no such quantity, not above zero, or beyond 10 PB/s.

    >>> tuple(parse_bandwidth(text, "nic") for text in ("100 Gbit/s", "12.5GB/s", 5))
    (12500000000.0, 12500000000.0, 5.0)
    """
    return _BANDWIDTH.read(value, context)


def parse_duration(value: object, context: str) -> float:
    """Read a time, a latency for one.

    Args:
        value: a number of seconds, or text that ends in s, ms, us, ns or ps.
        context: what it is of, for errors.

    Raises:
        BadInput: no such quantity, negative, or above a minute.

    >>> parse_duration("26 ns", "cable"), parse_duration(0, "cable")
    (2.6e-08, 0.0)
    """
    return _TIME.read(value, context)


def parse_length(value: object, context: str) -> float:
    """Read a length: a number of metres, or text that ends in m, km, cm or mm.

    Raises:
        BadInput: no such quantity, or negative.

    >>> parse_length("1.5 km", "cable")
    1500.0
    """
    return _LENGTH.read(value, context)


def parse_bytes(value: object, context: str) -> float:
    """Read bytes: a number, or text that ends in B with k, M, G, T, Ki, Mi, Gi or Ti.

    Raises:
        BadInput: no such quantity, or negative.

    >>> parse_bytes("80 GB", "memory"), parse_bytes("16GiB", "memory")
    (80000000000.0, 17179869184.0)
    """
    return _VOLUME.read(value, context)


def parse_flop_rate(value: object, context: str) -> float:
    """Read FLOPs a second: a number, or text as `312 TFLOP/s`, `15.7 TFLOPS`.

    Raises:
        BadInput: no such quantity, not above zero, or beyond 1e18.

    >>> parse_flop_rate("15.7 TFLOP/s", "flops")
    15700000000000.0
    """
    return _WORK_RATE.read(value, context)


def _bytes_a_second(text: str) -> float | None:
    bits = re.fullmatch(
        _NUMBER + r"([kmgt]?)bits?(?:/s|ps)?", text.lower(), re.IGNORECASE
    )
    if bits:
        return _float(bits[1], _PREFIX[bits[2]] / 8)
    found = re.fullmatch(_NUMBER + r"((?:[kKMGT]i?)?)B(?:/s|ps)", text)
    if found:
        scale = {**_PREFIX, **_BINARY}[found[2].lower()]
        return _float(found[1], scale)
    return _float(text, 1.0)


def _bytes(text: str) -> float | None:
    found = re.fullmatch(_NUMBER + r"((?:[kKMGT]i?)?)B", text)
    if found:
        return _float(found[1], {**_PREFIX, **_BINARY}[found[2].lower()])
    return _float(text, 1.0)


def _flops(text: str) -> float | None:
    found = re.fullmatch(_NUMBER + r"([kKMGTP]?)FLOP(?:S|s|/s)", text)
    if found:
        return _float(found[1], {**_PREFIX, "p": 1e15}[found[2].lower()])
    return _float(text, 1.0)


def _seconds(text: str) -> float | None:
    found = re.fullmatch(_NUMBER + r"(s|ms|us|µs|ns|ps)", text)
    return _float(found[1], _TIMES[found[2]]) if found else _float(text, 1.0)


def _metres(text: str) -> float | None:
    found = re.fullmatch(_NUMBER + r"(m|km|cm|mm)", text)
    return _float(found[1], _LENGTHS[found[2]]) if found else _float(text, 1.0)


def _float(text: str, scale: float) -> float | None:
    try:
        return float(text) * scale
    except ValueError:
        return None


_BANDWIDTH: Final = _Kind(
    of_text=_bytes_a_second,
    example="12.5GB/s or 100gbit",
    within=lambda rate: 0 < rate <= _MOST,
    rule="a bandwidth is above 0 and at most 10 PB/s",
    nobody="no link has {}",
    unit="B/s",
)
_TIME: Final = _Kind(
    of_text=_seconds,
    example="0.5us",
    within=lambda time: 0 <= time <= 60,
    rule="a latency is between 0 and a minute",
    nobody="no link takes {}",
    unit="s",
)
_LENGTH: Final = _Kind(
    of_text=_metres,
    example="3m",
    within=lambda length: 0 <= length < math.inf,
    rule="a length is 0 or above",
    nobody="no cable is {} long",
    unit="m",
)
_VOLUME: Final = _Kind(
    of_text=_bytes,
    example="16 GB",
    within=lambda size: 0 <= size < math.inf,
    rule="bytes are 0 or above",
    nobody="nothing has {}",
    unit="B",
)
_WORK_RATE: Final = _Kind(
    of_text=_flops,
    example="312 TFLOP/s",
    within=lambda rate: 0 < rate <= 1e18,
    rule="FLOPs a second are above 0 and at most 1e18",
    nobody="no device computes {}",
    unit="FLOP/s",
)
