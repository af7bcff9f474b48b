"""Every kind of layout, compiled by the real compilers of TPU and GPU and audited."""

import pytest

pytestmark = [pytest.mark.target, pytest.mark.timeout(600)]

TINY = "model.size=tiny"
TOKENS = f"{TINY} data.context=16"
# Together: each kind of split alone and in hybrids, each kind of network, reducers that
# move bytes in different collectives, schedules, rematerialization and accumulation.
LAYOUTS = {
    "digits: data": "digits data=8",
    "digits: rows": "digits data=4 spatial_h=2",
    "digits: rows and columns": "digits data=2 spatial_h=2 spatial_w=2",
    "digits: fsdp over all": "digits fsdp=8",
    "digits: fsdp": "digits data=2 fsdp=4",
    "digits: zero 1": "digits data=2 fsdp=4 plan.zero=1",
    "digits: tensor": "digits data=4 tensor=2",
    "digits: filters": "digits data=4 tensor=2 plan.tensor_strategy=filter",
    "digits: channels": "digits data=4 tensor=2 plan.tensor_strategy=channel",
    "digits: stages": "digits data=4 pipe=2 optim.accumulate=4",
    "digits: remat": "digits data=8 plan.remat=true",
    "digits: int8": "digits data=8 plan.reduce.algorithm=int8",
    "digits: power": "digits data=8 plan.reduce.algorithm=power",
    "digits: top_k": "digits data=8 plan.reduce.algorithm=top_k",
    "digits: ring": "digits data=8 plan.reduce.algorithm=ring",
    "digits: diloco": "digits replica=2 data=4 plan.outer.sync_interval=4",
    "digits: accumulation": "digits data=8 optim.accumulate=2",
    "vgg16: rows and columns": f"vgg16 data=2 spatial_h=2 spatial_w=2 {TINY}",
    "vgg16: tensor": f"vgg16 data=4 tensor=2 {TINY}",
    "resnet50: data": f"resnet50 data=8 {TINY}",
    "resnet50: rows and tensor": f"resnet50 data=2 spatial_h=2 tensor=2 {TINY}",
    "resnet50: fsdp": f"resnet50 data=2 fsdp=4 {TINY}",
    "cosmoflow: volumes": f"cosmoflow data=2 spatial_d=2 spatial_h=2 {TINY}",
    "unet2d: rows and columns": f"unet2d data=2 spatial_h=2 spatial_w=2 {TINY}",
    "unet3d: volumes": f"unet3d data=2 spatial_d=2 spatial_h=2 {TINY}",
    "unet2d: stages and rows": (
        f"unet2d data=2 pipe=2 spatial_h=2 optim.accumulate=2 data.batch=8 {TINY}"
    ),
    "unet3d: stages and planes": (
        f"unet3d data=2 pipe=2 spatial_d=2 optim.accumulate=2 data.batch=8 {TINY}"
    ),
    "resenc_unet3d: volumes": (
        f"resenc_unet3d data=2 spatial_d=2 spatial_h=2 data.batch=8 {TINY}"
    ),
    "resenc_unet3d: stages and planes": (
        "resenc_unet3d data=2 pipe=2 spatial_d=2 optim.accumulate=2 data.batch=8 "
        f"{TINY}"
    ),
    "convnext_t: rows": f"convnext_t data=4 spatial_h=2 data.batch=8 {TINY}",
    "llama: data": f"llama data=8 {TOKENS}",
    "llama: fsdp over all": f"llama fsdp=8 {TOKENS}",
    "llama: a loop, fsdp over all": (
        f"llama fsdp=8 model.depth=3 plan.logits=chunks {TOKENS}"
    ),
    "llama: a loop in microbatches": (
        f"llama data=2 fsdp=4 optim.accumulate=2 model.depth=2 {TOKENS}"
    ),
    "llama: a loop, sequence": (
        f"llama fsdp=4 tensor=2 plan.tensor_strategy=sequence model.depth=2 {TOKENS}"
    ),
    "llama: a loop, sequence, bfloat16": (
        "llama fsdp=4 tensor=2 plan.tensor_strategy=sequence precision=bfloat16 "
        f"model.depth=2 {TOKENS}"
    ),
    "llama: a loop, remat": f"llama fsdp=8 plan.remat=true model.depth=2 {TOKENS}",
    "llama: tensor": f"llama data=2 fsdp=2 tensor=2 {TOKENS}",
    "llama: sequence": (
        "llama data=4 tensor=2 plan.tensor_strategy=sequence plan.logits=chunks "
        f"{TOKENS}"
    ),
    "llama: stages": f"llama data=4 pipe=2 optim.accumulate=4 {TOKENS}",
    "llama: stages and tensor": (
        f"llama data=2 pipe=2 tensor=2 optim.accumulate=2 {TOKENS}"
    ),
    "gpt2_small: fsdp, a table whose rows do not divide": (
        "gpt2_small fsdp=8 data.name=synthetic data.batch=16 data.context=128 "
        "model.depth=1 model.heads=6 model.vocabulary=5025 model.context=128"
    ),
    "gpt2_small: fsdp, the published table": (
        "gpt2_small fsdp=8 data.name=synthetic data.batch=8 data.context=128 "
        "model.depth=1 model.context=128 precision=bfloat16"
    ),
    "mixtral: experts": f"mixtral expert=4 fsdp=2 {TOKENS}",
    "mixtral: experts with slots": (
        f"mixtral expert=4 data=2 {TOKENS} model.capacity_factor=1.25"
    ),
    "mixtral: experts and context with slots": (
        f"mixtral expert=4 context=2 {TOKENS} model.capacity_factor=1.25"
    ),
    "mixtral: experts and sequence with slots": (
        f"mixtral expert=4 tensor=2 plan.tensor_strategy=sequence {TOKENS} "
        "model.capacity_factor=1.25 precision=bfloat16"
    ),
    "mixtral: experts in stages": (
        f"mixtral expert=2 pipe=2 data=2 optim.accumulate=2 {TOKENS}"
    ),
    "mixtral: experts in stages and tensor": (
        f"mixtral expert=2 pipe=2 tensor=2 optim.accumulate=2 {TOKENS}"
    ),
    "captions: data": "captions data=8",
}
# Each mechanism once; `make targets` compiles all.
COVER = (
    "digits: rows and columns",
    "digits: fsdp over all",
    "digits: tensor",
    "digits: stages",
    "digits: ring",
    "resnet50: fsdp",
    "llama: sequence",
    "llama: a loop, fsdp over all",
    "captions: data",
)


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(title, marks=() if title in COVER else pytest.mark.slow)
        for title in LAYOUTS
    ],
)
def test_the_program_is_the_plan(title, compile_layout):
    program = compile_layout(LAYOUTS[title])
    program.raise_difference()
    assert program.memory_bytes > 0


@pytest.mark.parametrize("compile_layout", ["tpu-v5p:4x4x4"], indirect=True)
def test_parameters_on_many_chips_are_gathered_and_not_summed(compile_layout):
    program = compile_layout(
        "llama fsdp=64 data.name=synthetic data.batch=64 data.context=128 "
        "model.context=128 model.vocabulary=1024 model.embed=1024 model.heads=8 "
        "model.kv_heads=4 model.hidden=4096 model.depth=2 precision=bfloat16"
    )
    program.raise_difference()
    moved = {row.axes for row in program.layout.ledger.rows if row.kind == "all-gather"}
    assert moved == {("fsdp[8]",), ("fsdp[::8]",)}
