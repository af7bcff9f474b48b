"""Measured rows: what somebody measured, beside the function that predicts it."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from jaxdist.core.cluster import Cluster

ConstantValues = Mapping[str, float]
"""Values of free constants by name."""
TermValues = Mapping[str, float]
"""A prediction by term; the terms add up to it."""

ROW_NUMBER_COLUMNS: Final = frozenset({"row"})
"""Columns that number rows and say nothing of what was measured."""


@dataclass(frozen=True, kw_only=True)
class FreeConstant:
    """One free number of a model, with the bounds that physics gives it."""

    name: str
    """As `--constants` takes it."""
    unit: str
    """Of SI, or 1."""
    low: float
    """Least value that can be."""
    high: float
    """Largest value that can be."""
    initial: float
    """Value where nothing was fitted."""
    provenance: str
    """Where `initial` is from: datasheet, measured or given, with a word on it."""
    description: str = ""
    """What it is, in a line."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """One thing that was measured once, and its prediction as a function."""

    label: str
    """What a person calls it: `hidden 1024, tensor 8, pipe 2`."""
    devices: int
    """That took part."""
    columns: Mapping[str, str]
    """All that the file says of it, by the names that `--train` compares."""
    measured: float
    """In `unit`."""
    predict: Callable[[ConstantValues], float]
    """From the values of all constants of the format; in `unit`."""
    ideal: float
    """What it took if all devices worked at their peak: a baseline is ideal / u."""
    unit: str = "s"
    """Of `measured`."""
    quantity: str = "time"
    """What was measured; each has a baseline of its own."""
    group: str = ""
    """Rows that are summed up together in a score."""
    key_columns: tuple[str, ...] = ()
    """Columns that tell it from other rows, also with others beside them; all of them
    where none is named."""
    ranking_group: str = ""
    """Rows that are ranked against each other; nothing where they are not."""
    spread: float | None = None
    """Largest / smallest measurement - 1, where the file says it."""
    predict_terms: Callable[[ConstantValues], TermValues] | None = None
    """The prediction by term, where the model has terms."""

    @property
    def key(self) -> str:
        """Return a digest of what was measured, the same in any file and order."""
        told = {
            name: _normalize_value(value)
            for name, value in self.columns.items()
            if (name in self.key_columns or not self.key_columns)
            and name not in ROW_NUMBER_COLUMNS
        }
        text = json.dumps(sorted(told.items()), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class RowFormat(Protocol):
    """A form of CSV files, with the model that predicts its rows."""

    @property
    def name(self) -> str:
        """As `--format` takes it."""

    @property
    def cluster(self) -> str:
        """Name of the cluster that rows are from unless another is given."""

    @property
    def constants(self) -> tuple[FreeConstant, ...]:
        """Free constants; the first three are fitted unless others are named."""

    def matches(self, header: Sequence[str]) -> bool:
        """Tell whether a header is that of this form."""

    def read(self, path: Path, cluster: Cluster) -> list[MeasuredRow]:
        """Return the rows of a file.

        Raises:
            BadInput: the file says something that cannot be, with its line.
        """


def initial_values(constants: Sequence[FreeConstant]) -> dict[str, float]:
    """Return the values of constants before anything is fitted."""
    return {constant.name: constant.initial for constant in constants}


def _normalize_value(value: str) -> str:
    """Write a number in one way: 16, 16.0 and 1.6e1 are one value."""
    try:
        return repr(float(value))
    except ValueError:
        return value.strip()
