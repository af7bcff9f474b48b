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


@pytest.mark.parametrize(
    "factors", list(itertools.combinations(("model", "layout", "strategy"), 2)), ids=str
)
def test_the_cover_has_every_pair_of_the_hybrids(factors):
    def pairs(cells):
        return {tuple(getattr(cell, f) for f in factors) for cell in cells}

    hybrids = [cell for cell in matrix.whole() if cell.layout in matrix.HYBRIDS]
    assert pairs(COVER) == pairs(hybrids)


@pytest.mark.parametrize("model", matrix.MODELS)
def test_every_network_has_six_hybrids(model):
    assert len({cell.layout for cell in COVER if cell.model == model}) >= 6
