"""A format of two constants, whose rows are made of known ones."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from jaxdist.calibrate.measured_rows import FreeConstant, MeasuredRow

RATE = FreeConstant(
    name="rate", unit="1/s", low=0.1, high=100, initial=1, provenance="given: toy"
)
WAIT = FreeConstant(
    name="wait", unit="s", low=0, high=5, initial=1, provenance="given: toy"
)
MORE = tuple(replace(WAIT, name=name) for name in ("a", "b"))


@dataclass(frozen=True)
class Toy:
    name: str = "toy"
    cluster: str = "cpu-fake"
    constants: tuple[FreeConstant, ...] = (RATE, WAIT, *MORE)

    def matches(self, header):
        return "work" in header

    def read(self, path, cluster):
        return rows()


def row(work, measured, spread=None, **columns):
    return MeasuredRow(
        label=f"work {work}",
        devices=int(work),
        columns={"devices": str(work), **columns},
        measured=measured,
        predict=lambda values: work / values["rate"] + values["wait"],
        ideal=work,
        spread=spread,
    )


def rows(rate=4.0, wait=0.5, works=(1, 2, 4, 8, 16, 32)):
    return [row(work, work / rate + wait, kind="ab"[work > 4]) for work in works]


@pytest.fixture
def toy():
    return SimpleNamespace(
        form=Toy(), free=Toy().constants[:2], Format=Toy, row=row, rows=rows
    )
