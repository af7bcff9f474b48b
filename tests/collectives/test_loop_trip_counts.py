"""Collectives inside loops, conditionals and calls, in programs that XLA compiled."""

from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.hlo_collectives import list_instructions, read_collectives

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
    assert list_instructions(text, lambda line: 1) == ()
