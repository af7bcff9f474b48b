"""Quantities as people write them: `12.5GB/s`, `100gbit`, `0.5us`, `312 TFLOP/s`."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from jaxdist.core.errors import BadInput

_SI: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY: Final = {"ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
# Kilo is written k and K; M, G and T are not mega, giga and tera in small letters.
_PREFIXES: Final = {**_SI, **_BINARY, "K": 1e3, "Ki": 2.0**10}
_NUMBER: Final = r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*"
# Bytes a second above which a link is taken for a slip of the unit.
_MAX_RATE: Final = 1e16


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    """A kind of quantity: its units, and which values there are."""

    scales: Mapping[str, float]
    """SI units in one of each unit."""
    example: str
    """One, or several, as people write them."""
    within: Callable[[float], bool]
    """Whether there is one of that size."""
    rule: str
    """The same in words."""
    nobody: str
    """What an error says of a value that there is not, with `{}` for it."""
    unit: str
    """SI unit, for errors."""

    def read(self, value: object, where: str) -> float:
        """Return the number in SI units.

        Raises:
            BadInput: no such quantity, or none that there is.
        """
        if isinstance(value, int | float) and not isinstance(value, bool):
            number: float | None = float(value)
        else:
            text = str(value).strip()
            found = re.fullmatch(_NUMBER + r"(\D.*)", text)
            unit = found[2] if found else ""
            # Networks are sold in Gbit/s, Gbit, gbit and Gbps of bits: in any case.
            unit = unit.lower() if "bit" in unit.lower() else unit
            scale = self.scales.get(unit)
            try:
                # Text like 1e-5 is a number, not one of the unit `e-5`.
                number = float(found[1]) * scale if found and scale else float(text)
            except ValueError:
                number = None
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


_BYTES: Final = {f"{prefix}B": scale for prefix, scale in _PREFIXES.items()}
_BITS: Final = {
    f"{prefix.lower()}{bit}": scale / 8
    for prefix, scale in _SI.items()
    for bit in ("bit", "bits")
}
# Gbps and Gb/s are bits, by their small b.
_BITS_PER_SECOND: Final = {
    f"{prefix}{unit}": scale / 8
    for prefix, scale in {**_SI, "K": 1e3}.items()
    for unit in ("bps", "b/s")
}
# The micro sign and the Greek letter, which look alike.
_MICRO: Final = {"\u00b5s": 1e-6, "\u03bcs": 1e-6}
_BANDWIDTH: Final = _Quantity(
    scales={
        **{f"{unit}{per}": x for unit, x in _BYTES.items() for per in ("/s", "ps")},
        **{f"{unit}{per}": x for unit, x in _BITS.items() for per in ("", "/s", "ps")},
        **_BITS_PER_SECOND,
    },
    example="12.5GB/s or 100gbit",
    within=lambda rate: 0 < rate <= _MAX_RATE,
    rule="a bandwidth is above 0 and at most 10 PB/s",
    nobody="no link has {}",
    unit="B/s",
)
_TIME: Final = _Quantity(
    scales={"s": 1.0, "ms": 1e-3, "us": 1e-6, **_MICRO, "ns": 1e-9, "ps": 1e-12},
    example="0.5us",
    within=lambda time: 0 <= time <= 60,
    rule="a latency is between 0 and a minute",
    nobody="no link takes {}",
    unit="s",
)
_LENGTH: Final = _Quantity(
    scales={"m": 1.0, "km": 1e3, "cm": 1e-2, "mm": 1e-3},
    example="3m",
    within=lambda length: 0 <= length < math.inf,
    rule="a length is 0 or above",
    nobody="no cable is {} long",
    unit="m",
)
_VOLUME: Final = _Quantity(
    scales=_BYTES,
    example="16 GB",
    within=lambda size: 0 <= size < math.inf,
    rule="bytes are 0 or above",
    nobody="nothing has {}",
    unit="B",
)
_WORK_RATE: Final = _Quantity(
    scales={
        f"{prefix}{work}": scale
        for prefix, scale in {**_SI, "K": 1e3, "P": 1e15}.items()
        for work in ("FLOPS", "FLOPs", "FLOP/s")
    },
    example="312 TFLOP/s",
    within=lambda rate: 0 < rate <= 1e18,
    rule="FLOPs a second are above 0 and at most 1e18",
    nobody="no device computes {}",
    unit="FLOP/s",
)
