"""What a step with `plan.offload` hands on in the host's memory, to the byte."""

import jax
import pytest
from jax.extend.core import jaxprs_in_params

from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.train.peak_memory import host_bytes, trace_device_program

BLOCKS, SAMPLES, TOKENS, EMBED, HIDDEN = 4, 8, 128, 256, 1024
WORDS = (
    *("model.size=tiny", f"model.depth={BLOCKS}", f"model.embed={EMBED}"),
    *("model.heads=2", f"model.context={TOKENS}", f"data.context={TOKENS}"),
    *("data.name=synthetic", f"data.batch={SAMPLES}", "precision=bfloat16"),
    *("plan.mesh.data=1", "plan.scan=on"),
)
ROW = BLOCKS * TOKENS * 2
"""Bytes of a feature of a sample's tokens, in all blocks."""


def on_host(*words, platform="tpu"):
    config = resolve_config("llama", (*WORDS, *words)).config
    layout = StepDescriber(config, platform).layout(config.plan)
    return host_bytes(trace_device_program(layout))


@pytest.mark.parametrize(
    ("words", "features"),
    [
        (("plan.offload=*.mlp.up,*.mlp.gate",), SAMPLES * 2 * HIDDEN),
        (("plan.offload=block[01].mlp.up",), SAMPLES * HIDDEN // 2),
        (("plan.offload=block?",), SAMPLES * EMBED),
        (("plan.offload=block?", "plan.mesh.data=2"), SAMPLES // 2 * EMBED),
        (("plan.offload=block?", "plan.mesh.tensor=2"), SAMPLES * EMBED),
        (
            (
                "plan.offload=block?",
                *("plan.mesh.tensor=2", "plan.tensor_strategy=sequence"),
            ),
            SAMPLES * EMBED // 2,
        ),
        (("plan.offload=*.attention.out", "plan.mesh.tensor=2"), SAMPLES * EMBED),
        (("plan.offload=*.mlp.up", "plan.mesh.tensor=2"), SAMPLES * HIDDEN // 2),
        # One microbatch is there at a time.
        (("plan.offload=*.mlp.up", "optim.accumulate=2"), SAMPLES // 2 * HIDDEN),
        (("plan.offload=*.mlp.up", "plan.remat=true"), SAMPLES * HIDDEN),
        # The norm behind the loop stays, also where its block is computed again.
        (
            ("plan.offload=*norm*,*.mlp.up", "plan.remat=true"),
            SAMPLES * (HIDDEN + 2 * EMBED),
        ),
        # Nothing in a block reads its last product again.
        (("plan.offload=*.mlp.down",), 0),
    ],
    ids=str,
)
def test_named_activations_are_there_and_no_others(words, features):
    assert on_host(*words) == ROW * features


@pytest.mark.parametrize(
    ("pattern", "features"), [("*.mlp.up", HIDDEN), ("block?", EMBED)]
)
def test_so_they_are_where_attention_is_written_out(pattern, features):
    found = on_host(f"plan.offload={pattern}", "plan.attention=einsum")
    assert found == ROW * SAMPLES * features
    assert on_host(f"plan.offload={pattern}", platform="cpu") == found


def moved_outside_loops(program):
    """Count what a program moves to the host beside its loops."""
    count = 0
    for eqn in program.eqns:
        if eqn.primitive.name != "scan":
            spaces = [getattr(var.aval, "memory_space", None) for var in eqn.outvars]
            count += spaces.count(jax.memory.Space.Host)
            count += sum(map(moved_outside_loops, jaxprs_in_params(eqn.params)))
    return count


def test_what_stands_outside_of_loops_stays_on_the_device():
    words = (*WORDS, "plan.offload=*norm*,*.mlp.up", "plan.remat=true")
    config = resolve_config("llama", words).config
    layout = StepDescriber(config, "tpu").layout(config.plan)
    assert moved_outside_loops(trace_device_program(layout)) == 0
