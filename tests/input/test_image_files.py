"""Images of files: decoded, cut and scaled, whoever reads them with whom."""

import io

import numpy as np
import pytest
from PIL import Image

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.input.batch_assembly import EvalBatchAssembler, TrainBatchAssembler
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.folder import FolderImages, find_corrupt_images
from jaxdist.input.folder_builder import prepare_folder
from jaxdist.input.image_files import DecodedImages
from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.input.registry import augmentation_of, open_data

# The folder of these tests has a file that is no image.
pytestmark = pytest.mark.filterwarnings("ignore:passed over in")
WANTED = {"image": Feature(shape=(8, 8, 3)), "label": Feature(upper_bound=10)}
MEAN, SPREAD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def png(pixels, mode="RGB"):
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).convert(mode).save(file, "PNG")
    return file.getvalue()


def noise(number, rows=30, columns=40):
    pixels = np.random.default_rng(number).integers(0, 256, (rows, columns, 3))
    return png(pixels)


class Files:
    """Encoded images held in memory."""

    classes = 10
    fingerprint = "files"
    remedy = "another file"

    def __init__(self, *files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def read(self, ids):
        return [(self.files[i], i % 10) for i in ids]

    def name(self, sample):
        return f"image {sample}"


def pictures(*files, shape=(8, 8, 3)):
    return DecodedImages(Files(*files), shape)


def test_the_middle_is_seen_in_evaluation():
    """Colours rise by 3 a column: each output column tells where it was read."""
    pixels = np.zeros((48, 80, 3)) + 3 * np.arange(80)[None, :, None]
    batch = pictures(png(pixels)).get(np.array([0]))
    assert batch["image"].dtype == np.float32
    assert batch["image"].shape == (1, 8, 8, 3)
    side = 48 * 7 / 8
    columns = (80 - side) / 2 + (np.arange(8) + 0.5) * side / 8 - 0.5
    colours = (3 * columns[:, None] / 255 - MEAN) / SPREAD
    half = 0.5 / 255 / SPREAD.min() + 1e-6  # decoded colours are whole numbers
    np.testing.assert_allclose(
        batch["image"][0], np.broadcast_to(colours, (8, 8, 3)), atol=half
    )


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_every_kind_of_file_becomes_the_channels_that_are_read(mode):
    file = io.BytesIO()
    picture = Image.fromarray(np.full((9, 9, 3), 255, np.uint8)).convert(mode)
    picture.save(file, "TIFF" if mode == "CMYK" else "PNG")
    for channels in (1, 3):
        image = pictures(file.getvalue(), shape=(4, 4, channels)).get(np.array([0]))
        assert image["image"].shape == (1, 4, 4, channels)
        assert np.ptp(image["image"], axis=(1, 2)).max() == 0


def test_what_is_seen_depends_on_seed_epoch_and_id_alone():
    source = pictures(*map(noise, range(5)))
    ids, epochs = np.array([3, 0, 4]), np.array([1, 1, 2])
    whole = source.vary(ids, epochs, 7)
    for row in range(3):
        alone = source.vary(ids[[row]], epochs[[row]], 7)
        np.testing.assert_array_equal(alone["image"][0], whole["image"][row])
    assert whole["label"].tolist() == [3, 0, 4]
    for other in (source.vary(ids, epochs + 1, 7), source.vary(ids, epochs, 8)):
        assert all((a != b).any() for a, b in zip(other["image"], whole["image"]))


def test_training_varies_and_evaluation_does_not():
    source = pictures(*map(noise, range(4)))
    train = TrainBatchAssembler(
        source=source,
        order=GlobalShuffleOrder(num_samples=4, batch=4),
        # They crop and flip by themselves: the older key does not move them.
        augmentation=augmentation_of(DataConfig(shift=1), source),
    )
    rows = np.arange(4)
    first, second = train(0, rows), train(1, rows)
    np.testing.assert_array_equal(first["image"], train(0, rows)["image"])
    for batch, epoch in ((first, 0), (second, 1)):
        seen = source.vary(batch["id"], np.full(4, epoch), 0)
        np.testing.assert_array_equal(batch["image"], seen["image"])
    score = EvalBatchAssembler(source=source, batch=4)
    np.testing.assert_array_equal(
        score(0, rows)["image"], source.get(np.arange(4))["image"]
    )


def test_a_broken_file_is_named():
    with pytest.raises(BadInput, match="image 1 cannot be read"):
        pictures(noise(0), noise(1)[:200]).get(np.array([0, 1]))


def test_other_channels_are_refused():
    with pytest.raises(BadInput, match=r"model.channels=3"):
        pictures(shape=(8, 8, 2))


@pytest.fixture
def folder(tmp_path):
    """Two classes; one file more in the second, and one that is no image."""
    for split, names in (("train", "abcde"), ("val", "fgh")):
        for number, name in enumerate(names):
            home = tmp_path / split / ("cat", "dog")[number % 2]
            home.mkdir(parents=True, exist_ok=True)
            (home / f"{name}.PNG").write_bytes(noise(ord(name)))
    (tmp_path / "train" / "cat" / "notes.txt").write_text("about cats")
    return tmp_path


def test_a_damaged_file_is_named_with_its_path(folder):
    bad = folder / "train" / "dog" / "b.PNG"
    bad.write_bytes(bad.read_bytes()[:200])
    train, _ = opened(folder)
    with pytest.raises(BadInput, match=r"dog/b\.PNG cannot be read") as caught:
        train.get(np.arange(len(train)))
    assert caught.value.remedy == ("data.corrupt_images=skip, or put the file right",)


def test_damaged_files_are_left_out_on_request(folder, tmp_path):
    whole, _ = opened(folder)
    bad = folder / "train" / "dog" / "b.PNG"
    bad.write_bytes(bad.read_bytes()[:200])
    how = dict(corrupt_images="skip", dir=str(tmp_path / "notes"))
    with pytest.warns(
        JaxdistWarning, match=r"1 of 5 images cannot be decoded.*dog/b\.PNG"
    ):
        train, _ = opened(folder, **how)
    assert len(train) == len(whole) - 1
    assert train.get(np.arange(4))["image"].shape[0] == 4
    assert train.fingerprint != whole.fingerprint


def test_a_link_to_nothing_is_left_out_like_a_damaged_file(folder, tmp_path):
    bad = folder / "train" / "dog" / "b.PNG"
    bad.unlink()
    bad.symlink_to(tmp_path / "gone.PNG")
    how = dict(corrupt_images="skip", dir=str(tmp_path / "notes"))
    with pytest.warns(JaxdistWarning, match=r"dog/b\.PNG"):
        train, _ = opened(folder, **how)
    assert train.get(np.arange(len(train)))["image"].shape[0] == 4
    train, _ = opened(folder)
    with pytest.raises(BadInput, match=r"b\.PNG"):
        train.get(np.arange(5))


def test_files_are_looked_at_once(folder, tmp_path):
    files = sorted((folder / "train").glob("*/*.PNG"))
    files[0].write_bytes(b"no image")
    assert find_corrupt_images(files, tmp_path / "notes") == {files[0]}
    (index,) = (tmp_path / "notes").iterdir()
    index.write_text("[]")  # what is written down is believed ...
    assert find_corrupt_images(files, tmp_path / "notes") == set()
    files[1].write_bytes(b"no image either")  # ... until a file changes
    assert find_corrupt_images(files, tmp_path / "notes") == set(files[:2])


def opened(path, wanted=WANTED, **how):
    return open_data(DataConfig(name="folder", path=str(path), **how), wanted)


def test_a_folder_of_images_is_a_data_set(folder):
    train, test = opened(folder)
    assert (len(train), len(test), train.classes) == (5, 3, 2)
    assert train.class_names == test.class_names == ("cat", "dog")
    batch = train.get(np.arange(5))
    assert batch["label"].tolist() == [0, 0, 0, 1, 1]
    expected = pictures(noise(ord("a"))).get(np.array([0]))
    np.testing.assert_array_equal(batch["image"][0], expected["image"][0])
    assert train.fingerprint != test.fingerprint
    assert opened(folder, size=6)[0].get(np.array([1]))["image"].shape == (1, 6, 6, 3)


def test_a_picture_replaced_under_its_name_is_noticed(folder):
    before, held_out = opened(folder)
    name = folder / "train" / "dog" / "b.PNG"
    data = name.read_bytes()
    names = [s.fingerprint for s in (before, held_out)]
    changes = {"of another size": data + b"0", "of its size": data[:-1] + b"0"}
    for change, content in changes.items():
        name.write_bytes(content)
        train, test = opened(folder)
        assert train.fingerprint != names[0], change
        assert test.fingerprint == names[1]
    name.write_bytes(data)
    assert opened(folder)[0].fingerprint == names[0]


def test_files_of_a_large_folder_are_read_evenly(tmp_path):
    files = [(tmp_path / f"{i}.png", 0) for i in range(600)]
    for path, _ in files:
        path.write_bytes(b"one")
    first = FolderImages(files, 1).fingerprint
    found = []
    for number, (path, _) in enumerate(files[:30]):
        path.write_bytes(b"two")
        if FolderImages(files, 1).fingerprint != first:
            found.append(number)
        path.write_bytes(b"one")
    assert found == list(range(0, 30, 3))


def test_a_picture_that_is_gone_is_named(folder):
    train, _ = opened(folder)
    (folder / "train" / "cat" / "c.PNG").unlink()
    with pytest.raises(BadInput, match=r"cat/c\.PNG cannot be read"):
        _ = train.fingerprint


def test_a_folder_is_prepared_as_a_data_set_of_its_own(folder, tmp_path):
    home = tmp_path / "data"
    found = prepare_folder(str(folder), "my_pets", home)
    assert found.classes == ("cat", "dog")
    assert [path.name for path in home.iterdir() if path.name[0] != "."] == ["my_pets"]
    train, test = open_data(DataConfig(name="my_pets", dir=str(home)), WANTED)
    assert (len(train), len(test), train.classes) == (5, 3, 2)
    assert test.class_names == ("cat", "dog")
    for prepared, files in zip((train, test), opened(folder)):
        ids = np.arange(len(files))
        one, other = prepared.get(ids), files.get(ids)
        order = [np.lexsort(part["image"][:, :2, 0, 0].T) for part in (one, other)]
        for key in ("image", "label"):
            np.testing.assert_array_equal(one[key][order[0]], other[key][order[1]])


def test_data_sets_that_cannot_be_prepared(folder, tmp_path):
    home = tmp_path / "data"
    for name in ("My pets", "digits", "cifar10", ""):
        with pytest.raises(BadInput, match="cannot be the name"):
            prepare_folder(str(folder), name, home)
    with pytest.raises(BadInput, match="no images in"):
        prepare_folder(str(tmp_path / "none"), "pets", home)
    assert not home.exists()
    prepare_folder(str(folder), "pets", home)
    with pytest.raises(BadInput, match="--name pets_2"):
        prepare_folder(str(folder), "pets", home)
    (home / "file").write_text("")
    with pytest.raises(BadInput, match="neither read nor prepared"):
        prepare_folder(str(folder), "pets", home / "file")


def test_folders_that_cannot_be_used(folder, tmp_path):
    for path in ("", tmp_path / "none", folder / "train"):
        with pytest.raises(BadInput, match="FOLDER/train/CLASS"):
            opened(path)
    (folder / "val" / "bird").mkdir()
    with pytest.raises(BadInput, match="values   bird"):
        opened(folder)
    with pytest.raises(BadInput, match="the network reads none"):
        opened(folder, {"tokens": Feature(shape=(4,), upper_bound=3)})


def test_a_split_without_images(folder):
    for file in (folder / "val").rglob("*.PNG"):
        file.unlink()
    with pytest.raises(BadInput, match=r"no image in .*val"):
        opened(folder)
