"""Law 1 for every network in its tiny form: split or not, the step is the same."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import names, objective_for

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

DATA = dict(data=4)
HEIGHT = dict(spatial_h=2, tensor=2)
BOTH = dict(data=2, spatial_h=2, tensor=2)
PLANE = dict(data=2, spatial_h=2, spatial_w=2, tensor=2)
SPACE = dict(data=2, spatial_d=2, spatial_h=2, tensor=2)

SHRINK = ("alexnet", "alexnet_two_group", "inception_v3")
"""Networks whose windows without padding give fewer rows than their strides."""

IMAGES = [
    name for name in names() if "image" in objective_for(ModelConfig(name=name)).dtypes
]
SHORT = {name: DATA if name in SHRINK else BOTH for name in IMAGES} | {
    "cosmoflow": SPACE
}
LONG = [
    (name, axes)
    for name in IMAGES
    for axes in (DATA, HEIGHT, BOTH, PLANE)
    if axes != SHORT[name] and (axes == DATA or name not in SHRINK)
]


def tiny(name, **how):
    return ModelConfig(name=name, size="tiny", dropout=0.3, **how)


def title(value):
    return (
        " x ".join(f"{k} {n}" for k, n in value.items())
        if type(value) is dict
        else value
    )


@pytest.mark.parametrize(("name", "axes"), SHORT.items(), ids=title)
def test_one_layout(name, axes, assert_equal_one_device):
    assert_equal_one_device(tiny(name), axes, size=8)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "axes"), LONG, ids=title)
def test_other_layouts(name, axes, assert_equal_one_device):
    assert_equal_one_device(tiny(name), axes, size=8)


def test_auxiliary_head(assert_equal_one_device):
    assert_equal_one_device(tiny("googlenet", aux=True), BOTH, size=8)


@pytest.mark.slow
def test_auxiliary_head_of_five_by_five(assert_equal_one_device):
    assert_equal_one_device(tiny("inception_v3", aux=True), DATA, size=8)


@pytest.mark.parametrize("axes", [HEIGHT, BOTH, PLANE], ids=title)
@pytest.mark.parametrize("name", SHRINK)
def test_rows_that_do_not_divide_are_refused(name, axes, check_layout):
    with pytest.raises(BadInput, match="spatial_h is too fine") as caught:
        check_layout(tiny(name), axes)
    assert "conv1" in caught.value.values
