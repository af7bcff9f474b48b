"""Law 1 over the matrix: every network in every split and hybrid equals one device."""

import itertools

import matrix
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.models.config import ModelConfig

pytestmark = [pytest.mark.laws, pytest.mark.timeout(900)]

COVER = matrix.cover()
REST = [cell for cell in matrix.whole() if cell not in COVER]


def title(cell):
    return cell.title


def hold(cell, assert_equal_one_device):
    config = ModelConfig(name=cell.model, size="tiny", dropout=0.3)
    assert_equal_one_device(config, cell.axes, size=8)


@pytest.mark.parametrize("cell", COVER, ids=title)
def test_cover(cell, assert_equal_one_device):
    hold(cell, assert_equal_one_device)


@pytest.mark.slow
@pytest.mark.parametrize("cell", REST, ids=title)
def test_rest(cell, assert_equal_one_device):
    hold(cell, assert_equal_one_device)


@pytest.mark.parametrize("cell", matrix.refused(), ids=title)
def test_axes_without_positions_are_refused(cell, check_layout):
    with pytest.raises(BadInput, match="nothing is split along spatial"):
        check_layout(ModelConfig(name=cell.model, size="tiny"), cell.axes, size=8)


HELD = {
    "network and strategy": lambda cell: {(cell.model, cell.strategy)},
    "strategy and hybrid": lambda cell: {(cell.layout, cell.strategy)},
    "network and two axes": lambda cell: {
        (cell.model, *pair)
        for pair in itertools.combinations(sorted(matrix.axes_of(cell.layout)), 2)
    },
}


@pytest.mark.parametrize("parts", HELD.values(), ids=HELD)
def test_the_cover_has_all_that_the_hybrids_have(parts):
    hybrids = [cell for cell in matrix.whole() if cell.layout in matrix.HYBRIDS]
    assert set().union(*map(parts, COVER)) == set().union(*map(parts, hybrids))


@pytest.mark.parametrize("model", matrix.MODELS)
def test_every_network_has_six_hybrids(model):
    assert len({cell.layout for cell in COVER if cell.model == model}) >= 6
