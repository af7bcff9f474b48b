"""The audit: what the program moves and the plan does not, or the other way round."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.collectives.hlo_collectives import COLLECTIVE_KINDS, CollectiveOp
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.partition import audit
from jaxdist.partition.compiler_rewrites import rules_for, undo_rewrites
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


TPU = rules_for("tpu")


def test_arrays_in_16_bits_are_named_with_both_sizes():
    half = replace(sent(20), half_payload=20)
    assert list(audit.find_differences([half], ledger(halo(40))))  # on other platforms
    assert not list(audit.find_differences([half], ledger(halo(40)), rules=TPU))
    (row,) = audit.compare_collectives([half], ledger(halo(40)), TPU)
    assert (row.ledger, row.program, row.equivalent) == (40, 20, 40)
    (rewrite,) = undo_rewrites([half], ledger(halo(40)).payload_by_axes(), TPU).rewrites
    assert (rewrite.name, rewrite.planned, rewrite.program) == (
        "sent in 16 bits",
        40,
        20,
    )


def test_16_bits_that_were_planned_are_not_widened():
    half = replace(sent(20), half_payload=20)
    assert not undo_rewrites([half], ledger(halo(20)).payload_by_axes(), TPU).rewrites


def test_half_the_bytes_in_whole_floats_are_a_difference():
    assert list(audit.find_differences([sent(20)], ledger(halo(40)), rules=TPU))


def fsdp(kind, payload):
    return replace(halo(payload), kind=kind, axes=("data",))


def summed(payload):
    return replace(sent(payload, "all-reduce", ("data",)), group_size=4)


@pytest.mark.parametrize("unit", [1, 2**17])
def test_small_gathers_and_scatters_may_be_sums_and_large_ones_may_not(unit):
    planned = ledger(
        fsdp("all-gather", 8 * unit),
        fsdp("reduce-scatter", 3 * unit),
        fsdp("all-reduce", 5 * unit),
    )
    moves = [summed((8 + 4 * 3 + 5) * unit)]
    found = list(audit.find_differences(moves, planned, rules=TPU))
    rewrites = undo_rewrites(moves, planned.payload_by_axes(), TPU).rewrites
    if unit == 1:
        assert not found
        assert [(r.name, r.planned, r.program) for r in rewrites] == [
            ("all-gather as all-reduce", 8, 8),
            ("reduce-scatter as all-reduce", 3, 12),
        ]
    else:
        assert len(found) == 3
        assert not rewrites


def padded(payload, padding, axes, devices):
    op = sent(payload, "reduce-scatter", axes, "jit/scatter")
    return replace(op, group_size=devices, padding=padding)


def test_rows_of_padded_parts_are_moved_back():
    """Parts of 8 and 4 numbers are padded by 3 and 2: 1 x 3 + 3 x 2 are moved."""
    planned = ledger(
        replace(halo(8), kind="reduce-scatter", axes=("fsdp[::4]",)),
        replace(halo(4), kind="reduce-scatter", axes=("fsdp[4]",)),
    )
    scatters = [padded(8, 3, ("fsdp[::4]",), 2), padded(4, 2, ("fsdp[4]",), 4)]
    moves = [*scatters, sent(9, axes=("fsdp",), name="")]
    assert not list(audit.find_differences(moves, planned, rules=TPU))
    rewrites = undo_rewrites(moves, planned.payload_by_axes(), TPU).rewrites
    assert sorted((r.name, r.axes, r.planned, r.program) for r in rewrites) == [
        ("padded to whole tiles", ("fsdp[4]",), 4, 4 + 4 * 2),
        ("padded to whole tiles", ("fsdp[::4]",), 8, 8 + 2 * 3),
    ]
    # On other platforms, and with a byte more or less, the permute is a difference.
    assert list(audit.find_differences(moves, planned))
    for extra in (-1, 1):
        wrong = [*scatters, sent(9 + extra, axes=("fsdp",), name="")]
        assert list(audit.find_differences(wrong, planned, rules=TPU))


@given(
    planned=st.dictionaries(
        st.sampled_from(COLLECTIVE_KINDS), st.integers(1, 10**6), min_size=1
    ),
    wrong=st.integers(-(10**5), 10**5).filter(bool),
    data=st.data(),
)
def test_bytes_that_no_rewrite_explains_are_always_found(planned, wrong, data):
    # Of whole floats only all-gathers and reduce-scatters may be sums.
    kind = data.draw(st.sampled_from(sorted(planned)))
    moves = [
        replace(
            sent(payload + wrong * (k == kind), k, ("data",)), group_size=4, op_name=""
        )
        for k, payload in planned.items()
        if payload + wrong * (k == kind) > 0
    ]
    rows = ledger(*(fsdp(k, payload) for k, payload in planned.items()))
    assert list(audit.find_differences(moves, rows, rules=TPU))


def test_a_loop_of_unknown_length_is_one_difference():
    moves = [replace(sent(5), bounded=False, loops=("scan",))] * 4
    found = list(audit.find_differences(moves, ledger(halo(20))))
    assert len(found) == 1
    assert "unknown length" in str(found[0])
