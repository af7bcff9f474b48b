"""Every batch of a source of one's own is held against what was asked of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput, SourceFailedError
from jaxdist.input import Mixture, loader
from jaxdist.input.array_record import ArrayRecordSource
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data
from jaxdist.input.sample_validation import check_source
from jaxdist.input.sources import (
    ArraySource,
    DecodingSource,
    EpochVaryingSource,
)

DRAW = np.random.default_rng(0)
Y = np.arange(64) % 3
X = (DRAW.random((64, 4, 4, 1)) * 0.3 + Y[:, None, None, None] / 3).astype("float32")


class Whole:
    fingerprint = "v1"

    def __len__(self):
        return len(Y)

    def get(self, ids):
        return {"image": X[ids], "label": Y[ids]}


class Short(Whole):
    """Leaves out what it could not read."""

    def get(self, ids):
        kept = ids[~np.isin(ids, [7, 20, 33])]
        return {"image": X[kept], "label": Y[kept]}


class Lists(Whole):
    def get(self, ids):
        return {
            "image": [X[i].tolist() for i in ids],
            "label": [int(Y[i]) for i in ids],
        }


class Rows(Whole):
    def get(self, ids):
        return [{"image": X[i], "label": Y[i]} for i in ids]


class Table(Whole):
    columns = ("image", "label")

    def get(self, ids):
        import pyarrow as pa

        return pa.table({"value": X[ids, 0, 0, 0], "label": Y[ids]})


class Refilled(Whole):
    """Fills the same arrays for every batch, as readers in C do."""

    def __init__(self):
        self.image = np.empty((64, 4, 4, 1), np.float32)
        self.label = np.empty(64, np.int32)

    def get(self, ids):
        image, label = self.image[: len(ids)], self.label[: len(ids)]
        image[:], label[:] = X[ids], Y[ids]
        return {"image": image, "label": label}


class Texts(Whole):
    def get(self, ids):
        return {**super().get(ids), "name": np.array([f"scan {i}" for i in ids])}


class Unnamed:
    def __len__(self):
        return len(Y)

    def get(self, ids):
        return {"image": X[ids], "label": Y[ids]}


def test_a_row_that_is_missing_ends_the_run_with_its_ids():
    with loader(Short(), global_batch=16) as batches, pytest.raises(BadInput) as error:
        for _, _ in zip(range(4), batches):
            pass
    assert "the source Short: it did not give one row for each id" in str(error.value)
    assert "for 16 ids" in str(error.value)


def test_no_row_is_repeated_or_zero_in_a_mixture():
    ids = np.arange(64)
    mixed = Mixture({"one": (Short(), 1)})
    with pytest.raises(BadInput, match="one row for each id"):
        mixed.get(ids)


@pytest.mark.parametrize("kind", [Whole, Lists, Rows, Refilled])
def test_lists_rows_and_buffers_are_taken(kind):
    with (
        loader(Whole(), global_batch=16) as right,
        loader(kind(), global_batch=16, threads=1) as found,
    ):
        # All are held at once: a buffer that was filled again would show here.
        pairs = [(a, b) for _, a, b in zip(range(6), right, found)]
    for expected, batch in pairs:
        for key in ("image", "label", "id"):
            np.testing.assert_allclose(batch[key], expected[key])


def test_columns_of_arrow_are_taken():
    found = check_source(Table()).get(np.array([5, 3]))
    assert found["label"].tolist() == [2, 0]
    np.testing.assert_array_equal(found["value"], X[[5, 3], 0, 0, 0])


def test_text_is_refused_by_its_key():
    with pytest.raises(BadInput, match="name is no number"):
        loader(Texts(), global_batch=16)


def test_a_missing_fingerprint_is_told():
    with pytest.raises(BadInput, match="this source has no fingerprint"):
        _ = check_source(Unnamed()).fingerprint


def test_a_source_that_fails_is_refused_as_it_is_opened(tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Broken:\n"
        "    def __len__(self): return 3\n"
        "    def get(self, ids): return 1 / 0\n"
        "class Empty(Broken):\n"
        "    def __len__(self): return 0\n"
        "def broken(): return Broken(), Broken()\n"
        "def empty(): return Empty(), Broken()\n"
    )
    for name, said in (("broken", "ZeroDivisionError"), ("empty", "no sample")):
        with pytest.raises(BadInput, match=said):
            open_data(DataConfig(name=f"{tmp_path}/mine.py:{name}"))


def test_records_are_held_against_their_ids(tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter

    path = tmp_path / "a.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for i in range(9):
        writer.write(bytes([i]))
    writer.close()

    def decode(records):
        return {"x": np.array([r[0] for r in records if r[0] != 4])}

    source = check_source(ArrayRecordSource([path], decode))
    assert source.get(np.array([3, 2]))["x"].tolist() == [3, 2]
    with pytest.raises(BadInput, match="ids 3, 4"):
        source.get(np.array([3, 4]))


FAULTS = st.sampled_from(
    ["rows", "more", "keys", "shape", "dtype", "scalar", "none", "ragged", "right"]
)


@settings(max_examples=80)
@given(fault=FAULTS, as_rows=st.booleans(), count=st.integers(1, 5), data=st.data())
def test_what_a_source_gives_is_right_or_refused(fault, as_rows, count, data):
    ids = np.array(data.draw(st.permutations(range(8)))[:count])

    class Faulty(Whole):
        is_first = True

        def get(self, ids):
            arrays = super().get(ids)
            if self.is_first:
                self.is_first = False
                return arrays
            match fault:
                case "rows":
                    arrays = {k: x[1:] for k, x in arrays.items()}
                case "more":
                    arrays = {k: np.concatenate([x, x[:1]]) for k, x in arrays.items()}
                case "keys":
                    arrays = {"image": arrays["image"]}
                case "shape":
                    arrays["image"] = arrays["image"][:, :2]
                case "dtype":
                    arrays["label"] = arrays["label"] + 0.5
                case "scalar":
                    arrays["label"] = np.int32(1)
                case "none":
                    return None
                case "ragged":
                    arrays["image"] = [
                        *arrays["image"][:-1],
                        np.zeros(3),
                        [[1], [2, 3]],
                    ]
            if as_rows and fault not in ("scalar", "ragged"):
                return [
                    {key: x[i] for key, x in arrays.items()}
                    for i in range(len(arrays["image"]))
                ]
            return arrays

    source = check_source(Faulty())
    if fault == "right":
        np.testing.assert_array_equal(source.get(ids)["image"], X[ids])
        return
    with pytest.raises(BadInput) as refused:
        source.get(ids)
    assert all((refused.value.rule, refused.value.values, refused.value.remedy))
    assert "Faulty" in str(refused.value)


def test_a_source_of_this_package_is_as_it_is():
    source = ArraySource({"x": np.arange(3)})
    assert check_source(source) is source


COMMAND = """
import numpy as np
from flax import nnx

