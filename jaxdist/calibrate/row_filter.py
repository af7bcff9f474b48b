"""Selections: which rows are meant, as comparisons of columns joined by `and`.

`devices<=8 and strategy == data`, `row % 3 == 0`, `model in (vgg16, resnet50)`.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_OPERATORS: Final = ("==", "!=", *_ORDER_OPERATORS, "in")


@dataclass(frozen=True)
class Comparison:
    """One comparison: a column, perhaps its remainder, a sign and values."""

    column: str
    """As it was written."""
    modulo: int | None
    """Of the column's value, where a remainder is compared."""
    operator: str
    """One of ==, !=, <, <=, >, >=, in."""
    values: tuple[str, ...]
    """To compare with; several with `in`."""

    def matches(self, row: MeasuredRow) -> bool:
        """Tell whether it holds for a row.

        Raises:
            BadInput: the row has no such column, or sizes of words are compared.
        """
        value = _column_value(row.columns, self.column)
        if self.modulo is not None:
            value = repr(self._number(value) % self.modulo)
        if self.operator in _ORDER_OPERATORS:
            return _ORDER_OPERATORS[self.operator](
                self._number(value), self._number(self.values[0])
            )
        return any(_is_equal(value, other) for other in self.values) != (
            self.operator == "!="
        )

    def _number(self, value: str) -> float:
        try:
            return float(value)
        except ValueError:
            raise BadInput(
                f"{value} is no number",
                rule=f"% and {', '.join(_ORDER_OPERATORS)} compare numbers; == and in "
                "also words",
                values=f"{self.column} {self.operator} {', '.join(self.values)}",
                remedy=f"{self.column} == {value}",
            ) from None


@dataclass(frozen=True)
class RowFilter:
    """Rows for which all comparisons hold."""

    text: str
    """As it was typed."""
    comparisons: tuple[Comparison, ...]

    def select(self, rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
        """Return the rows that are meant.

        Raises:
            BadInput: none is, or a row lacks a column.
        """
        found = [row for row in rows if all(c.matches(row) for c in self.comparisons)]
        if not found:
            raise BadInput(
                f"{self.text} selects none of {len(rows)} rows",
                rule="a selection has at least one row",
                values="; ".join(
                    _describe_column(rows, c.column) for c in self.comparisons
                ),
                remedy="values that the file has",
            )
        return found


def parse_row_filter(text: str) -> RowFilter:
    """Read a selection.

    Args:
        text: `COLUMN SIGN VALUE`, several joined by `and`; signs are ==, !=, <, <=, >,
            >=, and `in (A, B)`; `COLUMN % N` is a remainder.

    Raises:
        BadInput: it says something else.

    >>> rows = parse_row_filter("devices<=8 and strategy in (data, spatial)")
    >>> rows.comparisons[1].values
    ('data', 'spatial')
    """
    words = list(_tokenize(text))
    parts: list[list[str]] = [[]]
    for word in words:
        if word.lower() == "and":
            parts.append([])
        else:
            parts[-1].append(word)
    return RowFilter(text, tuple(_parse_comparison(part, text) for part in parts))


def _tokenize(text: str) -> Iterator[str]:
    position = 0
    while text[position:].strip():
        found = _TOKEN.match(text, position)
        if found is None:
            raise _syntax_error(text, f"at {text[position:].strip()}")
        yield found[0].strip()
        position = found.end()


def _parse_comparison(words: Sequence[str], text: str) -> Comparison:
    match list(words):
        case [column, "%", number, sign, *rest] if number.isdigit() and int(number):
            modulo: int | None = int(number)
        case [column, sign, *rest]:
            modulo = None
        case _:
            raise _syntax_error(text, " ".join(words) or "nothing beside and")
    sign = {"=": "=="}.get(sign, sign.lower())
    values = tuple(_unquote(word) for word in rest if word not in "()[],")
    if sign not in _OPERATORS or not values or (len(values) > 1 and sign != "in"):
        raise _syntax_error(text, " ".join(words))
    return Comparison(_unquote(column), modulo, sign, values)


def _unquote(word: str) -> str:
    return word[1:-1] if word[0] in "\"'`" else word


def _column_value(columns: Mapping[str, str], name: str) -> str:
    for known in (name, normalize_name(name)):
        if known in columns:
            return columns[known]
    near = did_you_mean(normalize_name(name), columns)
    raise BadInput(
        f"rows have no column {name}",
        rule=f"columns are {', '.join(columns)}",
        remedy=f"did you mean {near}?" if near else "one of these columns",
    )


def _is_equal(value: str, other: str) -> bool:
    try:
        return float(value) == float(other)
    except ValueError:
        return value == other


def _describe_column(rows: Sequence[MeasuredRow], column: str) -> str:
    values = sorted({_column_value(row.columns, column) for row in rows}, key=_sort_key)
    shown = ", ".join(values[:12]) + ", ..." * (len(values) > 12)
    return f"{column} is {shown}"


def _sort_key(value: str) -> tuple[float, str]:
    try:
        return float(value), ""
    except ValueError:
        return float("inf"), value


def _syntax_error(text: str, at: str) -> BadInput:
    return BadInput(
        f"cannot read {at}",
        rule="a selection is COLUMN SIGN VALUE, joined by and; signs are "
        + ", ".join(_OPERATORS),
        values=text or "nothing",
        remedy="'devices<=8 and model in (a, b)'",
    )
