"""`plan verify`: the first plans run in turn, ranked by what was seen of them."""

import json
from dataclasses import replace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.intervals import Interval
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.planning.verify import (
    Verification,
    VerificationQuery,
    VerifiedPlan,
    plans_to_verify,
    rank_compiled,
    rank_seen,
    recalibrate_by_steps,
    timer_row,
)
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import Prediction
from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan

OWN = """
import numpy as np
from flax import nnx
from jaxdist import object_reference
from jaxdist.input import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.layers import Linear
from jaxdist.models import ModelConfig


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(x.reshape(len(x), -1))


def samples():
    draw = np.random.default_rng(0)
    return tuple({"image": draw.random((n, 4, 4, 1)), "label": np.arange(n) % 2} for n in (64, 16))


def own() -> Experiment:
    return Experiment(name="own", model=ModelConfig(name=object_reference(Net)),
        data=DataConfig(name=object_reference(samples), batch=16, shift=0))
"""


def planned(step_s=1.0, microbatches=1, **mesh):
    plan = Plan(mesh=MeshShape(**mesh), microbatches=microbatches)
    prediction = Prediction(
        plan=plan.title,
        cluster="here",
        terms_s={"compute": step_s},
        memory_by_term={},
        memory_capacity=1,
        batch=8,
        interval=Interval(low=0.6, high=1.4, basis=""),
        provenance={},
    )
    return EvaluatedPlan(plan=plan, prediction=prediction)


def seen(rounds, **mesh):
    return VerifiedPlan(evaluated=planned(**mesh), rounds_s=tuple(rounds))


def test_plans_are_ordered_by_what_was_seen_and_those_that_cannot_run_are_last():
    slow, fast = seen([2.0, 2.1, 2.0], data=2), seen([1.0, 1.1, 1.0], fsdp=2)
    refused = VerifiedPlan(evaluated=planned(tensor=2), refusal="out of memory")
    assert rank_seen([refused, slow, fast]) == (fast, slow, refused)


def test_a_step_is_the_median_of_its_rounds():
    assert seen([4.0, 1.0, 2.0], data=2).step_s == 2
    assert seen([4.0, 1.0, 2.0, 3.0], data=2).step_s == 2.5
    assert seen([], data=2).step_s is None


def test_what_others_print_is_no_word_of_the_process_that_runs_plans():
    lines = ("{'loss': 1}\n", "{\n", "[1]\n", "\n", '{"round": 2}\n')
    assert [timer_row(line) for line in lines] == [{}, {}, {}, {}, {"round": 2}]


def test_plans_whose_rounds_cross_are_said_to_be_alike_with_what_would_tell_them():
    first = seen([1.00, 1.30, 1.00, 1.20, 1.10], data=2)
    near = seen([1.20, 1.30, 1.11, 1.10, 1.30], fsdp=2)
    same = seen([1.31, 1.00, 1.19, 1.00, 1.12], tensor=2)
    ties = {one.evaluated.plan.title: one.tie for one in rank_seen([first, near, same])}
    assert ties["data 2"] == ""
    rounds = int(ties["fsdp 2"].removeprefix("--rounds "))
    assert 5 < rounds <= 100
    assert "take either" in ties["tensor 2"]


def test_noise_that_all_plans_share_does_not_hide_a_difference():
    noise = [1.0, 3.0, 2.0, 5.0, 1.5]
    first, other = seen(noise, data=2), seen([1.02 * x for x in noise], fsdp=2)
    assert rank_seen([other, first]) == (first, other)


def test_each_mesh_is_tried_before_the_second_plan_of_one():
    plans = [
        planned(1.0, data=2, tensor=4),
        planned(1.1, 2, data=2, tensor=4),
        planned(1.2, fsdp=8),
    ]
    assert plans_to_verify(plans, 2) == [plans[0], plans[2]]
    assert plans_to_verify(plans, 3) == [plans[0], plans[2], plans[1]]


def test_plans_are_told_apart_by_intervals_or_by_how_pairs_were_ordered():
    """Intervals of 0.6 to 1.4 are apart from a ratio of 2.3 on."""
    first, near, far = (planned(s).prediction for s in (1.0, 1.5, 2.4))
    assert not near.is_slower_than(first)
    assert far.is_slower_than(first)
    # Errors that both have in common cancel, where pairs of plans have shown it.
    paired = [replace(one, order_ratio=1.3) for one in (first, near)]
    assert paired[1].is_slower_than(paired[0])
    assert not paired[1].is_slower_than(paired[0], ratio=1.2)


def test_data_parallelism_is_tried_where_it_may_be_the_fastest():
    ahead = [planned(1.0, tensor=8), planned(1.1, fsdp=8), planned(1.2, pipe=8)]
    alone = planned(1.3, data=8)
    assert plans_to_verify([*ahead, alone], 2) == [ahead[0], alone]
    late = planned(5.0, data=8)
    assert plans_to_verify([*ahead, late], 2) == ahead[:2]


