"""Reading collectives out of compiled HLO: kinds, axes, bytes."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.hlo_collectives import read_collectives

MESH = {"data": 2, "spatial_h": 2, "tensor": 2}


def one(line, mesh=MESH):
    (move,) = read_collectives(line, mesh)
    return move.kind, move.axes, move.group_size, move.payload


@pytest.mark.parametrize(
    "groups",
    [
        "replica_groups={{0,4},{1,5},{2,6},{3,7}}",
        "replica_groups=[4,2]<=[2,4]T(1,0)",
        "replica_groups=mesh['data'=2,'spatial_h'=2,'tensor'=2] {'data'}",
    ],
)
def test_groups_in_every_form(groups):
    line = f"  %r = f32[3,5]{{1,0}} all-reduce(%x), channel_id=1, {groups}, to_apply=%s"
    assert one(line) == ("all-reduce", ("data",), 2, 60)


def test_groups_over_two_axes():
    line = "%r = bf16[8] all-gather(%x), replica_groups={{0,1,2,3},{4,5,6,7}}"
    assert one(line) == ("all-gather", ("spatial_h", "tensor"), 4, 16)


def test_no_groups_is_everyone():
    line = "ROOT %r = f32[] all-reduce(%x), replica_groups={}, to_apply=%s"
    assert one(line) == ("all-reduce", tuple(MESH), 8, 4)


def test_groups_that_no_axes_make_are_shown_as_unknown():
    line = "%r = f32[2] all-reduce(%x), replica_groups={{0,3},{1,2},{4,7},{5,6}}"
    assert one(line) == ("all-reduce", (), 2, 8)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", ("data[2]", "tensor")),
        ("{{0,2},{1,3},{4,6},{5,7},{8,10},{9,11},{12,14},{13,15}}", ("data[2]",)),
        ("{{0,4},{1,5},{2,6},{3,7},{8,12},{9,13},{10,14},{11,15}}", ()),
    ],
)
def test_neighbours_along_an_axis_are_a_part_of_it(groups, axes):
    line = f"%r = f32[2] all-reduce(%x), replica_groups={groups}"
    assert one(line, {"data": 8, "tensor": 2})[1] == axes


def test_tuples_are_summed():
    line = "%r = (f32[2]{0}, f64[3]{0}) all-reduce(%x, %y), replica_groups=[1,8]<=[8]"
    assert one(line)[3] == 8 + 24


def test_a_started_permute_counts_its_result_once():
    line = (
        "%p = (s8[5]{0}, s8[5]{0}, u32[], u32[]) collective-permute-start(%x), "
        "source_target_pairs={{0,2},{4,6}}"
    )
    assert one(line) == ("collective-permute", ("spatial_h",), 2, 5)


def test_a_started_gather_counts_its_result():
    line = (
        "%g = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), "
        "replica_groups={{0,4},{1,5},{2,6},{3,7}}"
    )
    assert one(line) == ("all-gather", ("data",), 2, 32)


def test_gathers_that_were_started_together_count_all_results():
    line = (
        "%g = ((f32[4]{0}, f32[1]{0}), (f32[8]{0}, f32[2]{0})) all-gather-start(%x, %y), "
        "replica_groups={{0,4},{1,5},{2,6},{3,7}}"
    )
    assert one(line) == ("all-gather", ("data",), 2, 40)


def test_what_the_partitioner_adds_is_where_its_user_is():
    """Since jax 0.11 the gather itself has the name of the argument that is gathered."""
    text = """
  %g = f32[8] all-gather(%p), replica_groups={{0,4}}, frontend_attributes={is_spmd_generated="true"}, metadata={op_name="images"}
  %b = f32[8] bitcast(%g)
  %c = f32[8] convolution(%g, %k), metadata={op_name="jit(f)/conv" source_file="a.py" source_line=3}"""
    (move,) = read_collectives(text, MESH)
    assert (move.op_name, move.source_location) == ("jit(f)/conv", "a.py:3")


def test_a_sum_in_a_fusion_that_keeps_a_part_is_a_reduce_scatter():
    """As the compiler of TPUs writes large ones: padded, summed, and cut."""
    text = """
%all-reduce-scatter (input: f32[10,4]) -> f32[6,4] {
  %input = f32[10,4]{1,0:T(8,128)} parameter(0)
  %zero = f32[] constant(0)
  %pad = f32[12,4]{1,0:T(8,128)} pad(%input, %zero), padding=0_2x0_0
  %sum = f32[12,4]{1,0} all-reduce(%pad), replica_groups={{0,4},{1,5},{2,6},{3,7}}
  ROOT %part = f32[6,4]{1,0} dynamic-slice(%sum, %at, %zero2), dynamic_slice_sizes={6,4}
}

ENTRY %main (x: f32[10,4]) -> f32[6,4] {
  %x = f32[10,4]{1,0} parameter(0)
  ROOT %fusion = f32[6,4]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter
}
"""
    (move,) = read_collectives(text, MESH)
    assert (move.kind, move.axes, move.group_size) == ("reduce-scatter", ("data",), 2)
    # 5 rows of 4 floats are a device's; a sixth is padding.
    assert (move.payload, move.padding) == (80, 16)
    # A sum whose part is cut by another instruction is held whole.
    (whole,) = read_collectives(text.replace("(%sum, %at", "(%other, %at"), MESH)
    assert (whole.kind, whole.payload, whole.padding) == ("all-reduce", 192, 0)


def test_a_chain_of_fusions_is_one_collective_whatever_memory_it_is_in():
    def part(number, memory):
        return f"""
