"""Loops in platform files: `gpu{n}.{g}` for each n and g, with arithmetic."""

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jaxdist.core.errors import BadInput

_MAX_ITERATIONS: Final = 1 << 20
_OPERATIONS: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "__add__",
    ast.Sub: "__sub__",
    ast.Mult: "__mul__",
    ast.FloorDiv: "__floordiv__",
    ast.Mod: "__mod__",
    ast.BitXor: "__xor__",
}


def loop_iterations(loops: object, where: str) -> Iterator[dict[str, int]]:
    """Yield the numbers of each iteration; the first name changes slowest.

    Args:
        loops: from names to a count N, for 0 to N-1, or to a list of numbers; None is
            one iteration without names.
        where: what is repeated, for errors.

    Raises:
        BadInput: something else, or above a million iterations.

    >>> list(loop_iterations({"n": 2, "g": [0, 3]}, "cables"))[1]
    {'n': 0, 'g': 3}
    """
    table = {} if loops is None else loops
    if not isinstance(table, dict):
        raise _loop_error(table, where)
    names, each = list(table), [_numbers(v, where) for v in table.values()]
    # Counted before anything is made: a slip of the pen may ask for billions.
    total = 1
    for numbers in each:
        total *= len(numbers)
    if total > _MAX_ITERATIONS:
        raise BadInput(
            f"{where}: {total:,} of them are more than a platform has",
            rule=f"at most {_MAX_ITERATIONS:,}",
            values=f"for: {table}",
            remedy="smaller counts",
        )
    for values in itertools.product(*each):
        yield dict(zip(names, values))


def fill_template(text: str, numbers: Mapping[str, int]) -> str:
    """Fill numbers into a name.

    Args:
        text: with expressions of whole numbers in braces: + - * // % ^ and brackets.
        numbers: by the names that may stand in them.

    Raises:
        BadInput: something else is in the braces.

    >>> fill_template("leaf{2 * (n // 9) + s}", {"n": 20, "s": 1})
    'leaf5'
    """

    def value(found: re.Match[str]) -> str:
        try:
            tree = ast.parse(found[1].strip(), mode="eval")
            return str(_evaluate(tree.body, numbers))
        except (SyntaxError, ValueError, ZeroDivisionError) as error:
            raise BadInput(
                f"{found[0]} in {text} is no number",
                rule="whole numbers, the names of `for`, + - * // % ^ and brackets",
                values=f"{error or 'cannot be read'}; names: {', '.join(numbers)}",
                remedy="{2 * (n // 9) + s}",
            ) from None

    return re.sub(r"\{([^{}]*)\}", value, text)


# Not `eval`: a platform file may come from anyone.
def _evaluate(node: ast.AST, numbers: Mapping[str, int]) -> int:
    match node:
        # `True` is an int in Python, but no number here.
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in numbers:
            return numbers[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            one, other = _evaluate(left, numbers), _evaluate(right, numbers)
            return int(getattr(one, _OPERATIONS[type(op)])(other))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, numbers)
    raise ValueError(f"{ast.unparse(node)} is not known")


def _numbers(value: Any, where: str) -> list[int]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and 0 < value <= _MAX_ITERATIONS:
        return list(range(value))
    if isinstance(value, list) and value and all(type(v) is int for v in value):
        return value
    raise _loop_error(value, where)


def _loop_error(value: object, where: str) -> BadInput:
    return BadInput(
        f"{where}: {value!r} does not say how often",
        rule="`for` gives each name a count above 0, or a list of whole numbers",
        values=f"for: {value!r}",
        remedy="for: {n: 64, g: 4}",
    )
