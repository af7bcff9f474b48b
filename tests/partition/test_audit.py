"""The audit: what the program moves and the plan does not, or the other way round."""

import pytest

from jaxdist.collectives.hlo_collectives import CollectiveOp
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.partition import audit
from jaxdist.partition.ledger import Ledger
from jaxdist.partition.traffic import PlannedCollective

PLAN = Plan(mesh=MeshShape(data=4, spatial_h=2))


def halo(payload, layer="stem.conv"):
    return PlannedCollective(
        what="halo",
        kind="collective-permute",
        axes=("spatial_h",),
        payload=payload,
        layer=layer,
    )


def sent(payload, kind="collective-permute", axes=("spatial_h",), name="jit/stem.conv"):
    return CollectiveOp(
        kind=kind, axes=axes, group_size=2, payload=payload, op_name=name
    )


def ledger(*rows):
    return Ledger(plan=PLAN, rows=rows)


def test_merged_and_split_collectives_are_equal():
    moves, planned = [sent(30), sent(10)], ledger(halo(20), halo(20))
    assert not list(audit.find_differences(moves, planned))
    rows = audit.compare_collectives(moves, planned)
    assert [(r.count, r.ledger, r.program) for r in rows] == [(2, 40, 40)]


def test_a_gather_that_nobody_planned_is_named():
    stray = sent(99, kind="all-gather", axes=("data",), name="jit/block3.conv2/gather")
    with pytest.raises(audit.AuditError, match=r"block3\.conv2") as caught:
        raise next(audit.find_differences([sent(20), stray], ledger(halo(20))))
    assert "all-gather over data: 99 B in the program, 0 B in the ledger" in str(
        caught.value
    )


def test_what_is_missing_is_named():
    with pytest.raises(audit.AuditError, match=r"where    stem\.conv"):
        raise next(audit.find_differences([], ledger(halo(20))))


def test_the_words_of_a_report():
    gradients = PlannedCollective(
        what="all-reduce",
        kind="all-reduce",
        axes=("data", "spatial_h"),
        payload=800,
        layer="reduce_gradients",
    )
    terms = ledger(halo(20), gradients).sent_bytes_by_term()
    assert terms == {"all-reduce, data x spatial_h": 1400, "halo, spatial_h": 20}
