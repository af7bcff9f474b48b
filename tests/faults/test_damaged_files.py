"""Files as broken downloads and other encodings leave them: read, or named."""

import gzip
import io
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jaxdist.calibrate.table import read_csv
from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.text_encoding import decode_text
from jaxdist.core.validation import load_yaml_mapping
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data
from jaxdist.input.text import open_text
from jaxdist.launch.config.plan_file import load_plan_overrides

TEXT = "".join(f"line {i % 17} of the poem, ein Käfer.\r\n" for i in range(60))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_no_character(tmp_path, encoding):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode(encoding))
    train, _ = open_text(str(path), context=16)
    (tmp_path / "plain.txt").write_bytes(TEXT.encode())
    plain, _ = open_text(str(tmp_path / "plain.txt"), context=16)
    assert train.vocabulary == plain.vocabulary
    assert train.fingerprint == plain.fingerprint


def test_all_texts_of_a_folder_are_read_without_their_marks(tmp_path):
    (tmp_path / "0.txt").write_bytes(TEXT.encode("utf-8-sig"))
    (tmp_path / "1.TXT").write_bytes(TEXT.encode("utf-16"))
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "0.txt").write_bytes(b"\xff")
    (tmp_path / "notes.md").write_bytes(b"\xff")
    with pytest.warns(JaxdistWarning, match=r"other than \.txt: 2"):
        train, test = open_text(str(tmp_path), context=16)
    assert "\ufeff" not in train.vocabulary
    assert len(train) + len(test) == pytest.approx(2 * len(TEXT) / 16, abs=3)


@settings(max_examples=80)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff")),
    encoding=st.sampled_from(
        ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin1"]
    ),
    cut=st.integers(0, 3),
)
@example(text="\x80\u0100\u0100\u0100\u0100", encoding="utf-16-le", cut=0)
def test_text_is_what_was_saved_or_is_refused(text, encoding, cut):
    text = f"plain letters {text}" * 3
    data = text.encode(encoding, "replace")
    data = data[: len(data) - cut]
    try:
        found = decode_text(data, "my text.txt")
    except BadInput as error:
        refused = error
    else:
        # Letters of Latin-1 may be those of UTF-8 as well; a cut may fall between two.
        known = text.encode(encoding, "replace").decode(encoding)
        assert encoding == "latin1" or known.startswith(found)
        return
    assert refused.values
    # What it says is to be typed makes a text of it, where nothing was cut off.
    words = refused.remedy[0].split()
    if words[0] == "iconv" and not cut:
        assert data.decode(words[2])
        assert "\0" not in data.decode(words[2])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_tables_of_windows_programs_are_read(tmp_path, encoding):
    (tmp_path / "rows.csv").write_bytes("size,seconds\r\n8,0.5\r\n".encode(encoding))
    (tmp_path / "a.yaml").write_bytes("name: Käfer\r\n".encode(encoding))
    header, rows = read_csv(tmp_path / "rows.csv")
    assert (header, rows) == (["size", "seconds"], [{"size": "8", "seconds": "0.5"}])
    words = dict.fromkeys(("kind", "contents", "option", "doc_page"), "a cluster")
    assert load_yaml_mapping(tmp_path / "a.yaml", **words) == {"name": "Käfer"}
    plan = Plan(mesh=MeshShape(data=2))
    (tmp_path / "plan.json").write_bytes(plan.to_json().encode(encoding))
    assert "plan.mesh.data=2" in load_plan_overrides(str(tmp_path / "plan.json"))


def test_a_table_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"size,l\xe4nge\n8,1\n")
    with pytest.raises(BadInput, match="iconv -f latin1 -t utf-8"):
        read_csv(tmp_path / "rows.csv")


def idx(array):
    head = b"\0\0\x08" + bytes([array.ndim])
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def archive(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


IMAGES = np.tile((np.arange(28) ** 2 % 251).astype(np.uint8), (8, 28, 1))
LABELS = (np.arange(8) % 3).astype(np.uint8)
ARRAYS = {
    "arrays": archive(train_x=IMAGES, train_y=LABELS, test_x=IMAGES, test_y=LABELS),
    "numpy": archive(
        train_image=IMAGES, train_label=LABELS, test_image=IMAGES, test_label=LABELS
    ),
    "clips": archive(
        clip=np.zeros((4, 2, 4, 4, 1), np.uint8), caption=np.array(["a b"] * 4)
    ),
}


def write_idx(folder, damage=lambda data: data):
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            data = gzip.compress(idx(array))
            path = folder / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(
                damage(data) if (part, array.ndim) == ("train", 3) else data
            )


def damage_middle(data):
    return data[:30] + b"\xff" * 30 + data[60:]


@pytest.mark.parametrize(
    "damage",
    [
        damage_middle,
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"<!DOCTYPE html><title>404</title>",
        lambda data: gzip.compress(b"\0\0\x08\x04" + b"\xff" * 16),
    ],
)
def test_a_broken_download_is_named(tmp_path, damage):
    write_idx(tmp_path, damage)
    with pytest.raises(BadInput, match="download it again") as refused:
        open_data(DataConfig(name="arrays", path=str(tmp_path)))
    assert "train-images-idx3-ubyte.gz" in str(refused.value)


def test_a_mapped_array_that_was_cut_short_is_named(tmp_path):
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}_image.npy", np.zeros((20, 8, 8, 1), np.float32))
        np.save(tmp_path / f"{part}_label.npy", np.zeros(20, np.int32))
    path = tmp_path / "train_image.npy"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(BadInput, match=r"train_image\.npy"):
        open_data(DataConfig(name="numpy", path=str(tmp_path)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(ARRAYS)),
    start=st.integers(0, 3000),
    flips=st.binary(max_size=40),
    cut=st.one_of(st.none(), st.integers(0, 1500)),
)
def test_damaged_archives_are_read_or_named(tmp_path, name, start, flips, cut):
    whole = ARRAYS[name]
    start %= len(whole)
    data = (whole[:start] + flips + whole[start + len(flips) :])[:cut]
    path = tmp_path / "my.npz"
    path.write_bytes(data)
    try:
        train, _ = open_data(DataConfig(name=name, path=str(path)))
    except BadInput as error:
        refused = error
    else:
        # Every byte of an archive is checked: what is read is what was written.
        path.write_bytes(whole)
        right, _ = open_data(DataConfig(name=name, path=str(path)))
        for key, array in right.get(np.arange(2)).items():
            np.testing.assert_array_equal(train.get(np.arange(2))[key], array)
        return
    assert all((refused.rule, refused.values, refused.remedy))
    assert "my.npz" in str(refused)
