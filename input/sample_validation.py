"""Checked source: every batch of a source of one's own is held against what was asked.

A source of one's own may leave out a row that it could not read, hand out lists, or
fill one buffer again and again. Here its samples become arrays of this package's own:
as many rows as ids, and keys, shapes and dtypes of its first sample.

Sample checks: what a batch may hold, looked at on the host before a device has it.

    integers   always: whole numbers that the batch's dtype can hold and that index what
               they are for: a label one of the classes, a token one of the vocabulary
    floats     data.check: all batches, or the first and every hundredth after it

jax raises no error for an index out of range: it reads the last row, or NaN.
"""

import math
import traceback
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, SourceFailedError
from jaxdist.input.array_record import ArrayRecordSource
from jaxdist.input.sources import (
    Arrays,
    ArraySource,
    DecodingSource,
    EpochVaryingSource,
    SampleIds,
    Slab,
    SlabSource,
    Source,
    TfdsSource,
    source_fingerprint,
)

_SHOWN_IDS: Final = 8
_PACKAGE: Final = __name__.partition(".")[0]


class CheckedSource:
    """The samples of a source, each batch held against the ids and the first sample.

    Args:
        source: any object with `len` and `get`.

    Raises:
        BadInput: it has no sample, or its first one cannot be read.
    """

    def __init__(self, source: Source) -> None:
        self._source, self.name = source, type(source).__name__
        try:
            count = len(source)
        except TypeError as error:
            raise self._error(str(error), "its length") from error
        if not count:
            raise self._error("it has no sample", "len(source) = 0")
        first = np.zeros(1, np.int64)
        try:
            found = source.get(first)
        except BadInput:
            raise
        except Exception as error:  # a source of one's own may raise anything
            said = f"{type(error).__name__}: {error}"
            raise self._error(said, "get(np.array([0]))") from error
        # Empty while the first sample is read, which is compared with none.
        self._first: Arrays = {}
        self._first = self._check(found, first)

    def __len__(self) -> int:
        return len(self._source)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...].

        Raises:
            BadInput: not one row for each id, or not as the first sample is.
            SourceFailedError: the source raised anything else.
        """
        return self._check(self._call(self._source.get, ids), ids)

    def _call(self, read: Callable[..., Any], ids: SampleIds, *args: Any) -> Any:
        """Read samples; what the source raises names it, its line and the ids."""
        try:
            return read(ids, *args)
        except BadInput:
            raise
        except Exception as error:  # a source of one's own may raise anything
            # The first frame outside of this package is in its author's file. Of that
            # file's lines the deepest counts: it called the library that failed.
            frames = [
                (frame, line)
                for frame, line in traceback.walk_tb(error.__traceback__)
                if frame.f_globals.get("__name__", "").partition(".")[0] != _PACKAGE
            ]
            own = frames[0][0].f_code.co_filename if frames else "no file"
            lines = [line for frame, line in frames if frame.f_code.co_filename == own]
            at = f"{own}:{lines[-1]}" if lines else own
            first, *_ = str(error).strip().splitlines() or [""]
            raise SourceFailedError(
                f"the source {self.name} failed while the run read it",
                rule="get(ids) returns the samples of every id below len(source), in "
                "any order and from several threads",
                values=f"{type(error).__name__}: {first}, at {at}; "
                f"{_describe_ids(ids)}",
                remedy=(
                    f"mend {at}",
                    "or leave out of len(source) what cannot be read; the same command "
                    "resumes from the newest checkpoint",
                ),
            ) from error

    @property
    def fingerprint(self) -> str:
        """That of the source.

        Raises:
            BadInput: it has none.
        """
        return source_fingerprint(self._source)

    def _check(self, found: Any, ids: SampleIds) -> Arrays:
        arrays = self._as_arrays(found, ids)
        if not arrays:
            raise self._error("it gave no array", _describe_ids(ids))
        if self._first and set(arrays) != set(self._first):
            raise self._error(
                "its keys are not those of its first sample",
                f"{', '.join(arrays)}; first {', '.join(self._first)}; "
                f"{_describe_ids(ids)}",
            )
        checked: dict[str, NDArray[Any]] = {}
        # In the order of the first sample, whatever a later dict has.
        for key in self._first or arrays:
            array = arrays[key]
            rows = array.shape[0] if array.ndim else None
            if rows != len(ids):
                raise self._error(
                    "it did not give one row for each id",
                    f"{key} is {list(array.shape)} for {len(ids)} ids: "
                    f"{_describe_ids(ids)}",
                )
            checked[key] = self._as_first(key, array, ids)
        return checked

    def _as_arrays(self, found: Any, ids: SampleIds) -> Arrays:
        """Make arrays of what a source gave: columns, or a list of samples."""
        columns: Any = found
        if hasattr(found, "to_pydict"):  # a table of Arrow
            columns = found.to_pydict()
        # A data frame, as of pandas.
        elif not isinstance(found, Mapping) and hasattr(found, "columns"):
            columns = {str(key): found[key] for key in found.columns}
        elif isinstance(found, list | tuple | np.ndarray):
            if not all(isinstance(row, Mapping) for row in found) or len(found) == 0:
                kinds = sorted({type(row).__name__ for row in found})
                raise self._error(
                    "it gave no arrays by key",
                    f"{type(found).__name__} of {', '.join(kinds) or 'nothing'}; "
                    f"{_describe_ids(ids)}",
                )
            keys = list(found[0])
            other = next((row for row in found if set(row) != set(keys)), None)
            if other is not None:
                raise self._error(
                    "its samples have different keys",
                    f"{', '.join(map(str, keys))}; {', '.join(map(str, other))}; "
                    f"{_describe_ids(ids)}",
                )
            columns = {key: [row[key] for row in found] for key in keys}
        elif not isinstance(found, Mapping):
            raise self._error(
                "it gave no arrays by key",
                f"{type(found).__name__}; {_describe_ids(ids)}",
            )
        arrays = {}
        for key, column in columns.items():
            try:
                arrays[str(key)] = np.asarray(column)
            except ValueError as error:  # lists of different lengths
                raise self._error(
                    f"its {key} is of different shapes",
                    f"{error}; {_describe_ids(ids)}",
                ) from error
        return arrays

    def _as_first(self, key: str, array: NDArray[Any], ids: SampleIds) -> NDArray[Any]:
        """Copy an array, in the dtype of the first sample."""
        first = self._first.get(key)
        if first is None:
            return np.array(array)
        if array.shape[1:] != first.shape[1:]:
            raise self._error(
                f"its {key} is of another shape than that of its first sample",
                f"{list(array.shape[1:])} a sample; first {list(first.shape[1:])}; "
                f"{_describe_ids(ids)}",
            )
        # Texts are as wide as the longest of a batch, so that their dtypes differ.
        if array.dtype == first.dtype or (array.dtype.kind == first.dtype.kind == "U"):
            # Always a copy: a source may fill the same buffer for its next batch, while
            # devices still read this one.
            return np.array(array)
        # Lists have the dtype that their numbers ask for, which differs by batch.
        if np.can_cast(array.dtype, first.dtype, "same_kind"):
            cast = array.astype(first.dtype)
            # Real numbers may be rounded. Whole ones must be the same afterwards.
            if first.dtype.kind in "fc" or np.array_equal(cast, array):
                return cast
        raise self._error(
            f"its {key} is of another dtype than that of its first sample",
            f"{array.dtype}; first {first.dtype}; {_describe_ids(ids)}",
        )

    def _error(self, what: str, values: str) -> BadInput:
        return BadInput(
            f"the source {self.name}: {what}",
            rule="get(ids) returns arrays [n, ...] by key, a row for each of the n ids "
            "in their order, with the keys, shapes and dtypes of the first sample",
            values=values,
            remedy='return {"image": images[ids], "label": labels[ids]}; a sample that '
            "cannot be read is left out of len(source)",
        )


class EpochVaryingCheckedSource(CheckedSource):
    """The same of a source whose samples differ between epochs."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        # Its samples may have other dtypes in training than in evaluation.
        self._varied = CheckedSource(_FirstEpoch(source, self.name))
        self._varied.name = self.name

    def vary(self, ids: SampleIds, epochs: SampleIds, seed: int) -> Arrays:
        """Read samples as they are in their epochs.

        Raises:
            BadInput: not one row for each id, or not as the first sample is.
            SourceFailedError: the source raised anything else.
        """
        assert isinstance(self._source, EpochVaryingSource)
        found = self._call(self._source.vary, ids, epochs, seed)
        return self._varied._check(found, ids)


