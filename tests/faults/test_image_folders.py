"""Pictures are read as they are shown; what is passed over is counted and named."""

import contextlib
import io
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.folder import list_image_folder
from jaxdist.input.image_files import UndecodableImageError, decode_image
from jaxdist.input.registry import open_data

DRAW = np.random.default_rng(0)


def features(channels=3):
    return {"image": Feature(shape=(8, 8, channels)), "label": Feature(upper_bound=2)}


def saved(image, kind="PNG", **how):
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def pixels(image):
    return np.asarray(image).astype(float)


@pytest.fixture
def folder(tmp_path):
    """Two classes of two pictures, in both splits."""
    root = tmp_path / "photos"
    for split in ("train", "test"):
        for name in ("bird", "cat"):
            (root / split / name).mkdir(parents=True)
            for i in range(2):
                noise = DRAW.integers(0, 256, (12, 12, 3)).astype(np.uint8)
                (root / split / name / f"{i}.png").write_bytes(
                    saved(Image.fromarray(noise))
                )
    return root


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_16_bits_are_scaled_by_their_bits(folder, channels):
    for split in ("train", "test"):
        for name, low in (("bird", 8000), ("cat", 50000)):
            grey = DRAW.integers(low, low + 10000, (12, 12)).astype(np.uint16)
            (folder / split / name / "0.png").write_bytes(saved(Image.fromarray(grey)))
            (folder / split / name / "1.png").unlink()
    _, test = open_data(DataConfig(name="folder", path=str(folder)), features(channels))
    images = test.get(np.array([0, 1]))["image"]
    mean, spread = np.array([0.449]), np.array([0.226])
    if channels == 3:
        mean = np.array([0.485, 0.456, 0.406])
        spread = np.array([0.229, 0.224, 0.225])
    shown = (images * spread + mean) * 65535
    assert 8000 <= shown[0].min() <= shown[0].max() <= 18000
    assert 50000 <= shown[1].min() <= shown[1].max() <= 60000
    # More than the 40 steps that 8 bits have there.
    assert len(np.unique(shown[0][..., 0])) > 50


def test_hidden_folders_and_other_files_are_passed_over_in_one_line(folder):
    for split in ("train", "test"):
        hidden = folder / split / ".ipynb_checkpoints"
        hidden.mkdir()
        (hidden / "0-checkpoint.jpg").write_bytes(b"")
    (folder / "train" / "cat" / "._0.png").write_bytes(b"\0")
    (folder / "train" / "cat" / "a.gif").write_bytes(b"\0")
    (folder / "train" / "cat" / "more").mkdir()
    (folder / "train" / "labels.csv").write_text("")
    (folder / "train" / "ant").mkdir()
    with pytest.warns(JaxdistWarning, match="passed over in") as told:
        train, _ = open_data(DataConfig(name="folder", path=str(folder)), features())
    assert len(told) == 1
    said = str(told[0].message)
    assert "hidden: 3 (train/.ipynb_checkpoints, " in said
    assert "other than .jpg, .jpeg, .png: 1 (train/cat/a.gif)" in said
    assert "folders inside a class: 1 (train/cat/more)" in said
    assert "beside the classes: 1 (train/labels.csv)" in said
    assert "classes without an image: 1 (train/ant)" in said
    assert (train.classes, len(train)) == (3, 4)
    assert list_image_folder(str(folder)).classes == ("ant", "bird", "cat")


def test_a_folder_of_images_alone_passes_nothing_over(folder):
    assert list_image_folder(str(folder)).passed_over == ""


def test_a_picture_too_large_to_decode_is_named_or_skipped(folder, monkeypatch):
    # The same error as for 14,000 x 14,000 pixels, of a smaller picture.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    path = folder / "train" / "cat" / "scan.png"
    path.write_bytes(saved(Image.new("1", (100, 100))))
    config = DataConfig(name="folder", path=str(folder), dir=str(folder.parent))
    train, _ = open_data(config, features())
    with pytest.raises(BadInput, match=r"scan\.png cannot be read") as refused:
        train.get(np.arange(len(train)))
    assert "data.corrupt_images=skip" in str(refused.value)
    skipping = DataConfig(
        name="folder",
        path=str(folder),
        dir=str(folder.parent),
        corrupt_images="skip",
    )
    with pytest.warns(JaxdistWarning, match=r"1 of 5 images .*scan\.png"):
        train, _ = open_data(skipping, features())
    assert len(train) == 4


def test_names_of_any_bytes_are_read(folder):
    odd = os.fsdecode(b"caf\xe9.png")
    (folder / "train" / "cat" / odd).write_bytes(saved(Image.new("L", (9, 9))))
    (folder / "train" / os.fsdecode(b"\xff")).mkdir()
    with pytest.warns(JaxdistWarning, match=r"\\udcff"):
        train, _ = open_data(DataConfig(name="folder", path=str(folder)), features())
    assert len(train) == 5
    assert train.fingerprint
    assert train.get(np.arange(5))["image"].shape == (5, 8, 8, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright(orientation):
    noise = Image.fromarray(DRAW.integers(0, 256, (6, 4)).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = saved(noise, exif=exif)
    turned = {5: (6, 4), 6: (6, 4), 7: (6, 4), 8: (6, 4)}.get(orientation, (4, 6))
    found = decode_image(stored, 1)
    assert found.size == turned
    expected = pixels(noise)
    steps = {2: expected[:, ::-1], 3: expected[::-1, ::-1], 4: expected[::-1]}
    steps |= {5: expected.T, 6: np.rot90(expected, -1), 8: np.rot90(expected)}
    steps |= {7: np.rot90(expected, 2).T}
    np.testing.assert_array_equal(pixels(found), steps.get(orientation, expected))


def test_damaged_notes_of_a_picture_do_not_matter():
    noise = Image.fromarray(DRAW.integers(0, 256, (6, 4)).astype(np.uint8))
    stored = saved(noise, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    np.testing.assert_array_equal(pixels(decode_image(stored, 1)), pixels(noise))


@settings(max_examples=60)
@given(
    mode=st.sampled_from(
        ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"]
    ),
    kind=st.sampled_from(["PNG", "JPEG", "TIFF"]),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 1000),
    cut=st.sampled_from([None, 0, 7, 40]),
)
def test_every_mode_is_as_it_is_shown_or_refused(mode, kind, channels, seed, cut):
    draw = np.random.default_rng(seed)
    noise = draw.integers(0, 256, (5, 7, 4)).astype(np.uint8)
    if mode == "I;16":
        image = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    elif mode in "IF":
        image = Image.fromarray(
            noise[..., 0].astype({"I": "i4", "F": "f4"}[mode]) * 257
        )
    else:
        image = Image.fromarray(noise, "RGBA").convert(mode)
    try:
        stored = saved(image, kind)
    except OSError:  # a file of this kind cannot hold it
        return
    if cut is not None:
        stored = stored[:cut]
    # A file that is cut short may lack its last bytes alone.
    with contextlib.ExitStack() as stack:
        if cut is not None or mode == "F":
            stack.enter_context(pytest.raises(UndecodableImageError, match=r"."))
        found = decode_image(stored, channels)
    if cut is not None or mode == "F":
        return
    assert found.size == (7, 5)
    shown = pixels(found)
    assert 0 <= shown.min() <= shown.max() <= 255
    if mode in ("I;16", "I"):
        np.testing.assert_allclose(shown, noise[..., 0], rtol=1e-6)
    if mode == "RGBA" and channels == 3:
        part = noise[..., 3:] / 255
        np.testing.assert_allclose(
            shown, noise[..., :3] * part + 255 * (1 - part), atol=1.01
        )