%part.{number} (x: bf16[2,4]) -> bf16[8,4] {{
  %x = bf16[2,4]{{1,0}} parameter(0)
  ROOT %gather.{number} = bf16[8,4]{{1,0:T(8,128)(2,1){memory}}} all-gather(%x), channel_id=9, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, frontend_attributes={{chain_id="4"}}
}}
"""

    text = f"""HloModule step
{part(0, "")}{part(1, "S(1)")}{part(2, "S(1)")}
ENTRY %main (x: bf16[2,4]) -> bf16[8,4] {{
  %x = bf16[2,4]{{1,0}} parameter(0)
  %a = bf16[8,4]{{1,0}} fusion(%x), kind=kCustom, calls=%part.0
  %b = bf16[8,4]{{1,0}} fusion(%x), kind=kOutput, calls=%part.1
  ROOT %c = bf16[8,4]{{1,0}} fusion(%x), kind=kCustom, calls=%part.2
}}
"""
    (move,) = read_collectives(text, {"fsdp": 4})
    assert (move.kind, move.payload, move.is_async) == ("all-gather", 64, True)


def test_a_chain_that_passes_a_loop_runs_once():
    """As TPUs sum a gradient beside the loop over chunks of logits."""

    def part(number):
        return f"""
%part.{number} (x: f32[8,4]) -> f32[8,4] {{
  %x = f32[8,4]{{1,0}} parameter(0)
  ROOT %sum.{number} = f32[8,4]{{1,0}} all-reduce(%x), channel_id=9, replica_groups={{{{0,1}}}}, to_apply=%add, frontend_attributes={{chain_id="6"}}
}}
"""

    text = f"""HloModule step
{part(0)}{part(1)}{part(2)}
%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {{
  %p = (s32[], f32[8,4]{{1,0}}) parameter(0)
  %n = s32[] get-tuple-element(%p), index=0
  %y = f32[8,4]{{1,0}} get-tuple-element(%p), index=1
  %b = f32[8,4]{{1,0}} fusion(%y), kind=kOutput, calls=%part.1
  ROOT %next = (s32[], f32[8,4]{{1,0}}) tuple(%n, %b)
}}

%condition (p: (s32[], f32[8,4])) -> pred[] {{
  %p = (s32[], f32[8,4]{{1,0}}) parameter(0)
  ROOT %less = pred[] constant(false)
}}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {{
  %x = f32[8,4]{{1,0}} parameter(0)
  %zero = s32[] constant(0)
  %a = f32[8,4]{{1,0}} fusion(%x), kind=kCustom, calls=%part.0
  %given = (s32[], f32[8,4]{{1,0}}) tuple(%zero, %a)
  %while = (s32[], f32[8,4]{{1,0}}) while(%given), condition=%condition, body=%body, metadata={{op_name="step/while"}}, backend_config={{"known_trip_count":{{"n":"2"}}}}
  %y = f32[8,4]{{1,0}} get-tuple-element(%while), index=1
  ROOT %c = f32[8,4]{{1,0}} fusion(%y), kind=kCustom, calls=%part.2
}}
"""
    (move,) = read_collectives(text, {"data": 2})
    assert (move.kind, move.payload, move.loops) == ("all-reduce", 128, ())


def test_a_collective_on_a_core_of_its_own_is_asynchronous():
    """As TPUs run reduce-scatters on their sparse cores."""
    text = """
%scatter (x: f32[8,4]) -> f32[4,4] {
  %x = f32[8,4]{1,0} parameter(0)
  ROOT %part = f32[4,4]{1,0} reduce-scatter(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}
}

ENTRY %main (x: f32[8,4]) -> f32[4,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %begun = ((f32[8,4]), f32[4,4]) call-start(%x), async_execution_thread="sparsecore", to_apply=%scatter
  ROOT %ended = f32[4,4]{1,0} call-done(%begun)
}
"""
    (move,) = read_collectives(text, MESH)
    assert (move.kind, move.payload) == ("reduce-scatter", 64)
    assert (move.is_async, move.instruction_name) == (True, "begun")


def test_wire_bytes_follow_the_ring():
    line = "%r = f32[200] all-reduce(%x), replica_groups=[1,8]<=[8], to_apply=%s"
    (move,) = read_collectives(line, MESH)
    assert move.wire_bytes == 2 * 7 * 800 // 8


@pytest.mark.parametrize("groups", ["{{0}}", "{{0},{1}}", "[8,1]<=[8]"])
def test_a_device_alone_moves_nothing(groups):
    line = f"%r = f32[2] all-reduce(%x), replica_groups={groups}, to_apply=%s"
    assert read_collectives(line, MESH) == ()


def test_a_real_program():
    mesh = jax.make_mesh(
        (4, 2),
        ("data", "tensor"),
        axis_types=(AxisType.Auto,) * 2,
        devices=jax.devices()[:8],
    )

    def local(x):
        x = lax.psum(x, "data") + lax.ppermute(x, "tensor", [(0, 1), (1, 0)])
        return lax.all_gather(x, "data", tiled=True)

    step = jax.shard_map(
        local, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False
    )
    text = jax.jit(step).lower(jnp.zeros((8, 3))).compile().as_text()
    found = {(m.kind, m.axes): m.payload for m in read_collectives(text, mesh.shape)}
    assert found == {
        ("all-reduce", ("data",)): 2 * 3 * 4,
        ("collective-permute", ("tensor",)): 2 * 3 * 4,
        ("all-gather", ("data",)): 8 * 3 * 4,
    }