class SlabCheckedSource(CheckedSource):
    """The same of a source of which parts of samples can be read."""

    _source: Any

    @property
    def template(self) -> Arrays:
        """The first sample: one array a key, [1, ...]."""
        return self._first

    def slab(self, slabs: Mapping[str, Slab]) -> Source:
        """Return the same samples with these parts of their arrays, and no others."""
        # Not by its constructor, which would read a whole first sample.
        made = copy(self)
        made._source = self._source.slab(slabs)
        made._first = {
            key: self._first[key][(slice(None), *slab)] for key, slab in slabs.items()
        }
        return made


class StoredSource:
    """What is kept of a source of one's own: its files, whose forms may differ.

    Args:
        source: what `stored` of a source returns.
        checked: that source, which names itself and its line where this one raises.
    """

    def __init__(self, source: Source, checked: CheckedSource) -> None:
        self._source, self._checked = source, checked

    def __len__(self) -> int:
        return len(self._source)

    def get(self, ids: SampleIds) -> Arrays:
        """Read what is kept of samples: int [n] to arrays [n, ...].

        Raises:
            SourceFailedError: the source raised.
        """
        arrays: Arrays = self._checked._call(self._source.get, ids)
        return arrays

    @property
    def fingerprint(self) -> str:
        """That of the source."""
        return source_fingerprint(self._source)


