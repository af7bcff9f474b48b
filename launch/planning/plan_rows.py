"""Tables of plans: a CSV file with one plan a row, and what was measured of it.

    tensor,data,pipe,microbatch,cuts,seconds
    2,4,2,4,,1.92
    1,8,2,2,block5,oom

Columns may have the names that people give them (`tp`, `dp`, `pp`, `micro batch`); one
whose name is a key of the configuration, such as `plan.remat`, sets it for its row.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jaxdist.calibrate.table import normalize_name, positive_int, read_csv
from jaxdist.core.errors import BadInput, did_you_mean

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "tensor": ("tp", "t", "tmp", "mp", "model_parallel", "tensor_parallel"),
    "data": ("dp", "d", "data_parallel"),
    "pipe": ("pp", "p", "pipeline", "stages", "pipeline_parallel"),
    "microbatch": ("mbs", "micro_batch", "micro_batch_size", "microbatch_size"),
    "cuts": ("partition", "split", "stage_cuts"),
    "status": ("result", "outcome"),
    "seconds": ("measured", "time", "step", "step_time", "iteration_time"),
    "milliseconds": (),
}
"""Columns, with other names for each."""
_UNITS: Final = {"s": "seconds", "sec": "seconds", "ms": "milliseconds"}
_AXES: Final = ("tensor", "data", "pipe")
_GOOD_WORDS: Final = ("", "ok", "done", "success", "succeeded", "true", "yes", "1")
"""What a status says of a plan that ran."""


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """A row of a table of plans."""

    number: int
    """Place in the file, from 1."""
    mesh: Mapping[str, int]
    """Devices along tensor, data and pipe."""
    microbatch: int | None
    """Samples of a microbatch of one replica; None leaves it to the experiment."""
    cuts: tuple[str, ...]
    """Blocks that stages begin with, or numbers of blocks in front of each cut."""
    settings: Mapping[str, str]
    """Keys of the configuration of this row alone."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Other columns."""
    measured_s: float | None = None
    """Seconds of a step; None where it was not measured."""
    failed: bool = False
    """Whether the plan was tried, and could not be run."""

    @property
    def title(self) -> str:
        """The row in few words."""
        words = [f"{axis} {size}" for axis, size in self.mesh.items()]
        if self.microbatch is not None:
            words.append(f"microbatch {self.microbatch}")
        if self.cuts:
            words.append(f"cuts {' '.join(self.cuts)}")
        words += [f"{key}={value}" for key, value in self.settings.items()]
        return ", ".join(words)

    def overrides(self, batch: int, shards: int) -> tuple[str, ...]:
        """Return the settings of the row, microbatches left out where it has none.

        Args:
            batch: samples of a step.
            shards: replicas that they are divided over.

        Raises:
            BadInput: replicas and microbatches do not divide the batch.
        """
        if self.microbatch is None:
            return self.layout
        share = shards * self.microbatch
        if batch % share:
            raise BadInput(
                f"a batch of {batch} does not divide",
                rule="replicas x samples of a microbatch divide the batch",
                values=f"{shards} x {self.microbatch} = {share}",
                remedy=f"data.batch={share * max(1, round(batch / share))}",
            )
        return (*self.layout, f"optim.accumulate={batch // share}")

    @property
    def layout(self) -> tuple[str, ...]:
        """Settings of the row without cuts and microbatches."""
        axes = (f"plan.mesh.{axis}={size}" for axis, size in self.mesh.items())
        return (*axes, *(f"{key}={value}" for key, value in self.settings.items()))

    def cut_blocks(self, blocks: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the blocks that stages begin with, but the first.

        Args:
            blocks: all of the network's, in order.

        Raises:
            BadInput: a number without a block.
        """
        found = []
        for word in self.cuts:
            if not word.isdecimal():
                found.append(word)
            elif not 0 <= int(word) <= len(blocks):
                raise BadInput(
                    f"no block {word} to cut in front of",
                    rule="a number of cuts is how many blocks are in front of it",
                    values=f"{len(blocks)} blocks: {blocks[0]} to {blocks[-1]}",
                    remedy=f"numbers from 1 to {len(blocks) - 1}, or names of blocks",
                )
            # Lists of boundaries begin with 0 and end with all: neither is a cut.
            elif 0 < int(word) < len(blocks):
                found.append(blocks[int(word)])
        return tuple(found)


def read_plan_rows(path: Path) -> tuple[PlanRow, ...]:
    """Read a table of plans.

    Args:
        path: CSV with at least one column of tensor, data and pipe; others are 1.

    Raises:
        BadInput: no such file, no such column, or a cell that is no number.
    """
    header, rows = read_csv(path)
    columns: dict[str, str] = {}
    for column in header:
        if (known := _column_name(column)) is None:
            continue
        if known in columns:
            raise BadInput(
                f"{path} has two columns for {known}",
                rule="a table of plans has one column of each kind",
                values=f"{columns[known]}, {column}",
                remedy=f"another name for one of them: my_{normalize_name(column)}",
            )
        columns[known] = column
    if not columns.keys() & {*_AXES}:
        near = did_you_mean("tensor", header) or did_you_mean("data", header)
        raise BadInput(
            f"{path} says of no plan how it is split",
            rule="a table of plans has columns tensor, data, pipe, and may have "
            "microbatch, cuts, seconds",
            values=f"columns: {', '.join(header)}",
            remedy=f"is {near} meant? rename it" if near else "tensor,data,pipe,...",
        )
    return tuple(
        _parse_row(row, columns, number, f"{path.name}, row {number}")
        for number, row in enumerate(rows, 1)
    )


def _column_name(column: str) -> str | None:
    """Return what a column is of; None for labels and settings."""
    # A name with a dot is a key of the configuration.
    if "." in column:
        return None
    word = normalize_name(column)
    stem, _, unit = word.rpartition("_")
    if unit in _UNITS and stem in {"seconds", *_NAMES["seconds"]}:
        return _UNITS[unit]
    # Other programs say `tensor_parallelism`, `pp_degree` or `tp_size`.
    word = re.sub(r"(ism|_degree|_size)$", "", word)
    for name, others in _NAMES.items():
        if word == name or word in others:
            return name
    return None


def _parse_row(
    row: Mapping[str, str], columns: Mapping[str, str], number: int, where: str
) -> PlanRow:
    def cell(name: str) -> str:
        return row[columns[name]].strip() if name in columns else ""

    def size(name: str) -> int | None:
        return positive_int(row, columns[name], where) if cell(name) else None

    measured, failed = None, cell("status").lower() not in _GOOD_WORDS
    for name, scale in (("seconds", 1.0), ("milliseconds", 1e-3)):
        if text := cell(name):
            # Words such as oom, and times that are none, stand for plans that failed.
            try:
                value = scale * float(text)
            except ValueError:
                value = math.nan
            if math.isfinite(value) and value > 0 and not failed:
                measured = value
            else:
                failed = True
    return PlanRow(
        number=number,
        mesh={axis: size(axis) or 1 for axis in _AXES},
        microbatch=size("microbatch"),
        # Cuts come as `2 4`, `2;4` or `[2, 4]`: whatever separates words does.
        cuts=tuple(re.findall(r"[^\s,;|\[\]()'\"]+", cell("cuts"))),
        settings={key: text for key, text in row.items() if "." in key and text},
        labels={
            key: text
            for key, text in row.items()
            if "." not in key and key not in columns.values()
        },
        measured_s=measured,
        failed=failed,
    )
