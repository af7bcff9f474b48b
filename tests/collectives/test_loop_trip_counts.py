"""Collectives inside loops, conditionals and calls, in programs that XLA compiled."""

from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.hlo_program import list_instructions

BLOCK = 2 * 3 * 4
"""Bytes of one device's block below."""


def moves(local):
    """Compile a function of blocks [2, 3] of float32 and read its collectives."""
    mesh = jax.make_mesh(
        (4, 2),
        ("data", "tensor"),
        axis_types=(AxisType.Auto,) * 2,
        devices=jax.devices()[:8],
    )
    step = jax.shard_map(
        local, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )
    text = jax.jit(step).lower(jnp.zeros((8, 3))).compile().as_text()
    return read_collectives(text, mesh.shape)


def payloads(local):
    total = Counter()
    for move in moves(local):
        total[move.axes] += move.payload
    return total


def scan(body, x, length):
    return lax.scan(lambda c, _: (body(c), None), x, None, length=length)[0]


def summed(x, axis):
    return lax.psum(jnp.sin(x), axis) * 0.1


def test_a_scan_counts_every_trip():
    (move,) = moves(lambda x: scan(lambda c: summed(c, "data"), x, 5))
    assert (move.trip_count, move.payload, move.bounded) == (5, 5 * BLOCK, True)


def test_the_line_that_asked_is_known():
    lines = Path(__file__).read_text().splitlines()
    (at,) = [
        n for n, line in enumerate(lines, 1) if line.startswith("    return lax.psum(")
    ]
    (move,) = moves(lambda x: scan(lambda c: summed(c, "data"), x, 5))
    assert move.source_location == f"{__file__}:{at}"


def test_nested_scans_multiply():
    def outer(c):
        return summed(scan(lambda c: summed(c, "tensor"), c, 3), "data")

    found = payloads(lambda x: scan(outer, x, 5))
    assert found == {("data",): 5 * BLOCK, ("tensor",): 15 * BLOCK}


def test_the_backward_scan_counts_too():
    def local(x):
        return jax.grad(lambda x: scan(lambda c: summed(c, "data"), x, 5).sum())(x)

    assert payloads(local) == {("data",): 2 * 5 * BLOCK}


def test_a_loop_with_an_index_counts_its_steps():
    def local(x):
        return lax.fori_loop(2, 9, lambda i, c: summed(c, "data"), x)

    assert payloads(local) == {("data",): 7 * BLOCK}


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    def local(x):
        return lax.while_loop(lambda c: c.sum() < 9, lambda c: summed(c, "data") + 1, x)

    (move,) = moves(local)
    assert (move.trip_count, move.payload, move.bounded) == (1, BLOCK, False)


def test_a_condition_runs_once_more_than_its_loop():
    text = """
%c (a: f32[2]) -> pred[] {
  %r = f32[2] all-reduce(%a), replica_groups=[1,8]<=[8], to_apply=%s
}

%b (a: f32[2]) -> f32[2] {
  %r = f32[3] all-reduce(%a), replica_groups=[1,8]<=[8], to_apply=%s
}

ENTRY %main (a: f32[2]) -> f32[2] {
  ROOT %w = f32[2] while(%a), condition=%c, body=%b, backend_config={"known_trip_count":{"n":"4"}}
}
"""
    found = read_collectives(text, {"data": 8})
    assert [(m.trip_count, m.payload) for m in found] == [(5, 5 * 8), (4, 4 * 12)]


def test_of_a_conditional_the_branch_that_moves_most_counts():
    def twice(x):
        return summed(jnp.concatenate([x, x]), "data")[:2]

    def local(x):
        return lax.cond(x.sum() > 0, lambda x: summed(x, "tensor"), twice, x)

    assert payloads(local) == {("data",): 2 * BLOCK}


def test_a_conditional_in_a_scan():
    def body(x):
        return lax.switch(
            x[0, 0].astype(jnp.int32) % 3,
            [lambda x: x, lambda x: summed(x, "data"), lambda x: -x],
            x,
        )

    assert payloads(lambda x: scan(body, x, 4)) == {("data",): 4 * BLOCK}


