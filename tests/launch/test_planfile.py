"""A plan file stands for every setting of the plan, none left out."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.outer import Outer
from jaxdist.core.pipe import Pipe
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.reduce import Reduce
from jaxdist.core.shuffle import Shuffle
from jaxdist.launch.planfile import plan_words
from jaxdist.launch.resolve import resolve

PLANS = {
    "the default": Plan(),
    "stages, compressed": Plan(
        mesh=MeshShape(pipe=2, data=2),
        pipe=Pipe(cuts=("block2",), schedule="gpipe"),
        reduce=Reduce(via="top_k", density=0.05, warm_up=3),
        remat=True,
    ),
    "replicas of stages": Plan(
        mesh=MeshShape(pipe=3), pipe=Pipe(schedule="pipedream", replicas=(2, 1))
    ),
    "images until a block, an idle axis": Plan(
        mesh=MeshShape(spatial_h=2, tensor=2, replica=2),
        spatial_until="head",
        spatial_then="samples",
        weights="filter",
        idle=("replica",),
    ),
    "an outer loop, ranks by part": Plan(
        mesh=MeshShape(replica=2, data=2),
        outer=Outer(every=50, momentum=0.8, fragments=2),
        reduce=Reduce(via="power", ranks=("block1:2", "head:3")),
        shuffle=Shuffle(q=0.1),
        zero=1,
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_file_is_every_value_of_the_plan(plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    words = plan_words(str(path))
    assert resolve("digits", list(words)).config.plan == plan


def test_what_is_no_plan_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(BadInput, match="cannot be read"):
        plan_words(str(path))
    path.write_text("[1")
    with pytest.raises(BadInput, match="is no plan"):
        plan_words(str(path))
