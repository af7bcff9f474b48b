"""Copies of checkpoints in a store: whole or not there, and a lost disk costs nothing.

A folder stands for the store where the rules are tried; a real server, in the end.
"""

import shutil

import pytest
from s3_server import s3_bucket

from jaxdist.core.errors import BadInput, DiskFullError, StoreFailedError
from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.train.checkpoint import remote_copies
from jaxdist.train.checkpoint.best import read_best
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.checkpoint.orbax_store import OrbaxWriter
from jaxdist.train.checkpoint.remote_copies import RemoteCopies


@pytest.fixture
def address(tmp_path):
    return f"file://{tmp_path}/store/r"


def opened(folder, address, keep=3):
    return Checkpoints(folder, max_to_keep=keep, copies=RemoteCopies(address))


def save(kit, folder, address, *steps, keep=3, best=()):
    made = opened(folder, address, keep)
    for step in steps:
        note = BestCheckpoint(step=step, metric="accuracy", value=step / 10)
        made.save(kit.make_state(step), best=note if step in best else None)
    made.close()


def fetch(folder, address):
    made = opened(folder, address)
    skipped = made.fetch_newest()
    made.close()
    return made, [skip.text() for skip in skipped]


def test_a_lost_disk_costs_nothing(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 1, 2)
    shutil.rmtree(tmp_path / "c")
    made, skipped = fetch(tmp_path / "c", address)
    assert made.steps() == (2,)
    assert skipped == []
    restored = made.restore(None, kit.abstract(kit.make_state(2), 2))
    kit.assert_same_bits(restored.state, kit.make_state(2))
    assert sorted(x.name for x in (tmp_path / "c").iterdir()) == ["2"]


def test_as_many_copies_stay_as_checkpoints_and_the_best(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 1, 2, 3, 4, keep=2, best=[1])
    assert RemoteCopies(address).steps() == (1, 3, 4)
    store = tmp_path / "store" / "r" / "checkpoints"
    assert not [path for path in (store / "2").rglob("*") if path.is_file()]
    shutil.rmtree(tmp_path / "c")
    made, _ = fetch(tmp_path / "c", address)
    assert made.steps() == (1, 4)
    assert read_best(tmp_path / "c") == made.best()
    assert made.best().step == 1


def damage(folder):
    """Change bytes of a checkpoint's arrays."""
    # All of them: which of the files holds an array differs from save to save.
    for path in (folder / "state").rglob("d/*"):
        path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize("steps", [(2,), (1, 2)])
def test_a_damaged_checkpoint_is_replaced_by_its_copy(kit, tmp_path, address, steps):
    save(kit, tmp_path / "c", address, *steps)
    damage(tmp_path / "c" / "2")
    made = opened(tmp_path / "c", address)
    restored = made.restore_newest(kit.abstract(kit.make_state(2), 2))
    made.close()
    kit.assert_same_bits(restored.state, kit.make_state(2))
    (skip,) = restored.skipped_checkpoints
    assert skip.step == 2
    assert skip.reason.endswith("its copy is used instead")
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {*map(str, steps), "damaged-2"}


def test_where_the_copy_is_damaged_too_nothing_is_lost(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 2)
    damage(tmp_path / "c" / "2")
    damage(tmp_path / "store" / "r" / "checkpoints" / "2")
    made = opened(tmp_path / "c", address)
    with pytest.raises(BadInput, match="no checkpoint in"):
        made.restore_newest(kit.abstract(kit.make_state(2), 2))
    made.close()
    # A run would start from the beginning if it were moved.
    assert made.steps() == (2,)


def test_a_step_that_begins_like_another_keeps_its_copy(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 2, 20, 21, keep=2)
    shutil.rmtree(tmp_path / "c")
    made, skipped = fetch(tmp_path / "c", address)
    assert (made.steps(), skipped) == ((21,), [])
    (tmp_path / "store" / "r" / "checkpoints" / "21.json").unlink()
    shutil.rmtree(tmp_path / "c")
    made, skipped = fetch(tmp_path / "c", address)
    assert (made.steps(), skipped) == ((20,), [])


def test_a_state_that_turns_out_the_best_is_noted_in_the_store(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 1)
    save(kit, tmp_path / "c", address, 1, best=[1])
    assert RemoteCopies(address).best().step == 1


def test_a_copy_without_its_list_is_none(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 1, 2)
    (tmp_path / "store" / "r" / "checkpoints" / "2.json").unlink()
    shutil.rmtree(tmp_path / "c")
    made, skipped = fetch(tmp_path / "c", address)
    assert made.steps() == (1,)
    assert skipped == []


@pytest.mark.parametrize("content", [b"few", b"other bytes", None])
def test_a_damaged_copy_is_skipped_and_named(kit, tmp_path, address, content):
    save(kit, tmp_path / "c", address, 1, 2)
    store = tmp_path / "store" / "r" / "checkpoints"
    files = [x for x in (store / "2" / "state").rglob("*") if x.is_file()]
    largest = max(files, key=lambda x: x.stat().st_size)
    # Of another size, of the same with other bytes, or not there.
    size = largest.stat().st_size
    if content is None:
        largest.unlink()
    else:
        largest.write_bytes(content if len(content) == 3 else (content * size)[:size])
    shutil.rmtree(tmp_path / "c")
    made, skipped = fetch(tmp_path / "c", address)
    assert made.steps() == (1,)
    (line,) = skipped
    assert line.startswith("checkpoint 2 skipped: checkpoints/2/state/")
    assert line.endswith("not what was copied")
    assert sorted(x.name for x in (tmp_path / "c").iterdir()) == ["1"]


