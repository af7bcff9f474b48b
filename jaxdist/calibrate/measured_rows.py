"""Measured rows: one measurement each, with the function that predicts it."""

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
"""Terms of a prediction, which is their sum."""

ROW_NUMBER_COLUMNS: Final = frozenset({"row"})
"""Columns that number rows, and so differ between files of the same rows."""


@dataclass(frozen=True, kw_only=True)
class FreeConstant:
    """A free constant of a prediction model, with its physical bounds."""

    name: str
    """Name, as `--constants` takes it."""
    unit: str
    """SI unit, or 1."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    initial: float
    """Value before any fit."""
    provenance: str
    """Origin of `initial`: datasheet, measured, given or assumed, with a word on it."""
    description: str = ""
    """What the constant is, in a line."""
    device: str = ""
    """Kind of device that it is of; empty: of all."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """One measurement and its prediction as a function of the free constants."""

    label: str
    """Short name for reports: `hidden 1024, tensor 8, pipe 2`."""
    devices: int
    """Number of devices."""
    columns: Mapping[str, str]
    """All cells of the row, by the names that `--train` compares."""
    measured: float
    """Measured value in `unit`."""
    predict: Callable[[ConstantValues], float]
    """Prediction in `unit`, from the values of all constants of the format."""
    ideal: float
    """Value if all devices worked at their peak: the baseline predicts ideal / u."""
    unit: str = "s"
    """Unit of `measured`."""
    quantity: str = "time"
    """Measured quantity; each has a baseline of its own."""
    group: str = ""
    """Rows of one group are summarized together in a score."""
    key_columns: tuple[str, ...] = ()
    """Columns that identify the row in any file; by default all."""
    ranking_group: str = ""
    """Rows of one group are ranked against each other; empty for none."""
    spread: float | None = None
    """Largest / smallest measurement - 1, where the file says it."""
    predict_terms: Callable[[ConstantValues], TermValues] | None = None
    """Prediction by term, where the model has terms."""
    network_columns: tuple[str, ...] = ("model",)
    """Columns that tell networks apart; those that a file does not have are one."""

    @property
    def network(self) -> str:
        """Name of the network: the cells of its columns."""
        return " ".join(self.columns.get(name, "") for name in self.network_columns)

    @property
    def key(self) -> str:
        """Hash that identifies the measurement, the same in any file and order."""
        identity: dict[str, str] = {}
        for name, value in self.columns.items():
            if name in ROW_NUMBER_COLUMNS or name not in (self.key_columns or (name,)):
                continue
            # 16, 16.0 and 1.6e1 are one value: files are written by many programs.
            try:
                identity[name] = repr(float(value))
            except ValueError:
                identity[name] = value.strip()
        # Sorted, since files have their columns in any order.
        text = json.dumps(sorted(identity.items()), ensure_ascii=False)
        # 64 bits: no two of some thousand rows meet by chance.
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class RowFormat(Protocol):
    """A format of CSV files, with the model that predicts its rows."""

    @property
    def name(self) -> str:
        """Name, as `--format` takes it."""

    @property
    def cluster(self) -> str:
        """Name of the cluster of the rows, unless another is given."""

    @property
    def constants(self) -> tuple[FreeConstant, ...]:
        """Free constants; the first three of a kind of device are fitted by default."""

    def matches(self, header: Sequence[str]) -> bool:
        """Return whether a file with this header has the format."""

    def read(self, path: Path, cluster: Cluster) -> list[MeasuredRow]:
        """Read the rows of a file.

        Raises:
            BadInput: a row is invalid; names its line.
        """


def initial_values(constants: Sequence[FreeConstant]) -> dict[str, float]:
    """Return the values of constants before anything is fitted."""
    return {constant.name: constant.initial for constant in constants}
