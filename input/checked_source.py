"""Checked source: every batch of a source of one's own is held against what was asked.

A source of one's own may leave out a row that it could not read, hand out lists, or
fill one buffer again and again. Here its samples become arrays of this package's own:
as many rows as ids, and keys, shapes and dtypes of its first sample.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.array_record import ArrayRecordSource
from jaxdist.input.sources import (
    Arrays,
    DecodingSource,
    EpochVaryingSource,
    SampleIds,
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
        self._first: Arrays = {}
        self._first = self._check(found, first)

    def __len__(self) -> int:
        return len(self._source)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...].

        Raises:
            BadInput: not one row for each id, or not as the first sample is.
        """
        return self._check(self._source.get(ids), ids)

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
        if array.dtype == first.dtype or (array.dtype.kind == first.dtype.kind == "U"):
            # Always a copy: a source may fill the same buffer for its next batch, while
            # devices still read this one.
            return np.array(array)
        # Lists have the dtype that their numbers ask for, which differs by batch.
        if np.can_cast(array.dtype, first.dtype, "same_kind"):
            cast = array.astype(first.dtype)
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
        """Read samples as they are in their epochs."""
        assert isinstance(self._source, EpochVaryingSource)
        return self._varied._check(self._source.vary(ids, epochs, seed), ids)


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
    # What is kept of such a source are its files, and not its samples.
    if is_own or isinstance(source, DecodingSource):
        return source
    kind = (
        EpochVaryingCheckedSource
        if isinstance(source, EpochVaryingSource)
        else CheckedSource
    )
    return kind(source)


def _describe_ids(ids: SampleIds) -> str:
    shown = ", ".join(map(str, ids[:_SHOWN_IDS].tolist()))
    return f"ids {shown}{', ...' if len(ids) > _SHOWN_IDS else ''}"
