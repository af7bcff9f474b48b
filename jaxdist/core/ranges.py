"""A range: which numbers a setting may have."""

import math

from jaxdist.core.errors import BadInput


def check_range(
    key: str, value: float, *, least: float, below: float = math.inf
) -> None:
    """Refuse a number outside its range.

    Args:
        key: the setting, as it is typed.
        value: what it was given.
        least: the smallest number that works.
        below: the first number that does not.

    Raises:
        BadInput: with the number nearest to what was given, or the smallest.

    >>> check_range("model.dropout", 0.3, least=0, below=1)
    >>> check_range("model.width", 0, least=1)
    Traceback (most recent call last):
    jaxdist.core.errors.BadInput: model.width is out of range
      rule     model.width is at least 1
      values   model.width = 0
      remedy   model.width=1
    """
    if least <= value < below:
        return
    upper = "" if below == math.inf else f" and below {below:g}"
    raise BadInput(
        f"{key} is out of range",
        rule=f"{key} is at least {least:g}{upper}",
        values=f"{key} = {value}",
        remedy=f"{key}={least:g}",
    )
