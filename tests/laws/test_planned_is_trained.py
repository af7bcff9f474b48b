"""What `plan` ranks is what `train` takes, of every experiment: one check for both."""

import numpy as np
import pytest

from jaxdist.launch.config.experiment import experiment_names
from jaxdist.launch.config.plan_file import plan_to_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.layout_search import PlanQuery, search_layouts
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.launch.training.job.job import make_job
from jaxdist.models.registry import objective_for

pytestmark = pytest.mark.laws

FIRST = 12
"""Plans of a ranking that are held against the check of a run, 4 in `make laws`."""
BATCH = 24


class Blank:
    """Samples of zeros in the shapes that a network is made for."""

    def __init__(self, config):
        wanted, features = objective_for(config.model).dtypes, feature_spec(config)
        self._shapes = {key: features[key].shape for key in wanted}
        self._dtypes = wanted

    def __len__(self):
        return 10 * BATCH

    def get(self, ids):
        return {
            key: np.zeros((len(ids), *shape), self._dtypes[key])
            for key, shape in self._shapes.items()
        }


def cells():
    deep = ("googlenet", "inception_v3", "resnet152", "resnet50")
    like_others = ("alexnet_two_group", "fashion_mnist", "vgg16")
    for name in experiment_names():
        for devices in (6, 8):
            slow = name in (*deep, *like_others) or devices == 8
            count, marks = (FIRST, [pytest.mark.slow]) if slow else (4, [])
            yield pytest.param(name, devices, count, marks=marks)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("experiment", "devices", "count"), list(cells()))
def test_a_run_takes_the_plans_that_are_ranked(experiment, devices, count):
    words = ("model.size=tiny", f"data.batch={BATCH}", "data.context=8")
    query = PlanQuery(
        experiment=experiment,
        overrides=words,
        cluster="cpu-fake",
        devices=(devices,),
        memory="100GB",
    )
    found = search_layouts(query).ranking.plans[:count]
    assert found
    for one in found:
        # As `train --plan` reads it, and on devices that are there.
        typed = [*plan_to_overrides(one.plan), *words]
        config = resolve_config(experiment, typed).config
        assert config.plan == one.plan
        assert make_job(config, one.plan, Blank(config)).plan == one.plan