def test_a_list_that_is_damaged_is_none(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 1, 2)
    (tmp_path / "store" / "r" / "checkpoints" / "2.json").write_text('{"files": []}')
    shutil.rmtree(tmp_path / "c")
    made, skipped = fetch(tmp_path / "c", address)
    assert made.steps() == (1,)
    assert skipped == ["checkpoint 2 skipped: checkpoints/2.json, cannot be read"]


def test_a_list_that_cannot_be_read_is_no_damage(tmp_path, address, monkeypatch):
    """The store has failed: nothing is known of the copy."""

    class Broken:
        def read(self, key):
            return self

        def result(self):
            raise ValueError("UNAVAILABLE")

    copies = RemoteCopies(address)
    monkeypatch.setattr(RemoteCopies, "_store", Broken())
    with pytest.raises(StoreFailedError, match="UNAVAILABLE"):
        copies.download(2, tmp_path / "c")


def test_a_copy_of_what_was_damaged_is_skipped_for_an_older_one(kit, tmp_path, address):
    made = Checkpoints(tmp_path / "c")
    for step in (1, 2, 3):
        made.save(kit.make_state(step))
    made.close()
    for step in (2, 3):
        damage(tmp_path / "c" / str(step))
    copies = RemoteCopies(address)
    for step in (1, 2, 3):
        copies.begin_upload(tmp_path / "c" / str(step), keep=3, best=None)
        copies.wait()
    copies.close()
    made = opened(tmp_path / "d", address)
    made.fetch_newest()
    restored = made.restore_newest(kit.abstract(kit.make_state(1), 2))
    made.close()
    kit.assert_same_bits(restored.state, kit.make_state(1))
    assert [skip.step for skip in restored.skipped_checkpoints] == [3, 2]
    assert made.steps() == (1,)


def test_an_interrupted_download_leaves_nothing_that_is_taken(
    kit, tmp_path, address, monkeypatch
):
    save(kit, tmp_path / "c", address, 2)
    shutil.rmtree(tmp_path / "c")

    def stop(content):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(remote_copies._CopiedFile, "of", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch(tmp_path / "c", address)
    assert list((tmp_path / "c").iterdir()) == []
    assert fetch(tmp_path / "c", address)[0].steps() == (2,)


def test_what_was_not_copied_is_copied_at_the_next_start(kit, tmp_path, address):
    made = Checkpoints(tmp_path / "c")
    made.save(kit.make_state(5))
    made.close()
    fetch(tmp_path / "c", address)
    assert RemoteCopies(address).steps() == (5,)


def test_a_newer_checkpoint_on_disk_is_not_replaced(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 1)
    made = Checkpoints(tmp_path / "c")
    made.save(kit.make_state(3))
    made.close()
    made, _ = fetch(tmp_path / "c", address)
    assert made.steps() == (1, 3)
    assert RemoteCopies(address).steps() == (1, 3)


def test_the_same_step_of_another_state_takes_its_place(kit, tmp_path, address):
    save(kit, tmp_path / "c", address, 2)
    made = opened(tmp_path / "d", address)
    made.save(kit.make_state(2, seed=7))
    made.close()
    made, _ = fetch(tmp_path / "e", address)
    restored = made.restore(None, kit.abstract(kit.make_state(2), 1))
    kit.assert_same_bits(restored.state, kit.make_state(2, seed=7))


def test_files_larger_than_a_batch_go_one_by_one(kit, tmp_path, address, monkeypatch):
    monkeypatch.setattr(remote_copies, "_BATCH_BYTES", 1)
    save(kit, tmp_path / "c", address, 1)
    made, _ = fetch(tmp_path / "d", address)
    assert made.verify(1) is None


def test_a_store_that_fails_costs_the_copy_alone(kit, tmp_path, address):
    made = opened(tmp_path / "c", address)
    made.save(kit.make_state(1))
    made.wait()
    # A file where its folder was: nothing can be written below it.
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("")
    made.save(kit.make_state(2))
    with pytest.raises(StoreFailedError, match="failed"):
        made.wait()
    made.close()
    assert made.steps() == (1, 2)
    assert made.verify(2) is None


def test_what_cannot_be_written_to_disk_is_not_waited_for(kit, tmp_path, address):
    (tmp_path / "c").write_text("")
    made = opened(tmp_path / "c" / "d", address)
    with pytest.raises(BadInput, match="cannot be written"):
        made.save(kit.make_state(1))
    made.close()
    assert RemoteCopies(address).steps() == ()


def test_a_save_that_fails_later_is_not_copied(kit, tmp_path, address, monkeypatch):
    made = opened(tmp_path / "c", address)

    def fail(self):
        raise OSError("No space left on device")

    # The folder of an unfinished save never gets its name.
    monkeypatch.setattr(OrbaxWriter, "wait", fail)
    monkeypatch.setattr(OrbaxWriter, "start", lambda *args: None)
    made.save(kit.make_state(1))
    with pytest.raises(DiskFullError):
        made.wait()
    made.close()
    assert RemoteCopies(address).steps() == ()


def test_a_store_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        RemoteCopies(f"file://{tmp_path}/store/r").check(write=True)


def test_a_bucket_holds_them(kit, tmp_path, monkeypatch, capfd):
    with s3_bucket("jobs") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        address = "s3://jobs/runs/r"
        RemoteCopies(address).check(write=True)
        save(kit, tmp_path / "c", address, 1, 2, 3, keep=2)
        assert RemoteCopies(address).steps() == (2, 3)
        made, skipped = fetch(tmp_path / "d", address)
        assert (made.steps(), skipped) == ((3,), [])
        restored = made.restore(None, kit.abstract(kit.make_state(3), 2))
        kit.assert_same_bits(restored.state, kit.make_state(3))
        with pytest.raises(BadInput, match="cannot be written"):
            RemoteCopies("s3://nobody/runs/r").check(write=True)
    assert capfd.readouterr().err == ""
