"""What fsdp keeps on a device, by the memory that the compilers of accelerators allot."""

import jax
import pytest

pytestmark = [pytest.mark.target, pytest.mark.timeout(900)]

BLOCKS = (
    "llama fsdp=8 data.name=synthetic data.batch=8 data.context=16 model.context=16 "
    "model.vocabulary=64 model.embed=1024 model.heads=8 model.kv_heads=4 "
    "model.hidden=4096"
)


def test_fsdp_keeps_its_shards_and_the_parameters_of_two_blocks(compile_layout):
    """ZeRO-3: of another block a device has its shards alone."""
    sizes, params = {}, {}
    for depth in (3, 6):
        program = compile_layout(f"{BLOCKS} model.depth={depth}")
        sizes[depth] = program.memory_bytes
        leaves = jax.tree.leaves(program.layout.task.state.params)
        params[depth] = sum(leaf.size for leaf in leaves)
    block = (params[6] - params[3]) / 3
    # In float32: parameters, two moments, gradients, and what the loop reads of them.
    shards = 5 * 4 * block / 8
    more = (sizes[6] - sizes[3]) / 3
    # TPU's compiler has another copy of the shards. Whole parameters of a block, even in
    # 16 bits, would be far more.
    assert more <= 1.4 * shards < shards + 2 * block
    kept = sizes[3] - 3 * shards
    # Parameters of two blocks, and the gradients of one until they are scattered.
    assert kept <= 3 * 4 * block


def test_what_a_plan_offloads_is_on_the_host_to_the_byte(compile_layout):
    """Activations of a loop: those of two layers, and what each block is given."""
    tokens, bytes_each = 1024, 2
    words = f"{BLOCKS} model.depth=4 precision=bfloat16 data.context={tokens} "
    words += f"model.context={tokens} "
    kept = compile_layout(words)
    moved = compile_layout(
        words + "plan.offload=*.mlp.up,*.mlp.gate,block0,block1,block2,block3"
    )
    sizes = moved.compiled_step.memory_analysis()
    assert not moved.differences
    planned = 4 * tokens * bytes_each * (2 * 4096 + 1024)
    assert sizes.host_temp_size_in_bytes == planned
    assert kept.compiled_step.memory_analysis().host_temp_size_in_bytes == 0
    assert moved.memory_bytes < kept.memory_bytes
