"""Attention with the kernels of TPUs and GPUs, by their compilers."""

import re

import pytest

pytestmark = [pytest.mark.target, pytest.mark.timeout(900)]

TOKENS = (
    "llama data.name=synthetic data.batch=16 data.context=512 model.context=512 "
    "model.vocabulary=64 model.embed=256 model.heads=4 model.kv_heads=2 "
    "model.hidden=512 precision=bfloat16 model.depth=3"
)
# Forward, and one of those that compute gradients.
KERNELS = {
    "tpu": (
        r"%splash_mha_fwd\S* = .* custom-call\(",
        r"%splash_mha_dq\S* = .* custom-call\(",
    ),
    "gpu": (r"__cudnn\$fmhaSoftmax\"", r"__cudnn\$fmhaSoftmaxBackward\""),
}
LAYOUTS = {
    "a loop": "fsdp=8",
    "beside heads": "data=2 fsdp=2 tensor=2",
    "in stages, computed again": "data=4 pipe=2 optim.accumulate=4 plan.remat=true",
}


def kernel_calls(program):
    """Count the calls of the forward kernel, and of that for gradients."""
    platform = program.layout.mesh.devices.flat[0].platform
    text = program.compiled_step.as_text()
    return [len(re.findall(name, text)) for name in KERNELS[platform]]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_program_is_the_plan_and_has_the_kernels(layout, compile_layout):
    program = compile_layout(f"{TOKENS} {layout}")
    program.raise_difference()
    assert all(kernel_calls(program))


def test_nothing_of_tokens_by_tokens_is_kept(compile_layout):
    fused = compile_layout(f"{TOKENS} fsdp=8")
    written = compile_layout(f"{TOKENS} fsdp=8 plan.attention=einsum")
    assert not any(kernel_calls(written))
    # Scores of 2 samples, 4 heads and 3 blocks, in float32: half of them at least.
    scores = 4 * 3 * 2 * 4 * 512**2
    assert written.memory_bytes - fused.memory_bytes > scores / 2


def test_the_backward_pass_runs_no_forward_kernel(compile_layout):
    forward, backward = kernel_calls(compile_layout(f"{TOKENS} fsdp=8"))
    # A compiler may have two iterations of a loop in one.
    assert 1 <= forward <= backward
