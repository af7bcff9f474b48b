"""Row filters: comparisons of columns joined by `and`, which select measured rows.

`devices<=8 and strategy == data`, `row % 3 == 0`, `model in (vgg16, resnet50)`.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.calibrate.measured_rows import MeasuredRow
from jaxdist.calibrate.table import normalize_name
from jaxdist.core.errors import BadInput, did_you_mean

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"[^"]*"|'[^']*'|`[^`]*`)
          |(?P<sign><=|>=|==|!=|<|>|=|%|\(|\)|\[|\]|,)
          |(?P<word>[^\s<>=!%()\[\],"'`]+))""",
    re.VERBOSE,
)
_ORDER_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# `=` is read as `==`: nothing is assigned here.
_OPERATORS: Final = ("==", "!=", *_ORDER_OPERATORS, "in")


@dataclass(frozen=True)
class Comparison:
    """A comparison of a column, or of its remainder, with values."""

    column: str
    """Name of the column as it was written."""
    modulo: int | None
    """Divisor, where a remainder is compared."""
    operator: str
    """One of ==, !=, <, <=, >, >=, in."""
    values: tuple[str, ...]
    """Values to compare with; several with `in`."""

    def matches(self, row: MeasuredRow) -> bool:
        """Return whether the comparison holds for a row.

        Raises:
            BadInput: the row has no such column, or words are compared by size.
        """
        value = _column_value(row.columns, self.column)
        ordered = self.operator in _ORDER_OPERATORS
        try:
            if self.modulo is not None:
                # As text again, so that the comparisons below take it like any cell.
                value = repr(float(value) % self.modulo)
            if ordered:
                compare = _ORDER_OPERATORS[self.operator]
                return compare(float(value), float(self.values[0]))
        except ValueError:
            word = value if _as_number(value) is None else self.values[0]
            raise BadInput(
                f"{word} is no number",
                rule=f"% and {', '.join(_ORDER_OPERATORS)} compare numbers; == and in "
                "also words",
                values=f"{self.column} {self.operator} {', '.join(self.values)}",
                remedy=f"{self.column} == {word}",
            ) from None
        # Numbers are equal however they are written; words only to the letter.
        number = _as_number(value)
        equal = any(
            value == other or (number is not None and number == _as_number(other))
            for other in self.values
        )
        return equal != (self.operator == "!=")


@dataclass(frozen=True)
class RowFilter:
    """A filter that selects rows for which all comparisons hold."""

    text: str
    """The filter as it was typed."""
    comparisons: tuple[Comparison, ...]

    def select(self, rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
        """Return the rows that pass the filter.

        Raises:
            BadInput: no row passes, or a row lacks a column.
        """
        found = [row for row in rows if all(c.matches(row) for c in self.comparisons)]
        if found:
            return found
        ranges = []
        for column in (comparison.column for comparison in self.comparisons):
            values = {_column_value(row.columns, column) for row in rows}
            # Numbers by size, then words by letter.
            numbers = {value: _as_number(value) for value in values}
            known = sorted(
                values,
                key=lambda v: (math.inf, v) if numbers[v] is None else (numbers[v], ""),
            )
            shown = ", ".join(known[:12]) + ", ..." * (len(known) > 12)
            ranges.append(f"{column} is {shown}")
        raise BadInput(
            f"{self.text} selects none of {len(rows)} rows",
            rule="a selection has at least one row",
            values="; ".join(ranges),
            remedy="values that the file has",
        )


def parse_row_filter(text: str) -> RowFilter:
    """Parse a row filter.

    Args:
        text: `COLUMN SIGN VALUE`, several joined by `and`; signs are ==, !=, <, <=, >,
            >=, and `in (A, B)`; `COLUMN % N` is a remainder.

    Raises:
        BadInput: a syntax error.

    >>> rows = parse_row_filter("devices<=8 and strategy in (data, spatial)")
    >>> rows.comparisons[1].values
    ('data', 'spatial')
    """
    parts: list[list[str]] = [[]]
    position = 0
    while text[position:].strip():
        token = _TOKEN.match(text, position)
        if token is None:
            raise _syntax_error(text, f"at {text[position:].strip()}")
        position = token.end()
        word = token[0].strip()
        if word.lower() == "and":
            parts.append([])
        else:
            parts[-1].append(word)

    comparisons = []
    for words in parts:
        # The remainder is tried first: `a % 3 == 0` would match the plain form as well.
        match words:
            case [column, "%", number, sign, *rest] if number.isdigit() and int(number):
                modulo: int | None = int(number)
            case [column, sign, *rest]:
                modulo = None
            case _:
                raise _syntax_error(text, " ".join(words) or "nothing beside and")
        sign = {"=": "=="}.get(sign, sign.lower())
        values = [word for word in rest if word not in "()[],"]
        if sign not in _OPERATORS or not values or (len(values) > 1 and sign != "in"):
            raise _syntax_error(text, " ".join(words))
        # Quotes are for names and values with spaces or signs in them.
        column, *values = (
            word[1:-1] if word[0] in "\"'`" else word for word in (column, *values)
        )
        comparisons.append(Comparison(column, modulo, sign, tuple(values)))
    return RowFilter(text, tuple(comparisons))


def _column_value(columns: Mapping[str, str], name: str) -> str:
    # As the file has it, or as one word: both `# GPUs` and gpus.
    for known in (name, normalize_name(name)):
        if known in columns:
            return columns[known]
    near = did_you_mean(normalize_name(name), columns)
    raise BadInput(
        f"rows have no column {name}",
        rule=f"columns are {', '.join(columns)}",
        remedy=f"did you mean {near}?" if near else "one of these columns",
    )


def _syntax_error(text: str, at: str) -> BadInput:
    return BadInput(
        f"cannot read {at}",
        rule="a selection is COLUMN SIGN VALUE, joined by and; signs are "
        + ", ".join(_OPERATORS),
        values=text or "nothing",
        remedy="'devices<=8 and model in (a, b)'",
    )


def _as_number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None