@pytest.mark.parametrize(
    "call", ["call(%a), to_apply=%f", "f32[2] async-start(%a), calls=%f"]
)
def test_called_computations_are_looked_into(call):
    text = f"""
%f (a: f32[2]) -> f32[2] {{
  ROOT %r = f32[2] all-reduce(%a), replica_groups=[1,8]<=[8], to_apply=%s
}}

ENTRY %main (a: f32[2]) -> f32[2] {{
  %x = f32[2] {call}
  ROOT %d = f32[2] async-done(%x), calls=%f
}}
"""
    assert [m.payload for m in read_collectives(text, {"data": 8})] == [8]


def test_computations_that_nobody_calls_do_not_run():
    text = "%f (a: f32[2]) -> f32[2] {\n  %r = f32[2] add(%a, %a)\n}\n"
    assert list_instructions(text, ["add"], lambda line: 1) == ()


@pytest.mark.parametrize("length", [2, 5, 40])
def test_a_loop_says_its_length_by_its_own_counter(length):
    # As the compiler of TPUs prints it, which writes no trip count.
    text = COUNTED_LOOP.replace("LIMIT", str(length))
    (move,) = read_collectives(text, {"data": 4})
    assert (move.trip_count, move.bounded) == (length, True)
    assert move.payload == length * 32


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("s32[] constant(LIMIT)", "s32[] parameter(1)"),  # a limit that is computed
        ("direction=LT", "direction=NE"),
        ("%start = s32[] constant(0)", "%start = s32[] partition-id()"),
        ("%one = s32[] constant(1)", "%one = s32[] partition-id()"),
    ],
)
def test_a_counter_that_is_not_constant_leaves_the_length_unknown(was, now):
    assert was in COUNTED_LOOP
    text = COUNTED_LOOP.replace(was, now).replace("LIMIT", "7")
    (move,) = read_collectives(text, {"data": 4})
    assert (move.trip_count, move.bounded) == (1, False)


def test_a_counter_may_begin_anywhere_and_take_larger_steps():
    text = (
        COUNTED_LOOP.replace("LIMIT", "11")
        .replace("%start = s32[] constant(0)", "%start = s32[] constant(2)")
        .replace("%one = s32[] constant(1)", "%one = s32[] constant(4)")
    )
    (move,) = read_collectives(text, {"data": 4})
    assert move.trip_count == 3  # 2, 6, 10


COUNTED_LOOP = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%condition (p: (s32[], f32[8])) -> pred[] {
  %limit = s32[] constant(LIMIT)
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (p.1: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.1 = (s32[], f32[8]) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i.1, %one)
  %x = f32[8] get-tuple-element(%p.1), index=1
  %moved = f32[8] all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%sum
  ROOT %both = (s32[], f32[8]) tuple(%next, %moved)
}

ENTRY %main (x.1: f32[8]) -> f32[8] {
  %x.1 = f32[8] parameter(0)
  %start = s32[] constant(0)
  %first = s32[] copy(%start)
  %pair = (s32[], f32[8]) tuple(%first, %x.1)
  %loop = (s32[], f32[8]) while(%pair), condition=%condition, body=%body
  ROOT %out = f32[8] get-tuple-element(%loop), index=1
}
"""


def test_what_a_kernel_says_of_itself_ends_no_computation():
    """Calls of Pallas kernels have metadata with lines of their own."""
    call = (
        '  %kernel.1 = f32[2] custom-call(%x), custom_call_target="tpu_custom_call", '
        "frontend_attributes={kernel_metadata={\n"
        '"xprof_metadata":"{}"\n'
        '}}, metadata={op_name="loop/kernel"}\n'
    )
    text = (
        f"ENTRY %main (x: f32[2]) -> f32[2] {{\n{call}  ROOT %y = f32[2] add(%x)\n}}\n"
    )
    first, last = list_instructions(text, [" = "], lambda _: 1)
    assert first.text.endswith('}}, metadata={op_name="loop/kernel"}')
    assert "ROOT %y" in last.text
    assert list_instructions(text, ["custom-call("], lambda _: 1) == (first,)
