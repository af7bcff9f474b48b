"""What hosts make ready of an experiment's samples, measured."""

import time
import warnings

import jax
import pytest
from jax.sharding import AxisType

from jaxdist.core.errors import JaxdistWarning
from jaxdist.input.registry import open_data
from jaxdist.launch.calibration.input_rate import measure_input_rate
from jaxdist.launch.config.resolve import resolve_config

SLOW_S = 1e-3
PIXELS = 4 * 16 * 16
"""Bytes of the image of a sample of `digits`."""


@pytest.fixture(scope="module")
def mesh():
    auto = (AxisType.Auto,)
    return jax.make_mesh((4,), ("data",), devices=jax.devices()[:4], axis_types=auto)


class Slow:
    """The samples of a source, a millisecond each."""

    def __init__(self, source):
        self._source = source

    def __len__(self):
        return len(self._source)

    def __getattr__(self, name):
        return getattr(self._source, name)

    def get(self, indices):
        time.sleep(SLOW_S * len(indices))
        return self._source.get(indices)


def test_samples_that_are_read_slowly_are_supplied_so(mesh, monkeypatch):
    config = resolve_config("digits", ["data.threads=1"]).config
    quick = measure_input_rate(config, mesh)

    def slowly(data, wanted):
        train, test = open_data(data, wanted)
        return Slow(train), test

    monkeypatch.setattr("jaxdist.input.registry.open_data", slowly)
    slow = measure_input_rate(config, mesh)
    # An image, its label and its number.
    assert slow < (PIXELS + 8) / SLOW_S < quick
    assert slow > (PIXELS + 8) / SLOW_S / 4


def test_a_batch_is_rounded_up_to_the_devices(mesh):
    words = ("data.batch=30", "plan.mesh.data=2", "plan.mesh.spatial_h=1")
    assert measure_input_rate(resolve_config("digits", words).config, mesh) > 0


def test_samples_that_nobody_has_are_a_remark(mesh, tmp_path):
    words = ["data.name=folder", f"data.path={tmp_path / 'none'}"]
    config = resolve_config("vgg16", words).config
    with pytest.warns(JaxdistWarning, match="input not measured"):
        assert measure_input_rate(config, mesh) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measure_input_rate(resolve_config("digits", []).config, mesh) is not None
