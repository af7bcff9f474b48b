"""The arithmetic of a prediction, term by term."""

from dataclasses import replace

import pytest

from jaxdist.core.pipe import Pipe
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.reduce import Reduce
from jaxdist.launch.described import Subject
from jaxdist.launch.resolve import resolve
from jaxdist.meshes.clusters.read import find
from jaxdist.oracle.predict import predict
from jaxdist.planner.explain import bytes_of, seconds_of


@pytest.fixture(scope="module")
def subject():
    return Subject(resolve("digits").config)


PLANS = {
    "gathers": Plan(mesh=MeshShape(data=2, fsdp=2)),
    "weights": Plan(mesh=MeshShape(data=2, tensor=2)),
    "packed": Plan(mesh=MeshShape(data=4), reduce=Reduce(via="int8")),
    "stages": Plan(
        mesh=MeshShape(pipe=2, data=2), microbatches=4, pipe=Pipe(schedule="gpipe")
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_lines_of_an_account_add_up_to_what_is_predicted(subject, plan):
    cluster, case = find("testbed"), subject.case(plan)
    made = predict(case, cluster)
    terms = list(seconds_of(case, cluster, made))
    whole = {term.name: term.value for term in terms if not term.name.startswith(" ")}
    assert whole == made.terms_s
    parts = 0.0
    for term in terms:
        if term.name.startswith(" "):
            parts += term.value
        elif ", " in term.name:
            assert parts == pytest.approx(term.value)
            parts = 0.0
        elif term.name == "compute" and not case.stages:
            assert case.microbatches * parts == pytest.approx(term.value)
            parts = 0.0
        else:
            parts = 0.0
    assert sum(term.value for term in bytes_of(made)) == made.memory_bytes


def test_each_step_of_a_named_algorithm_starts_a_message(subject):
    ring = Plan(mesh=MeshShape(data=4), reduce=Reduce(via="ring"))
    far = replace(ring, reduce=ring.reduce.by("recursive_doubling"))
    for plan, messages in ((ring, 6), (far, 2)):
        ledger = subject.case(plan).ledgers[0]
        rows = [row for row in ledger.rows if row.what == plan.reduce.via]
        assert sum(row.arrays for row in rows) == messages * len(rows)