Y = np.arange(64) % 3
X = np.random.default_rng(0).random((64, 4)).astype("float32")

class Short:
    fingerprint = "v1"

    def __len__(self):
        return 64

    def get(self, ids):
        kept = ids[~np.isin(ids, [7, 20, 33])]
        return {"image": X[kept], "label": Y[kept]}

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(x)

def short():
    return Short(), Short()

class Late(Short):
    def get(self, ids):
        if 33 in ids:
            raise KeyError("scan 33")
        return {"image": X[ids], "label": Y[ids]}

def late():
    return Late(), {"image": X, "label": Y}

def words():
    return ({"image": X, "label": Y.astype(str)},) * 2

def imaginary():
    return ({"image": X + 1j, "label": Y},) * 2
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", "it did not give one row for each id"),
        ("imaginary", "numpy.stack([image.real, image.imag], -1)"),
    ],
)
def test_a_run_ends_where_its_samples_do(tmp_path, job, name, said):
    (tmp_path / "mine.py").write_text(COMMAND)
    code, out, found = job.call(
        *("train", "digits", f"data.name={tmp_path}/mine.py:{name}"),
        *(f"model.name={tmp_path}/mine.py:Net", "data.shift=0", "data.batch=16"),
        *("epochs=2", f"run.dir={tmp_path}/runs", "plan.mesh.data=1"),
        "plan.mesh.spatial_h=1",
    )
    assert code == 2, out
    assert said in found


