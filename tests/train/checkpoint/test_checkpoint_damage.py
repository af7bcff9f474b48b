"""A damaged checkpoint is skipped, named and moved aside; it is never used."""

import json
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.state import TrainState


def numbers(step):
    rng = np.random.default_rng(step)
    params = {
        "stem": {"kernel": jnp.asarray(rng.normal(size=(64, 16)), jnp.float32)},
        "head": {"kernel": jnp.asarray(rng.normal(size=(16, 16)), jnp.float32)},
    }
    return TrainState(step=jnp.int32(step), params=params, stats={}, opt=())


@pytest.fixture(scope="module")
def saved(tmp_path_factory, kit):
    """Checkpoints 1 and 2, saved once and copied for every test."""
    folder = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(folder)
    for step in (1, 2):
        checkpoints.save(kit.placed(numbers(step), 4))
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


def harm_numbers(folder, step, harm):
    """Harm the largest data file that matters (Orbax leaves superseded ones as well)."""
    files = [p for p in (folder / str(step)).rglob("d/*") if p.is_file()]
    for path in sorted(files, key=lambda p: p.stat().st_size, reverse=True):
        content = path.read_bytes()
        harm(path)
        if reader.find_corruption(folder / str(step)) is not None:
            return
        path.write_bytes(content)
    raise AssertionError("no file of the checkpoint matters")


def restore(folder, kit, count=2):
    checkpoints = Checkpoints(folder)
    try:
        return checkpoints.restore_newest(kit.abstract(numbers(0), count))
    finally:
        checkpoints.close()


@pytest.mark.parametrize("harm", [flip, cut, empty, remove])
def test_the_newest_verified_one_is_used_and_the_leaf_is_named(folder, kit, harm):
    harm_numbers(folder, 2, harm)
    restored = restore(folder, kit)
    assert restored.step == 1
    kit.assert_same_bits(restored.state, numbers(1))
    (skipped,) = restored.skipped_checkpoints
    assert skipped.step == 2
    assert re.match(
        r"(step|params/(head|stem)/kernel), (checksum [0-9a-f]{8} instead of [0-9a-f]{8}|cannot be read)$",
        skipped.reason,
    )
    assert skipped.text() == f"checkpoint 2 skipped: {skipped.reason}"


def test_a_changed_number_is_named_with_both_checksums(folder, kit, tmp_path):
    """What bad memory on the way to the disk does: whole files, wrong content."""
    other = numbers(2)
    other.params["stem"]["kernel"] = other.params["stem"]["kernel"].at[3, 3].add(1)
    elsewhere = Checkpoints(tmp_path / "other")
    elsewhere.save(kit.placed(other, 4))
    elsewhere.close()
    shutil.rmtree(folder / "2" / "state")
    shutil.copytree(tmp_path / "other" / "2" / "state", folder / "2" / "state")
    was = reader.read_manifest(folder / "2").leaves["params/stem/kernel"].fingerprint
    now = (
        reader.read_manifest(tmp_path / "other" / "2")
        .leaves["params/stem/kernel"]
        .fingerprint
    )
    (skipped,) = restore(folder, kit).skipped_checkpoints
    assert skipped.reason == f"params/stem/kernel, checksum {now} instead of {was}"


@pytest.mark.parametrize("harm", [flip, cut, empty, remove])
def test_harm_to_any_file_is_found_or_harmless(saved, kit, tmp_path, harm):
    """Restore gives the very bits of step 2, or says so and gives those of step 1."""
    for number, path in enumerate(
        p for p in sorted((saved / "2").rglob("*")) if p.is_file()
    ):
        folder = shutil.copytree(saved, tmp_path / str(number))
        harm(folder / path.relative_to(saved))
        restored = restore(folder, kit)
        assert restored.step == (1 if restored.skipped_checkpoints else 2), path
        kit.assert_same_bits(restored.state, numbers(restored.step))
        if not restored.skipped_checkpoints:
            assert reader.find_corruption(folder / "2") is None


def test_notes_cannot_be_changed_unseen(folder, kit):
    path = folder / "2" / "notes" / "metadata"
    sealed = json.loads(path.read_text())
    sealed["notes"]["about"]["model"] = "another"
    path.write_text(json.dumps(sealed))
    (skipped,) = restore(folder, kit).skipped_checkpoints
    assert skipped.reason == "notes, changed since they were written"


def test_a_checkpoint_under_another_step_is_not_that_step(folder, kit):
    shutil.copytree(folder / "1", folder / "5")
    restored = restore(folder, kit)
    assert (restored.step, restored.skipped_checkpoints[0].reason) == (
        2,
        "notes, of step 1",
    )


def test_a_damaged_one_is_kept_aside_and_its_step_saved_again(folder, kit):
    for again in range(2):
        harm_numbers(folder, 2, flip)
        checkpoints = Checkpoints(folder)
        assert checkpoints.restore_newest(kit.abstract(numbers(0), 2)).step == 1
        assert checkpoints.steps() == (1,)
        assert len(reader.list_quarantined(folder)) == again + 1
        assert checkpoints.save(numbers(2)) is True
        restored = checkpoints.restore_newest(kit.abstract(numbers(0), 2))
        kit.assert_same_bits(restored.state, numbers(2))
        checkpoints.close()
    names = [path.name for path in reader.list_quarantined(folder)]
    assert names == ["damaged-2", "damaged-2-2"]


def test_a_step_whose_notes_are_damaged_can_be_saved_without_a_restore(folder, kit):
    cut(folder / "2" / "notes" / "metadata")
    checkpoints = Checkpoints(folder)
    assert checkpoints.save(numbers(2)) is True
    checkpoints.close()
    assert restore(folder, kit).step == 2
    assert [path.name for path in reader.list_quarantined(folder)] == ["damaged-2"]


def test_where_all_are_damaged_nothing_is_moved_and_all_are_named(folder, kit):
    for step in (1, 2):
        harm_numbers(folder, step, empty)
    with pytest.raises(BadInput, match="can be used") as refused:
        restore(folder, kit)
    assert re.search(r"2: .*; 1: ", refused.value.values)
    assert reader.list_steps(folder) == (1, 2)


def test_one_that_was_asked_for_is_refused_and_not_moved(folder, kit):
    harm_numbers(folder, 2, flip)
    checkpoints = Checkpoints(folder)
    with pytest.raises(BadInput, match=r"checkpoint 2 .* is damaged") as refused:
        checkpoints.restore(2, kit.abstract(numbers(0), 2))
    assert refused.value.remedy == ("--checkpoint 1",)
    assert checkpoints.verify(2) is not None
    assert checkpoints.verify(1) is None
    assert checkpoints.steps() == (1, 2)
    checkpoints.close()


def test_damage_prints_nothing(folder, kit, capfd):
    harm_numbers(folder, 2, remove)
    assert restore(folder, kit).skipped_checkpoints
    assert reader.find_corruption(folder / "1") is None
    assert capfd.readouterr() == ("", "")
