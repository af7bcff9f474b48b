"""The schedule of a compiled program: cycles by layer, and work beside collectives."""

import pytest

from jaxdist.profile.compiled_schedule import read_schedule, scope_owner

LAYERS = {"block1", "block1.conv", "head"}


def computing(name, cycles, scope="head", kind="fusion", extra=""):
    return (
        f'  %{name} = f32[8] {kind}(%x){extra}, metadata={{op_name="jit(f)/{scope}/mul"}}, '
        f'backend_config={{"estimated_cycles":"{cycles}"}}'
    )


def program(*lines, others=""):
    body = "\n".join(lines)
    return f"{others}\nENTRY %main (x: f32[8]) -> f32[8] {{\n{body}\n}}\n"


def test_cycles_are_summed_by_the_innermost_layer():
    text = program(
        computing("a", 10, "jvp(block1)/block1.conv"),
        computing("b", 20, "transpose(jvp(block1))/block1.conv"),
        computing("c", 5, "jvp(block1)"),
        computing("d", 1, "update"),
        "  %copy = f32[8] copy(%a)",
    )
    found = read_schedule(text, LAYERS)
    assert found.layer_cycles == {"block1.conv": 30, "block1": 5, "": 1}
    assert found.cycles == 36


def test_bytes_are_those_of_results_and_operands():
    text = program(
        "  %x = f32[8]{0:T(128)} parameter(0)",
        computing("a", 10, "block1"),
        computing("b", 10, "block1").replace(
            "f32[8] fusion(%x)", "(bf16[8], f32[2]{0:T(2)}) fusion(%a, %x)"
        ),
    )
    # x and a of 32 bytes; a, and 16 + 8, are written.
    assert read_schedule(text, LAYERS).layer_bytes == {"block1": (32 + 32) + (64 + 24)}


LOOP = """
%condition (p: (s32[], f32[8])) -> pred[] {
  %limit = s32[] constant(6)
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (p.1: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.1 = (s32[], f32[8]) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i.1, %one)
INSIDE
  ROOT %both = (s32[], f32[8]) tuple(%next, %y)
}
"""
START = (
    "  %start = s32[] constant(0)",
    "  %pair = (s32[], f32[8]) tuple(%start, %x)",
    "  %loop = (s32[], f32[8]) while(%pair), condition=%condition, body=%body",
)


def test_a_loop_counts_for_every_trip():
    text = program(*START, others=LOOP.replace("INSIDE", computing("y", 7, "block1")))
    assert read_schedule(text, LAYERS).layer_cycles == {"block1": 42}


def test_of_a_conditional_the_branch_with_most_work_counts():
    branches = "".join(
        f"\n%{name} (x: f32[8]) -> f32[8] {{\n{computing(name, cycles, scope)}\n}}\n"
        for name, cycles, scope in (("few", 3, "head"), ("many", 9, "block1"))
    )
    text = program(
        "  %c = f32[8] conditional(%i, %x, %x), branch_computations={%few, %many}",
        others=branches,
    )
    assert read_schedule(text, LAYERS).layer_cycles == {"block1": 9}


@pytest.mark.parametrize("kind", ["all-gather", "collective-permute", "call"])
def test_what_runs_between_start_and_end_hides_a_collective(kind):
    text = program(
        computing("a", 100),
        f"  %move = (f32[8], f32[8]) {kind}-start(%a)",
        computing("b", 30),
        computing("c", 12),
        f"  %moved = f32[8] {kind}-done(%move)",
        computing("d", 1000),
    )
    assert read_schedule(text, LAYERS).work_beside == {"move": 42}


def test_without_estimates_instructions_that_compute_are_counted():
    text = program(
        "  %move = (f32[8], f32[8]) all-gather-start(%a)",
        "  %b = f32[8] fusion(%x), calls=%f",
        "  %t = f32[8] get-tuple-element(%b), index=0",
        "  %c = f32[8] custom-call(%x)",
        "  %moved = f32[8] all-gather-done(%move)",
    )
    found = read_schedule(text, LAYERS)
    assert found.work_beside == {"move": 2}
    assert not found.layer_cycles


def test_a_chain_of_fusions_hides_its_collective_behind_all_but_the_first():
    def fused(number):
        name = f"gather.{number}"
        return (
            f"\n%part.{number} (x: f32[2]) -> f32[8] {{\n"
            f"  ROOT %{name} = f32[8] all-gather(%x), replica_groups={{{{0,1,2,3}}}}, "
            'frontend_attributes={chain_id="4"}\n}\n'
        )

    text = program(
        *(computing(f"f{n}", 10**n, extra=f", calls=%part.{n}") for n in range(3)),
        computing("after", 5000),
        others="".join(map(fused, range(3))),
    )
    assert read_schedule(text, LAYERS).work_beside == dict.fromkeys(
        ("gather.0", "gather.1", "gather.2"), 110
    )


def test_scopes_of_no_layer_have_no_owner():
    assert scope_owner("jit(f)/update/adam", LAYERS) == ""
    assert scope_owner("", LAYERS) == ""


def test_passes_are_told_apart():
    text = program(
        computing("a", 10, "jvp(block1)/block1.conv"),
        computing("b", 20, "transpose(jvp(block1))/block1.conv"),
        computing("c", 4, "transpose(jvp(jvp()))/rematted_computation/block1"),
        computing("d", 5, "jvp()/reduce_sum"),
        computing("e", 1, "update"),
    )
    found = read_schedule(text, LAYERS)
    assert found.forward_cycles == {"block1.conv": 10, "": 5}
    assert found.backward_cycles == {"block1.conv": 20, "block1": 4}
    assert found.layer_cycles == {"block1.conv": 30, "block1": 4, "": 6}
