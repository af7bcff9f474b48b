"""Vessels: trees that follow Murray's law, functions of the id alone."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input import vessels
from jaxdist.input.feature_spec import Feature
from jaxdist.input.vessels import VesselsSource, open_vessels

SHAPE = (24, 20, 16, 1)


def test_a_sample_is_a_function_of_its_id():
    source = VesselsSource(SHAPE, 20)
    whole = source.get(np.arange(20))
    for ids in ([3], [7, 2], [19, 0, 3]):
        found = VesselsSource(SHAPE, 20).get(np.array(ids))
        for key, array in found.items():
            np.testing.assert_array_equal(array, whole[key][ids])
    assert len({array.tobytes() for array in whole["image"]}) == 20


def test_held_out_samples_are_others():
    spec = {
        "image": Feature(shape=SHAPE),
        "mask": Feature(shape=SHAPE[:-1], upper_bound=2),
    }
    train, test = open_vessels(spec, 16)
    assert (len(train), len(test)) == (16, 2)
    seen = {x.tobytes() for x in train.get(np.arange(16))["image"]}
    assert not seen & {x.tobytes() for x in test.get(np.arange(2))["image"]}
    assert train.fingerprint != test.fingerprint


@pytest.mark.parametrize("shape", [SHAPE, (48, 40, 2)], ids=["volume", "image"])
def test_vessels_are_brighter_than_what_is_between_them(shape):
    found = VesselsSource(shape, 8).get(np.arange(8))
    assert found["image"].shape == (8, *shape)
    assert found["image"].dtype == np.float32
    assert found["mask"].dtype == np.int32
    for image, mask in zip(found["image"], found["mask"]):
        assert 0.005 < mask.mean() < 0.5
        contrast = image[mask == 1].mean() - image[mask == 0].mean()
        assert 0.25 < contrast < 0.65


def test_branchings_keep_murrays_law(monkeypatch):
    tubes = []
    monkeypatch.setattr(vessels, "_fill_tube", lambda mask, *tube: tubes.append(tube))
    for seed in range(8):
        mask = np.zeros((96, 96, 96), np.int32)
        vessels._draw_tree(np.random.default_rng(seed), mask)
    branchings = 0
    for _, end, radius in tubes:
        parts = [t for t in tubes if t[0] is end]
        if len(parts) != 2:  # a branch of it was too thin
            continue
        branchings += 1
        (_, end1, r1), (_, end2, r2) = parts
        assert r1**3 + r2**3 == pytest.approx(radius**3)
        one, two = (x - end for x in (end1, end2))
        between = one.dot(two) / np.linalg.norm(one) / np.linalg.norm(two)
        # Murray 1926: the angle between the branches.
        powers = radius**4 - r1**4 - r2**4
        assert between == pytest.approx(powers / (2 * r1**2 * r2**2), abs=1e-9)
    assert branchings > 20


def test_a_tube_has_the_voxels_within_its_radius():
    mask = np.zeros((12, 14, 10), np.int32)
    begin, end, radius = np.array([2.0, 3, 1]), np.array([9.5, 12, 7]), 2.3
    vessels._fill_tube(mask, begin, end, radius)
    for voxel in np.ndindex(mask.shape):
        along = end - begin
        share = np.clip((voxel - begin).dot(along) / along.dot(along), 0, 1)
        far = np.linalg.norm(voxel - begin - share * along)
        assert mask[voxel] == (far < radius)


def test_a_network_without_masks_is_refused():
    with pytest.raises(BadInput, match="reads none"):
        open_vessels({"image": Feature(shape=SHAPE)}, 8)
