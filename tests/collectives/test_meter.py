"""The meter's columns: sums by kind, axes and group, in bytes that are sent."""

import pytest

from jaxdist.collectives.hlo_collectives import CollectiveOp
from jaxdist.collectives.meter import build_traffic_report

MESH = {"data": 4, "tensor": 2}
SUM = ("all-reduce", ("data",), 4)


def move(payload, kind="all-reduce", axes=("data",), group=4, bounded=True):
    return CollectiveOp(
        kind=kind,
        axes=axes,
        group_size=group,
        payload=payload,
        op_name="",
        bounded=bounded,
    )


def test_payloads_are_summed_before_they_are_rounded():
    ones = [move(1)] * 3
    (row,) = build_traffic_report(
        MESH, compiled=ones, stablehlo=ones, formula={SUM: 3}
    ).rows
    assert (row.formula, row.stablehlo, row.compiled) == (4, 4, 4)  # 2 * 3/4 * 3


def test_what_one_column_alone_has_is_nothing_in_the_others():
    found = build_traffic_report(
        MESH, compiled=[move(80)], stablehlo=[move(8, axes=())], formula={}
    )
    assert [(r.axes, r.formula, r.stablehlo, r.compiled) for r in found.rows] == [
        (("data",), 0, 0, 120),
        ((), 0, 12, 0),
    ]
    assert [found.total(c) for c in ("formula", "stablehlo", "compiled")] == [
        0,
        12,
        120,
    ]


def test_a_column_that_is_not_at_hand_is_no_zero():
    found = build_traffic_report(MESH, compiled=[move(80)])
    assert found.columns == ("compiled",)
    assert found.rows[0].formula is None
    assert found.tree()["total"] == {"compiled": 120}
    assert "formula" not in str(found)


def test_a_loop_of_unknown_length_is_marked():
    found = build_traffic_report(
        MESH, compiled=[move(80, bounded=False)], stablehlo=[move(80)]
    )
    assert found.rows[0].endless == ("compiled",)
    assert "120 +" in str(found)
    assert "unknown length" in str(found)
    assert "+" not in str(build_traffic_report(MESH, compiled=[move(80)]))


@pytest.mark.parametrize("compiled", [[], [move(80)]])
def test_the_sums_end_the_table(compiled):
    words = str(build_traffic_report(MESH, compiled=compiled)).splitlines()[-1].split()
    assert words == ["a", "device", "sends,", "at", "least", str(120 * len(compiled))]


def test_the_order_of_rows_does_not_depend_on_the_process():
    """Equal bytes of unnamed groups of two sizes: a set has them in any order."""
    groups = range(2, 9)
    # Of n devices each sends (n - 1) / n of what is gathered.
    ones = [move(n * 840 // (n - 1), "all-gather", axes=(), group=n) for n in groups]
    found = build_traffic_report(MESH, compiled=ones).rows
    assert {row.compiled for row in found} == {840}
    assert [row.group for row in found] == [*reversed(groups)]
