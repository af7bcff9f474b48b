"""Sample checks: what a batch may hold, looked at on the host before a device has it.

    integers   always: whole numbers that the batch's dtype can hold and that index what
               they are for: a label one of the classes, a token one of the vocabulary
    floats     data.check: all batches, or the first and every hundredth after it

jax raises no error for an index out of range: it reads the last row, or NaN.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.sources import SampleIds

CHECK_INTERVAL: Final = 100
"""Steps from one batch whose floats are looked at to the next, for data.check=first."""


@dataclass(frozen=True, kw_only=True)
class SampleSpec:
    """What is read of a sample, and what it may hold."""

    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Keys that are read, each with its dtype in a batch."""
    floats: Literal["first", "all", "off"] = "off"
    """Which batches must be finite."""
    start: int = 0
    """Step of the first batch; another first batch is looked at as well."""
    upper_bounds: Mapping[str, int] = field(default_factory=dict)
    """Integers of a key are from 0 to below this."""
    ignore_values: Mapping[str, int] = field(default_factory=dict)
    """One more number that integers of a key may be, which counts for nothing."""

    def checks_floats(self, step: int) -> bool:
        """Whether floats of this step's batch are looked at.

        >>> [step for step in range(250) if SampleSpec(floats="first", start=7)
        ...     .checks_floats(step)]
        [7, 107, 207]
        """
        every = {"all": 1, "first": CHECK_INTERVAL}.get(self.floats)
        return every is not None and (step - self.start) % every == 0


def cast_checked(
    key: str,
    array: Any,
    dtype: str,
    ids: SampleIds,
    checks: SampleSpec,
    check_floats: bool,
) -> NDArray[Any]:
    """Return samples of a key in the dtype of a batch.

    Args:
        key: their key.
        array: what the source gave, [n, ...].
        dtype: that of a batch.
        ids: ids of the samples, [n].
        checks: what they may be.
        check_floats: whether floats must be finite.

    Raises:
        BadInput: a number that is not finite, that the dtype cannot hold, or out of the
            range of what it indexes; with the id of the sample.
    """
    given = np.asarray(array)
    if np.issubdtype(np.dtype(dtype), np.integer):
        check_integers(key, given, dtype, ids, checks)
        return np.asarray(given, dtype)
    # What overflows becomes infinite, and is seen as such.
    with np.errstate(over="ignore", invalid="ignore"):
        cast = np.asarray(given, dtype)
    if check_floats and not np.isfinite(cast).all():
        row, value = _first(cast, ~np.isfinite(cast))
        raise BadInput(
            f"sample {_id(ids, row)} is not finite",
            rule="every number of a sample is finite (data.check)",
            values=f"{key} of sample {_id(ids, row)} holds {value}",
            remedy=("mend or leave out the sample", "data.check=off reads it as it is"),
        )
    return cast


def check_integers(
    key: str, array: NDArray[Any], dtype: str, ids: SampleIds, checks: SampleSpec
) -> None:
    """Refuse integers that are no index of what they are for.

    Args:
        key: key of a sample.
        array: its numbers, [n, ...].
        dtype: integers of a batch.
        ids: ids of the samples, [n].
        checks: what they may be.

    Raises:
        BadInput: with the id of the first sample, and its number.
    """
    if array.dtype == np.bool_ or array.dtype.kind not in "iuf" or not array.size:
        return
    if array.dtype.kind == "f":
        wrong = ~(np.isfinite(array) & (array == np.floor(array)))
        if wrong.any():
            row, value = _first(array, wrong)
            raise BadInput(
                f"{key} of sample {_id(ids, row)} is no whole number",
                rule=f"{key} is {dtype}",
                values=f"{key} = {value}",
                remedy=f"{key} as whole numbers",
            )
    bound, ignored = checks.upper_bounds.get(key), checks.ignore_values.get(key)
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max) if bound is None else (0, bound - 1)
    # Two passes over few numbers; the mask is made only where something is wrong.
    if low <= array.min() and array.max() <= high:
        return
    wrong = (array < low) | (array > high)
    if ignored is not None:
        wrong &= array != ignored
    if not wrong.any():
        return
    row, value = _first(array, wrong)
    mask = f", or {ignored} for what does not count" if ignored is not None else ""
    raise BadInput(
        f"{key} of sample {_id(ids, row)} is out of range",
        rule=f"{key} is from {low} to {high}{mask}",
        values=f"{key} = {value} in sample {_id(ids, row)}",
        remedy=f"mend the sample, or a network for {int(value) + 1} of them"
        if bound is not None and value > high
        else "mend the sample",
    )


def _first(array: NDArray[Any], wrong: NDArray[np.bool_]) -> tuple[int, Any]:
    """Return the row of the first element that is wrong, and the element."""
    place = tuple(int(i[0]) for i in np.nonzero(wrong))
    return (place[0] if place else 0), array[place].item()


def _id(ids: SampleIds, row: int) -> int:
    return int(ids[row]) if row < len(ids) else row
