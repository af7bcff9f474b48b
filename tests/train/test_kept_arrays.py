"""What a step of a language model holds: logits in chunks, and products in loops."""

import re
from dataclasses import replace

import jax
import pytest
from jax.extend.core import jaxprs_in_params

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.train.eval_step import make_eval_step
from jaxdist.train.objective import NextToken
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


def test_chunks_of_logits_that_are_not_there_are_refused():
    config = resolve_config("digits", ()).config
    describer = StepDescriber(config, "tpu")
    assert not describer.layout(Plan()).logits_product
    with pytest.raises(BadInput, match="no logits to be taken") as found:
        describer.layout(Plan(logits="chunks"))
    for part in ("rule", "ResNet8 declares none", "plan.logits=auto"):
        assert part in str(found.value)


class Smooth(NextToken):
    """An objective of one's own, which scores whole logits."""

    def losses(self, outputs, batch):
        return super().losses(outputs, batch) - 0.1 * outputs.mean((-2, -1))


def test_an_objective_of_ones_own_has_whole_logits():
    words = ("data.context=1024", "model.context=1024", "data.batch=8")
    config = resolve_config("gpt2_small", (*WORDS, *words)).config
    describer = StepDescriber(config, "tpu")
    describer.task = replace(describer.task, objective=Smooth())
    assert not describer.layout(config.plan).logits_product
    with pytest.raises(BadInput, match="no logits to be taken"):
        describer.layout(replace(config.plan, logits="chunks"))


def wide_arrays(layout, tokens):
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
    return forward.count((3, SAMPLES, tokens, 64))


@pytest.mark.parametrize(("name", "products"), [("gpt2_small", 1), ("llama", 2)])
def test_a_loop_keeps_products_and_no_elementwise_results(name, products):
    # Neither what GELU makes of a product, nor what SwiGLU makes of two.
    words = ("model.depth=3", "plan.scan=on", "model.dropout=0.1")
    long = ("data.context=128", "model.context=128", "precision=float32")
    layout = lay_out(*words, *long, name=name)
    assert wide_arrays(replace(layout, platform="tpu"), 128) == products
    # Attention that is written out has a softmax, so there all is kept.
    assert wide_arrays(layout, 128) > products


def test_memory_that_is_planned_for_accelerators_is_that_of_loops():
    config = resolve_config("gpt2_small", (*WORDS, "model.depth=3")).config

    def temporaries(platform, scan):
        plan = replace(config.plan, scan=scan)
        described = StepDescriber(config, platform).describe_traced(plan)
        return described.traced_bytes["temporaries"]

    unrolled = temporaries("cpu", "auto")
    assert temporaries("tpu", "off") == unrolled != temporaries("tpu", "auto")


def test_gradients_of_tokens_are_gathered_in_their_own_dtype():
    words = ("plan.mesh.tensor=2", "plan.tensor_strategy=sequence")
    moved = {}
    for precision in ("float32", "bfloat16"):
        config = resolve_config(
            "gpt2_small", (*WORDS, *words, f"precision={precision}")
        ).config
        layout = StepDescriber(config).layout(config.plan, jax.devices()[:2])
        compile_program(layout)  # the program is held against the ledger
        rows = [row for row in layout.ledger.rows if row.axes == ("tensor",)]
        moved[precision] = {
            kind: sum(row.payload for row in rows if row.kind == kind)
            for kind in ("all-gather", "reduce-scatter")
        }
    narrow, wide = moved["bfloat16"], moved["float32"]
    assert 2 * narrow["all-gather"] == wide["all-gather"]
    assert narrow["reduce-scatter"] == wide["reduce-scatter"]
