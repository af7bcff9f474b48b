"""`jaxdist data quality`: parts of the samples compared, before anything trains."""

import json

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.registry import open_data
from jaxdist.input.sources import ArraySource, sort_by_label
from jaxdist.launch.cli.main import main
from jaxdist.launch.config.resolve import resolve_config


def quality(capsys, *words):
    assert (
        main(["data", "quality", "digits", "data.order=label", *words, "--json"]) == 0
    )
    return json.loads(capsys.readouterr().out)


def test_a_larger_part_mixes_sooner(capsys):
    found = quality(capsys, "--exchange-fraction", "0.1", "--exchange-fraction", "0.3")
    assert list(found) == ["0.1", "0.3"]
    assert found["0.1"]["home"]["10"] > found["0.3"]["home"]["10"]
    assert found["0.1"]["distance"]["0"] == found["0.3"]["distance"]["0"] > 0.8
    assert found["0.1"]["forgotten"] > found["0.3"]["forgotten"]


def test_the_experiments_own_part_is_the_default(capsys):
    found = quality(
        capsys, "plan.shuffle.exchange_fraction=0.2", "plan.shuffle.partitions=8"
    )
    assert list(found) == ["0.2"]
    assert found["0.2"]["partitions"] == 8


def test_the_table_names_the_next_command(capsys):
    assert main(["data", "quality", "digits", "--exchange-fraction", "0.1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1,437 samples in 64 partitions of 22" in out
    assert "jaxdist train digits plan.shuffle.exchange_fraction=0.1" in out


def test_a_part_outside_zero_to_one_is_refused(capsys):
    assert main(["data", "quality", "digits", "--exchange-fraction", "2"]) == 2
    assert "from 0, nothing, to 1, every sample" in capsys.readouterr().err


def test_partitions_that_the_batch_cannot_fill_are_refused(capsys):
    words = ("plan.shuffle.exchange_fraction=0.1", "plan.shuffle.partitions=7")
    assert main(["data", "quality", "digits", *words]) == 2
    assert "plan.shuffle.partitions = 7" in capsys.readouterr().err


def test_samples_are_sorted_by_label():
    train, _ = open_data(resolve_config("digits", ["data.order=label"]).config.data)
    stored, _ = open_data(resolve_config("digits", []).config.data)
    label = train.get(np.arange(len(train)))["label"]
    assert (np.diff(label) >= 0).all()
    assert sorted(label) == sorted(stored.get(np.arange(len(stored)))["label"])
    assert train.fingerprint != stored.fingerprint


def test_samples_without_a_label_cannot_be_sorted():
    source = ArraySource({"tokens": np.zeros((3, 4), np.int32)})
    with pytest.raises(BadInput, match="cannot be sorted by label"):
        sort_by_label(source)
