"""S2VT: sizes by hand, what each half of it sees, and captions a word at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.core.special_tokens import BOS_ID
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import clip_shapes, model_factory, objective_for
from jaxdist.train.objective import Captioning
from jaxdist.train.task import Task

TINY = ModelConfig(name="s2vt", size="tiny")
CLIP = (2, 5, 16, 16, 3)


def abstract(config):
    return nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def network():
    """Tiny, with weights large enough that what it says depends on what it sees."""
    rng, model = np.random.default_rng(0), abstract(TINY)

    def draw(x):
        scale = 4.0 if x.ndim > 1 else 0.5
        fan = np.prod(x.shape[:-1]) if x.ndim != 3 else x.shape[0]
        return jnp.asarray(rng.normal(size=x.shape) * scale / fan**0.5, x.dtype)

    nnx.update(model, jax.tree.map(draw, nnx.state(model)))
    model.eval()
    return model


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(1)
    words = jnp.asarray(rng.integers(3, 20, (2, 6)), jnp.int32).at[:, 0].set(BOS_ID)
    return jnp.asarray(rng.random(CLIP), jnp.float32), words


@nnx.jit
def call(model, clip, words):
    return model(clip, words)


def sizes(block):
    return sum(x.size for x in jax.tree.leaves(nnx.state(block, nnx.Param)))


def test_parameters_block_by_block():
    model = abstract(ModelConfig(name="s2vt"))
    vgg16, embed, units, vocabulary = 138_357_544 - 4097 * 1000, 500, 1000, 12_594 + 3
    assert {name: sizes(block) for name, block in model.chain()} == {
        "frames": vgg16 + (4096 + 1) * embed,
        "lstm1": 4 * (embed + units + 1) * units,
        "lstm2": vocabulary * embed + 4 * (units + embed + units + 1) * units,
        "words": (units + 1) * vocabulary,
    }


def test_its_frames_are_those_of_vgg16():
    ours = abstract(ModelConfig(name="s2vt")).frames.cnn
    theirs = abstract(ModelConfig(name="vgg16"))
    blocks = dict(theirs.chain())
    blocks.pop("head")
    assert [name for name, _ in ours.chain()] == list(blocks)
    assert sizes(ours) == sum(map(sizes, blocks.values()))


def test_tiny_has_eight_weighted_layers_on_its_longest_path():
    params = nnx.to_flat_state(nnx.state(abstract(TINY), nnx.Param))
    layers = {path[:-1] for path, _ in params}
    assert len(layers - {("lstm2", "table")}) == 8


def test_settings_change_the_network():
    config = ModelConfig(
        name="s2vt", size="tiny", vocabulary=9, embed=10, hidden=12, channels=1, width=2
    )
    model = abstract(config)
    assert clip_shapes(config) == ((5, 16, 16, 1), (6,))
    assert model.lstm2.lstm.kernel.shape == (22, 4, 12)
    assert model.words.dense.kernel.shape == (12, 9)
    assert model.frames.cnn.conv1_1.conv.kernel.shape == (3, 3, 1, 2)


def test_no_word_is_told_from_itself_or_a_later_one(network, batch):
    clip, words = batch
    later = words.at[:, 3:].set(19 - words[:, 3:] % 7)
    before, after = call(network, clip, words), call(network, clip, later)
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-5)
    assert (np.abs(before[:, 3] - after[:, 3]).max(-1) > 1e-3).all()


def test_every_word_depends_on_every_frame_and_on_their_order(network, batch):
    clip, words = batch
    logits = call(network, clip, words)
    for other in (clip.at[:, 0].set(0), clip.at[:, -1].set(0), clip[:, ::-1]):
        moved = np.abs(call(network, other, words) - logits)
        assert (moved.max(-1) > 1e-4).all()


def test_a_sample_is_by_itself(network, batch):
    clip, words = batch
    alone = call(network, clip[1:], words[1:])
    np.testing.assert_allclose(call(network, clip, words)[1:], alone, atol=1e-5)


def test_captions_are_the_likeliest_words_of_the_whole_network(network, batch):
    """A word at a time with carried state, and by the network on all words before."""
    clip, _ = batch
    said = nnx.jit(lambda model, clip: model.caption(clip, 6))(network, clip)
    assert (said.shape, said.dtype) == ((2, 6), jnp.int32)
    words = jnp.full((2, 6), BOS_ID, jnp.int32)
    for step in range(6):
        word = call(network, clip, words)[:, step].argmax(-1).astype(jnp.int32)
        np.testing.assert_array_equal(said[:, step], word)
        words = words.at[:, step + 1 : step + 2].set(word[:, None])
    assert len(np.unique(said)) > 2


def test_float64_stays_float64_and_bfloat16_narrow(batch):
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in batch]
    narrow = nnx.eval_shape(
        lambda: model_factory(TINY)(dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    )
    out = nnx.eval_shape(lambda m, *x: m(*x), narrow, *shapes)
    assert out.dtype == jnp.bfloat16
    with jax.enable_x64(True):
        task = Task(model=model_factory(TINY), optimizer=None, param_dtype=jnp.float64)
        wide = nnx.eval_shape(lambda: task._build(nnx.Rngs(0)))
        clip = jax.ShapeDtypeStruct(CLIP, jnp.float64)
        out = nnx.eval_shape(lambda m, *x: m(*x), wide, clip, shapes[1])
        assert out.dtype == jnp.float64


def test_it_is_trained_on_captions():
    assert objective_for(TINY) == Captioning()
