"""Clips: what is filmed is what the caption says, and nothing depends on the machine."""

from collections import Counter

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.special_tokens import BOS_ID, EOS_ID, PAD_ID
from jaxdist.input.clips import decode_caption, open_clips
from jaxdist.input.config import DataConfig
from jaxdist.input.digits import open_digits
from jaxdist.input.registry import open_data
from jaxdist.input.synthetic import (
    CLIPS_PER_DIGIT,
    DIGIT_NAMES,
    MOTIONS,
    open_moving_digits,
)


@pytest.fixture(scope="module")
def parts(digits_dir):
    return open_moving_digits(digits_dir)


@pytest.fixture(scope="module")
def read(parts):
    return [source.get(np.arange(len(source))) for source in parts]


def centres(clip):
    """Mean place of the light in each frame of `[N, T, H, W, 1]`: [N, T, 2], pixels."""
    light = clip[..., 0].astype(np.float64)
    axes = np.arange(light.shape[2]), np.arange(light.shape[3])
    sums = light.sum((2, 3))
    down = (light.sum(3) * axes[0]).sum(-1) / sums
    right = (light.sum(2) * axes[1]).sum(-1) / sums
    return np.stack([down, right], -1)


def test_shapes_and_types(read):
    for part, count in zip(read, (2874, 720)):
        assert {key: (x.shape, x.dtype.name) for key, x in part.items()} == {
            "clip": ((count, 5, 16, 16, 1), "float32"),
            "words": ((count, 7), "int32"),
            "target": ((count, 7), "int32"),
        }
        assert (part["clip"].min(), part["clip"].max()) == (0, 1)


def test_captions_say_how_the_light_moves(parts, read):
    steps = {does: step for does, *step in MOTIONS}
    for source, part in zip(parts, read):
        does = [" ".join(caption.split()[2:]) for caption in source.captions]
        want = np.array([steps[words] for words in does], float)[:, None]
        moved = np.diff(centres(part["clip"]), axis=1)
        np.testing.assert_allclose(moved, want.repeat(4, 1), atol=1e-5)


def test_captions_say_which_digit_and_its_pixels_are_all_there(parts, read, digits_dir):
    for source, part, digits in zip(parts, read, open_digits(digits_dir)):
        found = digits.get(np.arange(len(digits)))
        said = [" ".join(caption.split()[:2]) for caption in source.captions]
        assert said == [DIGIT_NAMES[k] for k in found["label"].repeat(CLIPS_PER_DIGIT)]
        small = found["image"][:, ::2, ::2, 0].repeat(CLIPS_PER_DIGIT, 0)
        for frame in range(5):
            lit = part["clip"][:, frame, :, :, 0]
            np.testing.assert_allclose(
                np.sort(lit.reshape(len(lit), -1), 1)[:, -64:],
                np.sort(small.reshape(len(lit), -1), 1),
                atol=1 / 255,
            )


def test_every_motion_is_about_as_frequent(parts):
    for source in parts:
        times = Counter(" ".join(c.split()[2:]) for c in source.captions)
        share = len(source) / len(MOTIONS)
        assert set(times) == {does for does, *_ in MOTIONS}
        # Four standard deviations of a count.
        assert all(abs(n - share) < 4 * share**0.5 for n in times.values())


def test_the_clips_never_change(parts):
    assert [part.fingerprint[:16] for part in parts] == [
        "07ead92de9dc4d59",
        "aae09406e789e3b0",
    ]


def test_words_are_the_caption_behind_begin_and_before_the_end(parts, read):
    for source, part in zip(parts, read):
        words, target, known = part["words"], part["target"], source.vocabulary
        assert (words[:, 0] == BOS_ID).all()
        assert [decode_caption(row.tolist(), known) for row in target] == list(
            source.captions
        )
        inside = target > EOS_ID
        np.testing.assert_array_equal(words[:, 1:], (target * inside)[:, :-1])
        lengths = inside.sum(1)
        assert (target[np.arange(len(target)), lengths] == EOS_ID).all()
        assert ((target != PAD_ID).sum(1) == lengths + 1).all()
        assert set(lengths) == {3, 4, 6}


def save(path, clip=None, caption=None, **others):
    if clip is None:
        clip = np.arange(20 * 2 * 3 * 3).reshape(20, 2, 3, 3, 1).astype(np.uint8)
    if caption is None:
        caption = [f"clip {'x' * (n % 3)} ends" for n in range(20)]
    np.savez(path, clip=clip, caption=np.array(caption), **others)
    return str(path)


def test_a_file_of_ones_own(tmp_path):
    path = save(tmp_path / "mine.npz")
    train, test = open_data(DataConfig(name="clips", path=path))
    assert (len(train), len(test)) == (18, 2)
    assert train.vocabulary[3:] == ("clip", "ends", "x", "xx") == test.vocabulary[3:]
    last = test.get(np.array([1]))
    assert decode_caption(last["target"][0].tolist(), test.vocabulary) == "clip x ends"
    np.testing.assert_array_equal(
        (last["clip"][0] * 255).round().ravel(), np.arange(342, 360) % 256
    )
    assert train.fingerprint != test.fingerprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(clip=np.zeros((20, 3, 3, 1), np.uint8)), "uint8 [20, 3, 3, 1]"),
        (dict(clip=np.zeros((20, 2, 3, 3, 1))), "clip float64"),
        (dict(caption=["a"] * 19), "20 clips, captions [19]"),
        (dict(caption=np.arange(20)), "caption int64"),
        (dict(clip=np.zeros((1, 2, 3, 3, 1), np.uint8), caption=["a"]), "1 clips"),
    ],
)
def test_what_holds_no_clips_is_refused(tmp_path, change, said):
    with pytest.raises(BadInput) as refused:
        open_clips(save(tmp_path / "bad.npz", **change))
    assert said in str(refused.value)
    assert "data.name=moving_digits" in str(refused.value)


@pytest.mark.parametrize("kind", ["none", "text", "other keys", "no path"])
def test_what_is_no_archive_is_refused(tmp_path, kind):
    path = tmp_path / "a.npz"
    if kind == "text":
        path.write_text("no archive")
    if kind == "other keys":
        np.savez(path, film=np.zeros(3))
    with pytest.raises(BadInput, match="no clips"):
        open_clips("" if kind == "no path" else str(path))
