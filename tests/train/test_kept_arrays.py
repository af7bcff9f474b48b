"""What a step of a language model holds: logits in chunks, and products in loops."""

import re
from dataclasses import replace

import jax
import pytest
from jax.extend.core import jaxprs_in_params

from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.train.eval_step import make_eval_step
from jaxdist.train.program import compile_program, trace_train_step

VOCABULARY, TOKENS, SAMPLES = 67, 24, 4
WORDS = (
    *("model.size=tiny", "data.name=synthetic", f"data.context={TOKENS}"),
    *(f"model.context={TOKENS}", f"model.vocabulary={VOCABULARY}"),
    *(f"data.batch={SAMPLES}", "plan.mesh.data=1"),
)


def lay_out(*words, name="gpt2_small"):
    config = resolve_config(name, (*WORDS, *words)).config
    return StepDescriber(config).layout(config.plan, jax.devices()[:1])


def holds_logits(text):
    """Tell whether a compiled program has the logits of all tokens."""
    rows = f"{SAMPLES},{TOKENS}|{TOKENS},{SAMPLES}|{SAMPLES * TOKENS}"
    return bool(re.search(rf"\[({rows}),{VOCABULARY}\]", text))


@pytest.mark.parametrize(("choice", "held"), [("whole", True), ("chunks", False)])
def test_logits_of_all_tokens_are_in_no_program(choice, held):
    layout = lay_out(f"plan.logits={choice}")
    text = compile_program(layout).compiled_step.as_text()
    assert holds_logits(text) == held

    state, weight = layout.state, jax.ShapeDtypeStruct((SAMPLES,), "float32")
    batch = {**layout.batch_shapes, "weight": weight}
    evaluation = jax.jit(make_eval_step(layout))
    text = evaluation.lower(state.params, state.stats, batch).compile().as_text()
    assert holds_logits(text) == held


def test_metrics_of_ones_own_have_whole_logits():
    layout = lay_out("plan.logits=chunks")
    seen = []

    def metric(outputs, batch):
        seen.append(outputs.shape)
        return outputs.max((-2, -1))

    task = replace(layout.task, metrics={"largest": metric})
    weight = jax.ShapeDtypeStruct((SAMPLES,), "float32")
    batch = {**layout.batch_shapes, "weight": weight}
    state = layout.state
    step = make_eval_step(replace(layout, task=task))
    assert "largest" in jax.eval_shape(step, state.params, state.stats, batch)
    assert seen == [(SAMPLES, TOKENS, VOCABULARY)]


@pytest.mark.parametrize(
    ("platform", "samples", "chunks"),
    [("tpu", 8, True), ("gpu", 8, True), ("tpu", 4, False), ("cpu", 8, False)],
)
def test_accelerators_take_the_logits_of_many_tokens_in_chunks(
    platform, samples, chunks
):
    words = ("data.context=1024", "model.context=1024", f"data.batch={samples}")
    config = resolve_config("gpt2_small", (*WORDS, *words)).config
    layout = StepDescriber(config, platform).layout(config.plan)
    assert layout.logits_product == ("embed.tokens.attend" if chunks else "")


def test_other_networks_have_whole_outputs():
    config = resolve_config("digits", ("plan.logits=chunks",)).config
    plan = Plan(logits="chunks")
    assert not StepDescriber(config, "tpu").layout(plan).logits_product


def wide_arrays(layout):
    """Count the arrays as wide as an MLP that a loop over blocks keeps of each."""
    found = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "scan" and eqn.params["length"] == 3:
                found.append([x.aval.shape for x in eqn.outvars])
            for inner in jaxprs_in_params(eqn.params):
                walk(inner)

    walk(trace_train_step(layout).jaxpr.jaxpr)
    forward, _ = found
    return forward.count((3, SAMPLES, TOKENS, 64))


@pytest.mark.parametrize(("name", "products"), [("gpt2_small", 1), ("llama", 2)])
def test_a_loop_keeps_products_and_no_elementwise_results(name, products):
    # Neither what GELU makes of a product, nor what SwiGLU makes of two.
    words = ("model.depth=3", "plan.scan=on", "model.dropout=0.1")
    layout = lay_out(*words, name=name)
    assert wide_arrays(replace(layout, platform="tpu")) == products
    # Attention that is written out has a softmax, so there all is kept.
    assert wide_arrays(layout) > products
