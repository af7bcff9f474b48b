"""Settings of how samples are read and kept: which of them go together."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data
from jaxdist.launch.config.resolve import resolve_config

NEARBY = ("plan.shuffle.exchange_fraction=0.1", "data.cache=memory")


REFUSED = {
    "drawn": (
        ("data.cache=memory",),
        "keep the samples of all",
        "plan.shuffle.exchange_fraction=0.1",
    ),
    "nowhere": ((*NEARBY[:1], "data.cache=disk"), "go together", "data.cache_dir="),
    "folder": ((*NEARBY, "data.cache_dir=x"), "go together", "data.cache=disk"),
    "nobody": (("data.exchange=peers",), "keep no samples", "data.cache=memory"),
    "workers": (("data.workers=-1",), "too small", "data.workers=0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_cannot_be_are_refused(case):
    words, says, remedy = REFUSED[case]
    with pytest.raises(BadInput, match=says) as caught:
        resolve_config("digits", words)
    assert remedy in str(caught.value)


def test_what_a_run_cannot_keep_is_said_before_anything_is_written(job, tmp_path):
    (tmp_path / "file").touch()
    where = f"run.dir={tmp_path / 'runs'}", f"data.dir={job.data}", NEARBY[0]
    disk = "data.cache=disk", f"data.cache_dir={tmp_path / 'file'}"
    asked = {
        "worker processes do not see": (NEARBY[1], "data.workers=2"),
        "remedy   data.cache_dir=FOLDER": disk,
    }
    for says, words in asked.items():
        code, _, err = job.call("train", "digits", *where, *words)
        assert code == 2
        assert says in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_threads_are_the_default():
    assert DataConfig().prefetch_workers == 1
    assert DataConfig(threads=3).prefetch_workers == 3
    many = DataConfig(workers=2, threads=3).prefetch_workers
    assert (many.count, many.threads) == (2, 3)


def test_a_size_that_nothing_reads_is_refused_where_it_is_typed(tmp_path):
    with pytest.raises(BadInput, match="have a size of their own") as caught:
        resolve_config("digits", ["data.size=8"])
    remedy = ("data.size=None", "or, of images, data.augment=crop:8")
    assert caught.value.remedy == remedy
    # A run that was stored with one is read as it was.
    open_data(DataConfig(name="digits", dir=str(tmp_path), size=8))


def test_the_size_of_an_experiments_own_images_is_not_that_of_yours():
    assert resolve_config("vessels").config.data.size == 24
    words = ["data.name=hdf5:scans.h5"]
    assert resolve_config("vessels", words).config.data.size is None