class DecodingCheckedSource(CheckedSource):
    """The same of a source that is kept in another form than its samples."""

    _source: Any

    @property
    def stored(self) -> Source:
        """What is kept."""
        return StoredSource(self._source.stored, self)

    def over(self, stored: Source) -> Source:
        """Return the same samples, made of what another source stores."""
        return self._like(self._source.over(stored))

    def _like(self, source: Source) -> Source:
        # Not by its constructor, which reads a sample: a host may not have the first.
        made = copy(self)
        made._source = source
        return made


class EpochVaryingDecodingCheckedSource(
    EpochVaryingCheckedSource, DecodingCheckedSource
):
    """The same of a source that does both."""


class _FirstEpoch:
    """The samples of a source that varies, as they are in the first epoch."""

    def __init__(self, source: Any, fingerprint: str) -> None:
        self._source, self.fingerprint = source, fingerprint

    def __len__(self) -> int:
        return len(self._source)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...]."""
        arrays: Arrays = self._source.vary(ids, np.zeros_like(ids), 0)
        return arrays


def check_source(source: Source) -> Source:
    """Return a source whose batches are held against what was asked of it.

    Those of this package are, as they are.

    Args:
        source: any object with `len` and `get`.

    Raises:
        BadInput: it has no sample, or its first one cannot be read.
    """
    is_own = type(source).__module__.partition(".")[0] == _PACKAGE
    # These two hand out what a function of one's own has decoded.
    is_own &= not isinstance(source, ArrayRecordSource | TfdsSource)
    if is_own:
        return source
    varies, decodes = (
        isinstance(source, kind) for kind in (EpochVaryingSource, DecodingSource)
    )
    if decodes and varies:
        return EpochVaryingDecodingCheckedSource(source)
    if decodes:
        return DecodingCheckedSource(source)
    if varies:
        return EpochVaryingCheckedSource(source)
    # A class that changes what `get` of arrays in memory returns inherits their `slab`,
    # which knows nothing of that.
    inherits = isinstance(source, ArraySource) and type(source).slab is ArraySource.slab
    if isinstance(source, SlabSource) and not inherits:
        return SlabCheckedSource(source)
    return CheckedSource(source)


def _describe_ids(ids: SampleIds) -> str:
    shown = ", ".join(map(str, ids[:_SHOWN_IDS].tolist()))
    return f"ids {shown}{', ...' if len(ids) > _SHOWN_IDS else ''}"


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
    ignore_values: Mapping[str, float] = field(default_factory=dict)
    """One more number that those of a key may be, which counts for nothing; NaN of
    floats."""
    sample_name: Callable[[str, int], str] | None = None
    """Says in which file a key of a sample is."""

    def of(self, source: Source) -> "SampleSpec":
        """Return the same with the names that a source has for its samples."""
        return replace(self, sample_name=getattr(source, "sample_name", None))

    def describe(self, key: str, sample: int) -> str:
        """Name a sample, and the file of a key of it where that is known."""
        if self.sample_name is None:
            return f"sample {sample}"
        return f"sample {sample}, {self.sample_name(key, sample)}"

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
        takes_nan = math.isnan(checks.ignore_values.get(key, 0))
        wrong = np.isinf(cast) if takes_nan else ~np.isfinite(cast)
        if not wrong.any():
            return cast
        row, value = _first(cast, wrong)
        raise BadInput(
            f"sample {_id(ids, row)} is not finite",
            rule="every number of a sample is finite (data.check)",
            values=f"{key} of {checks.describe(key, _id(ids, row))} holds {value}",
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
                values=f"{key} = {value} in {checks.describe(key, _id(ids, row))}",
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
        values=f"{key} = {value} in {checks.describe(key, _id(ids, row))}",
        remedy=f"mend the sample, or train a network that knows {int(value) + 1} values"
        if bound is not None and value > high
        else "mend the sample",
    )


def _first(array: NDArray[Any], wrong: NDArray[np.bool_]) -> tuple[int, Any]:
    """Return the row of the first element that is wrong, and the element."""
    place = tuple(int(i[0]) for i in np.nonzero(wrong))
    return (place[0] if place else 0), array[place].item()


def _id(ids: SampleIds, row: int) -> int:
    return int(ids[row]) if row < len(ids) else row
