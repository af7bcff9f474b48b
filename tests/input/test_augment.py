"""Augmented samples depend on (seed, epoch, sample id, position), on nothing else."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.augment import _rotations, augment_batch
from jaxdist.input.augmentation import Augmentation, pixel_keys
from jaxdist.input.batch_assembly import EvalBatchAssembler, TrainBatchAssembler
from jaxdist.input.config import DataConfig
from jaxdist.input.device_feed import train_feed
from jaxdist.input.keyed_permutation import bounded_int, hash64
from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.input.registry import augmentation_of
from jaxdist.input.sample_validation import SampleSpec
from jaxdist.input.sources import ArraySource
from jaxdist.meshes.build import build_mesh

ALL = ["flip", "rotate90", "crop:4", "shift:2", "noise:0.1"]
DTYPES = {"image": "float32", "mask": "int32"}
IGNORED = {"mask": -100}


def pictures(ids, sides=(6, 5)):
    """A picture without zeros for each id, [n, *sides, 2], and which pixel is which."""
    size = 2 * int(np.prod(sides))
    start = 1 + size * np.asarray(ids, np.float32).reshape(-1, 1)
    image = (start + np.arange(size, dtype=np.float32)).reshape(-1, *sides, 2)
    return {"image": image, "mask": ((image[..., 0] - 1) / 2).astype(np.int32)}


def seen(words, ids, epochs, seed=0, **how):
    ids, epochs = np.asarray(ids, np.int32), np.asarray(epochs, np.int64)
    batch = pictures(ids, **how)
    return augment_batch(
        Augmentation.parse(words), batch, ids, epochs, seed=seed, ignored=IGNORED
    )


def equal(a, b):
    for key, array in a.items():
        np.testing.assert_array_equal(array, b[key])


@given(st.permutations(range(12)), st.integers(1, 12), st.integers(0, 3))
def test_the_batch_around_a_sample_does_not_matter(ids, count, epoch):
    everything = seen(ALL, range(12), [epoch] * 12)
    some = ids[:count]
    equal(seen(ALL, some, [epoch] * count), {k: x[some] for k, x in everything.items()})


@given(st.integers(1, 3), st.integers(0, 10**4), st.integers(0, 50))
def test_pixels_move_together_and_zeros_follow(shift, sample, epoch):
    # As `data.shift` has moved images since there are runs.
    key = hash64(0, 0x5348494654, [epoch], [sample])
    width = 2 * shift + 1
    down = int(bounded_int(width, key)[0]) - shift
    right = int(bounded_int(width, key << np.uint64(32))[0]) - shift
    expected = np.zeros((1, 6, 5, 2), np.float32)
    for row in range(6):
        for column in range(5):
            if 0 <= row - down < 6 and 0 <= column - right < 5:
                image = pictures([sample])["image"][0]
                expected[0, row, column] = image[row - down, column - right]
    found = seen([f"shift:{shift}"], [sample], [epoch])
    np.testing.assert_array_equal(found["image"], expected)
    assert ((found["mask"] == -100) == (expected[..., 0] == 0)).all()


@pytest.mark.parametrize("sides", [(6, 6), (6, 6, 6)])
@given(
    st.sets(st.sampled_from(["flip", "rotate90", "crop:5", "roll:3"]), min_size=1),
    st.integers(0, 10**4),
)
def test_masks_go_where_their_pixels_go(sides, words, sample):
    words = sorted(words)
    found = seen(words, [sample], [3], sides=sides)
    image, mask = found["image"][0], found["mask"][0]
    # A mask says which pixel of the sample is there, and the image says the same.
    np.testing.assert_array_equal((image[..., 0] - 1) / 2, mask)
    whole = pictures([sample], sides)["mask"][0]
    assert np.unique(mask).size == mask.size
    assert set(mask.flat) <= set(whole.flat)
    if "crop:5" not in words:
        assert set(mask.flat) == set(whole.flat)


@pytest.mark.parametrize(("dims", "count"), [((0, 1), 4), ((0, 1, 2), 24)])
def test_every_rotation_comes_and_none_is_a_mirror_image(dims, count):
    turns = set()
    for order, mirrored in _rotations(len(dims), dims):
        matrix = np.eye(len(dims))[list(order)]
        matrix[list(mirrored)] *= -1
        assert round(np.linalg.det(matrix)) == 1
        turns.add(matrix.tobytes())
    assert len(turns) == count
    ids = np.arange(40 * count)
    same = np.repeat(pictures([0], (2,) * len(dims))["image"], len(ids), 0)
    found = augment_batch(
        Augmentation(rotate90="*"),
        {"image": same},
        ids,
        0 * ids,
        seed=0,
        ignored={},
    )["image"]
    frequencies = np.unique(found.reshape(len(ids), -1), axis=0, return_counts=True)[1]
    assert len(frequencies) == count
    assert ((frequencies - 40) ** 2 / 40).sum() < 3 * count


def test_rotations_and_flips_of_named_dims_leave_others():
    found = seen(["rotate90:hw", "flip:w"], range(50), [0] * 50, sides=(3, 4, 4))
    planes = pictures(range(50), (3, 4, 4))["mask"].reshape(50, 3, -1)
    for plane in range(3):
        got = np.sort(found["mask"][:, plane].reshape(50, -1), 1)
        np.testing.assert_array_equal(got, np.sort(planes[:, plane], 1))


def test_every_offset_is_drawn_about_as_often():
    ids = np.arange(9000, dtype=np.int32)
    found = seen(["shift:1"], ids, np.zeros(9000, np.int64), seed=3, sides=(3, 3))
    place = pictures(ids, (3, 3))["mask"][:, 1, 1][:, None, None] == found["mask"]
    counts = np.bincount(place.reshape(9000, 9).argmax(1), minlength=9)
    assert counts.shape == (9,)
    assert ((counts - 1000) ** 2 / 1000).sum() < 40  # chi-squared, 8 degrees: p < 4e-6


@pytest.mark.parametrize("words", [[word] for word in ALL])
def test_epoch_and_seed_change_a_sample(words):
    ids = np.arange(64)
    how = {"sides": (6, 6)}
    first = seen(words, ids, [0] * 64, **how)["image"]
    assert (first != seen(words, ids, [1] * 64, **how)["image"]).any()
    assert (first != seen(words, ids, [0] * 64, seed=1, **how)["image"]).any()


def test_noise_is_normal_differs_by_position_and_leaves_masks():
    plain = pictures(range(4), (40, 41))
    found = seen(["noise:0.5"], range(4), [0] * 4, sides=(40, 41))
    noise = (found["image"] - plain["image"]).astype(np.float64)
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 0.5) < 0.02
    assert abs((np.abs(noise) < 0.5).mean() - 0.6827) < 0.02
    # Neighbours, channels and samples know nothing of each other.
    for a, b in (
        (noise[:, 1:], noise[:, :-1]),
        (noise[:, :, 1:], noise[:, :, :-1]),
        (noise[..., 0], noise[..., 1]),
        (noise[1:], noise[:-1]),
    ):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.05
    np.testing.assert_array_equal(found["mask"], plain["mask"])


def test_no_words_give_the_images_and_words_leave_them_alone():
    batch, ids = pictures(range(3), (6, 6)), np.arange(3, dtype=np.int32)
    kept = {key: array.copy() for key, array in batch.items()}
    epochs = np.zeros(3, np.int64)
    how = {"seed": 0, "ignored": IGNORED}
    same = augment_batch(Augmentation(), batch, ids, epochs, **how)
    assert same["image"] is batch["image"]
    moved = augment_batch(Augmentation.parse(ALL), batch, ids, epochs, **how)
    assert moved["image"].dtype == np.float32
    assert moved["image"].flags.c_contiguous
    assert moved["mask"].dtype == np.int32
    assert moved["image"].shape == (3, 4, 4, 2)
    equal(batch, kept)


def volumes():
    return ArraySource(pictures(range(10), (8, 8, 8)))


def taken(shardings, start, steps):
    with train_feed(
        volumes(),
        GlobalShuffleOrder(num_samples=10, batch=4, seed=7),
        shardings,
        dtypes=SampleSpec(dtypes=DTYPES, ignore_values=IGNORED),
        augmentation=Augmentation.parse(ALL),
        start=start,
    ) as feed:
        return [jax.tree.map(np.asarray, next(feed)) for _ in range(steps)]


@pytest.mark.parametrize(
    "axes",
    [
        dict(data=2, spatial_d=2, spatial_h=2),
        dict(spatial_d=2, spatial_h=2, spatial_w=2),
        dict(data=2, fsdp=2),
    ],
)
def test_layout_and_resumption_change_nothing(axes):
    def laid(axes):
        plan = Plan(mesh=MeshShape(**axes))
        mesh, rows = build_mesh(plan), plan.batch_axes
        dims = ("spatial_d", "spatial_h", "spatial_w")
        spec = {"image": (rows, *dims), "mask": (rows, *dims), "id": (rows,)}
        return {k: NamedSharding(mesh, PartitionSpec(*s)) for k, s in spec.items()}

    whole = taken(laid({}), 0, 7)
    for want, got in zip(whole, taken(laid(axes), 0, 7), strict=True):
        equal(got, want)
    for want, got in zip(whole[5:], taken(laid(axes), 5, 2), strict=True):
        equal(got, want)
    assembler = TrainBatchAssembler(
        source=volumes(),
        order=GlobalShuffleOrder(num_samples=10, batch=4, seed=7),
        augmentation=Augmentation.parse(ALL),
        dtypes=DTYPES,
        checks=SampleSpec(dtypes=DTYPES, ignore_values=IGNORED),
    )
    for rows in ([0], [3, 1], [2]):
        got = assembler(5, np.array(rows))
        equal(got, {k: x[rows] for k, x in whole[5].items()})


@pytest.mark.parametrize(
    ("words", "shape", "said"),
    [
        (["flop"], (8, 8, 1), "flip"),
        (["crop"], (8, 8, 1), "crop:32x64x64"),
        (["flip:x"], (8, 8, 1), "flip:hw"),
        (["noise:much"], (8, 8, 1), "noise:0.1"),
        (["flip", "flip:w"], (8, 8, 1), "flip twice"),
        (["shift:2", "roll:2"], (8, 8, 1), "roll:4"),
        (["rotate90"], (8, 6, 1), "crop:6,rotate90"),
        (["rotate90"], (4, 6, 6, 1), "rotate90:hw"),
        (["rotate90:h"], (8, 8, 1), "two of them"),
        (["flip:d"], (8, 8, 1), "dims of these images are h, w"),
        (["crop:9"], (8, 16, 1), "crop:8x9"),
        (["crop:4x4x4"], (8, 8, 1), "a number for each dim"),
        (["flip"], (8,), "are for images"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_can(words, shape, said):
    with pytest.raises(BadInput) as error:
        Augmentation.parse(words).output_shape(shape)
    assert said in str(error.value)


def test_what_has_a_number_for_each_pixel_moves_with_it():
    shapes = {"image": (8, 6, 1), "label": (), "depth": (8, 6), "target": (8,)}
    assert pixel_keys(shapes) == ("image", "depth")
    found = Augmentation(crop=(4,)).sample_shapes(shapes, {})
    assert found == {**shapes, "image": (4, 4, 1), "depth": (4, 4)}
    with pytest.raises(BadInput, match="into depth from outside"):
        Augmentation(shift=1).sample_shapes(shapes, {})
    assert Augmentation(shift=1).sample_shapes(shapes, {"depth": 0}) == shapes
    with pytest.raises(BadInput, match="without an image"):
        Augmentation(shift=1).sample_shapes({"tokens": (8,)}, {})


def test_the_older_key_is_a_word():
    config = DataConfig(shift=2, augment=("flip",))
    assert augmentation_of(config, volumes()) == Augmentation(flip="*", shift=2)
    with pytest.raises(BadInput, match="shift twice"):
        DataConfig(shift=2, augment=("shift:1",))


def test_an_evaluation_without_windows_sees_the_middle():
    source = ArraySource({**pictures(range(3), (8, 7)), "label": np.arange(3)})
    dtypes = {**DTYPES, "label": "int32"}
    how = {"source": source, "batch": 2, "dtypes": dtypes}
    whole, rows = EvalBatchAssembler(**how), np.arange(2)
    seen = EvalBatchAssembler(**how, crop=Augmentation(crop=(4,)))
    for step in range(2):
        want, got = whole(step, rows), seen(step, rows)
        for key, array in want.items():
            part = array[:, 2:6, 1:5] if key in ("image", "mask") else array
            np.testing.assert_array_equal(got[key], part)


def test_a_process_that_reads_a_part_sees_it_as_the_whole_is_seen():
    words = Augmentation.parse(["shift:1", "noise:0.1"])
    how = {
        "order": GlobalShuffleOrder(num_samples=10, batch=4, seed=7),
        "augmentation": words,
        "dtypes": DTYPES,
        "checks": SampleSpec(dtypes=DTYPES, ignore_values=IGNORED),
    }
    whole = TrainBatchAssembler(source=volumes(), **how)(3, np.arange(4))
    # A block of 4 x 8 x 3 voxels, read with the row around it that may move in.
    read = slice(3, 8), slice(0, 8), slice(1, 6)
    part = TrainBatchAssembler(
        source=volumes().slab({"image": (*read, slice(0, 2)), "mask": read}),
        image_start=(3, 0, 1, 0),
        whole_image=(8, 8, 8, 2),
        **how,
    )(3, np.arange(4))
    for key in DTYPES:
        got, want = part[key][:, 1:, :, 1:-1], whole[key][:, 4:, :, 2:5]
        np.testing.assert_array_equal(got, want)