def test_estimates_of_a_compiler_that_are_near_each_other_are_not_told_apart():
    first, near, far = (
        VerifiedPlan(evaluated=planned(**mesh), rounds_s=(step,))
        for mesh, step in (
            ({"data": 2}, 1.0),
            ({"fsdp": 2}, 1.05),
            ({"tensor": 2}, 2.0),
        )
    )
    ranked = rank_compiled([far, near, first])
    assert [one.step_s for one in ranked] == [1.0, 1.05, 2.0]
    assert [bool(one.tie) for one in ranked] == [False, True, False]
    # Without cycles, as of GPUs, the order stays that of the predictions.
    unknown = [
        VerifiedPlan(evaluated=planned(**mesh)) for mesh in ({"data": 2}, {"fsdp": 2})
    ]
    assert [one.evaluated for one in rank_compiled(unknown)] == [
        x.evaluated for x in unknown
    ]
    assert rank_compiled(unknown)[1].tie


@pytest.mark.parametrize("given", [{"verify": 1}, {"verify": 0}, {"rounds": 2}])
def test_numbers_that_compare_nothing_are_refused(given):
    with pytest.raises(BadInput, match="nothing to compare"):
        VerificationQuery(**given)


def test_plans_of_accelerators_are_not_run_on_a_cpu(job):
    words = ("digits", "--cluster", "abci", "--devices", "2", "--verify", "2")
    code, _, err = job.call("plan", *words)
    assert code == 2
    assert "cannot be tried here" in err
    assert "--target" in err


def test_plans_are_run_in_turn_and_the_first_one_seen_is_written(job, tmp_path):
    path, out = tmp_path / "own.py", tmp_path / "plan.json"
    path.write_text(OWN)
    words = (
        "--cluster",
        "cpu-fake",
        "--devices",
        "2",
        "--first",
        "2",
        "--rounds",
        "3",
    )
    better = tmp_path / "better.json"
    again = ("--json", "-o", out, "--recalibrate", better)
    code, text, err = job.call("plan", "verify", path, *words, *again)
    assert code == 0, err
    origin = load_cluster(str(better)).device.memory_bandwidth.origin
    assert origin.startswith("fitted: jaxdist plan verify, steps of ")
    found = json.loads(text)["verified"]
    assert found["machine"] == "2 devices (cpu, fake)"
    assert not found["compiled"]
    steps = [one["step_s"] for one in found["plans"]]
    assert steps == sorted(steps)
    assert all(len(one["rounds_s"]) == 3 for one in found["plans"])
    written = Plan.from_json(out.read_text())
    assert written == Plan.from_tree(found["plans"][0]["plan"])


def test_steps_that_were_seen_recalibrate_the_cluster():
    """Devices half as fast as was said, links as fast."""
    cluster, terms = load_cluster("testbed"), ("compute", "all-reduce over data")
    plans = []
    for devices, links in ((1.0, 0.2), (0.2, 1.0), (0.6, 0.6)):
        one = planned(data=2)
        said = replace(one.prediction, terms_s=dict(zip(terms, (devices, links))))
        plans.append(
            VerifiedPlan(
                evaluated=replace(one, prediction=said),
                rounds_s=(2 * devices + links,) * 3,
            )
        )
    refused = VerifiedPlan(evaluated=planned(tensor=2), refusal="out of memory")
    found = Verification(machine="here", is_compiled=False, plans=(*plans, refused))
    better = recalibrate_by_steps(cluster, found)
    for said, now, factor in (
        (cluster.device.memory_bandwidth, better.device.memory_bandwidth, 2.0),
        (cluster.levels[0].bandwidth, better.levels[0].bandwidth, 1.0),
    ):
        assert now.value == pytest.approx(said.value / factor)
    none = replace(found, plans=(refused,))
    with pytest.raises(BadInput, match="nothing to recalibrate"):
        recalibrate_by_steps(cluster, none)


def test_compiled_plans_recalibrate_nothing(job):
    words = ("digits", "--target", "tpu-v5e:2x2", "--recalibrate", "better.json")
    code, _, err = job.call("plan", "verify", *words)
    assert code == 2
    assert "compiled plans recalibrate nothing" in err


def test_a_table_that_decides_nothing_says_what_would(job, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    words = ("plan", path, "--cluster", "cpu-fake", "--devices", "2")
    code, text, _ = job.call(*words)
    assert code == 0
    assert "others cannot be told from the first" in text
    assert "2~" in text
    assert "errors of steps on other machines" in text
    assert "jaxdist plan verify" in text
    # No number of cpu-fake was measured.
    assert "jaxdist calibrate --quick --devices 2 -o cluster.json" in text
