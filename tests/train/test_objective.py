"""Objectives: losses are a sample's own, and answers are counted one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.special_tokens import EOS_ID, PAD_ID
from jaxdist.train.objective import (
    Captioning,
    Classification,
    NextToken,
    Regression,
    cast_floats,
)

RNG = np.random.default_rng(0)


def cross_entropy(logits, target):
    """Minus the logarithm of the target's softmax, spelt out."""
    logits = np.asarray(logits, np.float64)
    chosen = np.take_along_axis(logits, target[..., None], -1)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - chosen


def test_a_label_a_sample():
    logits, label = RNG.normal(size=(6, 5)).astype("f4"), RNG.integers(0, 5, 6)
    batch = {"label": jnp.asarray(label, jnp.int32)}
    losses = Classification().losses(jnp.asarray(logits), batch)
    np.testing.assert_allclose(losses, cross_entropy(logits, label), rtol=1e-5)
    right = Classification().correct(jnp.asarray(logits), batch)
    np.testing.assert_array_equal(right, logits.argmax(-1) == label)


def test_a_label_a_token_is_a_mean_within_the_sample():
    logits, target = RNG.normal(size=(3, 7, 5)).astype("f4"), RNG.integers(0, 5, (3, 7))
    batch = {"target": jnp.asarray(target, jnp.int32)}
    losses = NextToken().losses(jnp.asarray(logits), batch)
    np.testing.assert_allclose(losses, cross_entropy(logits, target).mean(1), rtol=1e-5)
    right = NextToken().correct(jnp.asarray(logits), batch)
    np.testing.assert_array_equal(right, logits.argmax(-1) == target)


def test_numbers_are_scored_by_the_mean_square_of_their_errors():
    outputs, target = RNG.normal(size=(2, 6, 3)).astype("f4")
    batch = {"target": jnp.asarray(target)}
    losses = Regression().losses(jnp.asarray(outputs), batch)
    np.testing.assert_allclose(losses, ((outputs - target) ** 2).mean(1), rtol=1e-6)
    right = Regression(tolerance=0.5).correct(jnp.asarray(outputs), batch)
    np.testing.assert_array_equal(right, abs(outputs - target) <= 0.5)
    narrow = Regression().losses(jnp.asarray(outputs, jnp.bfloat16), batch)
    assert narrow.dtype == jnp.float32


def captions():
    """Three captions of 4, 1 and 7 words, the end included."""
    target = RNG.integers(EOS_ID + 1, 5, (3, 7))
    for row, length in zip(target, (4, 1, 7)):
        row[length - 1], row[length:] = EOS_ID, PAD_ID
    return target


def test_a_label_a_word_is_a_mean_over_the_words_alone():
    logits, target = RNG.normal(size=(3, 7, 5)).astype("f4"), captions()
    batch = {"target": jnp.asarray(target, jnp.int32)}
    each = cross_entropy(logits, target)
    want = [each[0, :4].mean(), each[1, 0], each[2].mean()]
    losses = Captioning().losses(jnp.asarray(logits), batch)
    np.testing.assert_allclose(losses, want, rtol=1e-5)


def test_padding_is_neither_asked_nor_learned():
    logits, target = RNG.normal(size=(3, 7, 5)).astype("f4"), captions()
    batch = {"target": jnp.asarray(target, jnp.int32)}
    right = Captioning().correct(jnp.asarray(logits), batch)
    asked = Captioning().target_mask(right, batch)
    np.testing.assert_array_equal(asked.sum(1), [4, 1, 7])
    slope = jax.grad(lambda x: Captioning().losses(x, batch).sum())(jnp.asarray(logits))
    np.testing.assert_array_equal((slope != 0).any(-1), asked)


@pytest.mark.parametrize("objective", [Classification(), NextToken()])
def test_others_ask_for_every_answer(objective):
    right = jnp.array([[True, False], [False, False]])
    batch = {"target": jnp.zeros((2, 2), jnp.int32)}
    assert objective.target_mask(right, batch).tolist() == [[True, True], [True, True]]


@pytest.mark.parametrize("value", [-100, 3])
def test_a_target_to_ignore_is_neither_asked_nor_learned(value):
    objective = NextToken(ignore_value=value)
    logits = jnp.asarray(RNG.normal(size=(3, 6, 5)), "f4")
    target = jnp.asarray(RNG.integers(0, 3, (3, 6)), jnp.int32)
    part = {"target": target.at[:, :2].set(value)}
    asked = objective.target_mask(target, part)
    np.testing.assert_array_equal(asked.sum(1), [4, 4, 4])
    # Those that are left have the loss that they have alone.
    alone = objective.losses(logits[:, 2:], {"target": target[:, 2:]})
    np.testing.assert_allclose(objective.losses(logits, part), alone, rtol=1e-6)
    slope = jax.grad(lambda x: objective.losses(x, part).sum())(logits)
    np.testing.assert_array_equal((slope != 0).any(-1), asked)
    none = {"target": jnp.full_like(target, value)}
    assert objective.losses(logits, none).tolist() == [0, 0, 0]


def test_where_all_targets_count_the_loss_is_their_mean_to_the_bit():
    logits = jnp.asarray(RNG.normal(size=(4, 7, 5)), "f4")
    batch = {"target": jnp.asarray(RNG.integers(0, 5, (4, 7)), jnp.int32)}
    objective = NextToken()

    def plain(x):
        return objective.logits.cross_entropy(x, batch["target"]).mean(-1)

    for mine, want in (
        (objective.losses(logits, batch), plain(logits)),
        *zip(
            jax.grad(lambda x: objective.losses(x, batch).sum())(logits),
            jax.grad(lambda x: plain(x).sum())(logits),
            strict=True,
        ),
    ):
        np.testing.assert_array_equal(mine, want)


def test_a_clip_is_split_as_its_frames_are():
    assert Captioning().dim_axes("clip", 5) == (None, "spatial_h", "spatial_w")
    assert (
        Captioning().dim_axes("target", 2) == Captioning().dim_axes("weight", 1) == ()
    )
    assert Classification().dim_axes("image", 5) == (
        "spatial_d",
        "spatial_h",
        "spatial_w",
    )


@pytest.mark.parametrize("objective", [Classification(), NextToken(), Captioning()])
def test_losses_of_narrow_logits_are_wide(objective):
    shape = (2, 5) if isinstance(objective, Classification) else (2, 3, 5)
    batch = {key: jnp.ones(shape[:-1], jnp.int32) for key, _ in objective.targets}
    losses = objective.losses(jnp.zeros(shape, jnp.bfloat16), batch)
    assert (losses.shape, losses.dtype) == ((2,), jnp.float32)
    np.testing.assert_allclose(losses, np.log(5), rtol=1e-6)


def test_only_floats_are_cast():
    shapes = (
        jax.ShapeDtypeStruct((2,), jnp.float32),
        jax.ShapeDtypeStruct((3,), jnp.int32),
    )
    assert [x.dtype.name for x in cast_floats(shapes, jnp.bfloat16)] == [
        "bfloat16",
        "int32",
    ]
    assert cast_floats(shapes, None) == shapes


def test_what_an_objective_raises_is_said_in_a_line():
    class Broken(Classification):
        def losses(self, outputs, batch):
            raise ValueError("no such loss\nand more of it")

    shapes = (
        jax.ShapeDtypeStruct((4, 3), "float32"),
        {"label": jax.ShapeDtypeStruct((4,), "int32")},
    )
    with pytest.raises(BadInput) as refused:
        Broken().check_outputs(*shapes)
    assert str(refused.value.values).endswith("; ValueError: no such loss")