@pytest.mark.parametrize("workers", ["data.workers=0", "data.workers=1"])
def test_a_source_that_raises_later_ends_the_run_with_its_line(tmp_path, job, workers):
    path = tmp_path / "mine.py"
    path.write_text(COMMAND)
    line = COMMAND.splitlines().index('            raise KeyError("scan 33")') + 1
    code, out, said = job.run(
        *("train", "digits", f"data.name={path}:late", workers, "data.batch=16"),
        *(f"model.name={path}:Net", "data.shift=0", "epochs=2", "plan.mesh.data=1"),
        *(f"run.dir={tmp_path}/runs", "plan.mesh.spatial_h=1"),
    )
    assert code == 1, out
    assert "Traceback" not in said
    assert "error: the source Late failed while the run read it" in said
    assert f"KeyError: 'scan 33', at {path}:{line}; ids " in said
    assert f"mend {path}:{line}" in said


def test_an_error_below_a_library_is_placed_at_the_line_that_called_it():
    class Parsed(Whole):
        def get(self, ids):
            return super().get(ids) if ids[0] == 0 else {"image": np.load("no such")}

    with pytest.raises(SourceFailedError) as failed:
        check_source(Parsed()).get(np.array([3, 4]))
    line = Parsed.get.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}; ids 3, 4" in failed.value.values
    assert "FileNotFoundError" in failed.value.values


def test_a_source_that_ends_its_iteration_does_not_end_the_run_quietly():
    class Ended(Whole):
        def get(self, ids):
            return next(iter(())) if ids[0] else super().get(ids)

    with pytest.raises(SourceFailedError, match="StopIteration"):
        check_source(Ended()).get(np.array([3, 4]))


class Packed:
    """Samples that are kept as bytes, and decoded when they are read."""

    def __init__(self, stored, wrong=()):
        self.stored, self.wrong, self.fingerprint = stored, wrong, "packed"

    def __len__(self):
        return len(self.stored)

    def get(self, ids):
        found = self.stored.get(ids)
        if set(self.wrong) & set(ids.tolist()):
            raise ValueError("truncated")
        return {"image": found["code"].astype(np.float32)[:, None], "label": ids % 2}

    def over(self, stored):
        return Packed(stored, self.wrong)


class Codes:
    """What is kept of them; sample 7 is not there."""

    fingerprint = "codes"

    def __len__(self):
        return 16

    def get(self, ids):
        if 7 in ids:
            raise OSError("no such file")
        return {"code": ids}


def test_a_source_that_decodes_and_raises_is_named_with_its_line_and_ids():
    source = check_source(Packed(Codes(), wrong=(3,)))
    assert source.get(np.array([1, 2]))["label"].tolist() == [1, 0]
    for read, ids, said in (
        (source, [2, 3], "ValueError: truncated"),
        (source.stored, [7], "OSError: no such file"),
        (source.over(Codes()), [3], "ValueError: truncated"),
    ):
        with pytest.raises(SourceFailedError) as failed:
            read.get(np.array(ids))
        assert said in failed.value.values
        assert f"ids {', '.join(map(str, ids))}" in failed.value.values
        assert __file__ in failed.value.values
        assert failed.value.remedy


def test_a_source_that_decodes_is_still_one_that_hosts_keep():
    source = check_source(Packed(Codes()))
    assert isinstance(source, DecodingSource)
    assert not isinstance(source, EpochVaryingSource)
    assert source.stored.get(np.array([1, 2]))["code"].tolist() == [1, 2]
    assert len(source.stored) == 16
