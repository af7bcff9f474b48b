"""Every plan that is known for PipeDream's own profiles, from its files."""

import csv
from pathlib import Path

import pytest

from jaxdist.pipeline.pipedream_schedule import max_in_flight
from jaxdist.planner.stages.cost_conventions import COST_CONVENTIONS
from jaxdist.planner.stages.link_hierarchy import parse_link_levels
from jaxdist.planner.stages.memory import MemoryBudget
from jaxdist.planner.stages.partitioner import partition_graph
from jaxdist.planner.stages.pipedream_file import parse_pipedream_profile
from jaxdist.planner.stages.stage_plan import StageQuery

FILES = Path(__file__).parent / "pipedream"
ROWS = [
    row
    for row in csv.DictReader((FILES / "golden.csv").read_text().splitlines())
    if row["form"].startswith("order_")
]


def graph(name):
    return parse_pipedream_profile((FILES / f"{name}.txt").read_text(), name)


def ask(name, workers, rate, **how):
    on = parse_link_levels(workers, (), (rate,))
    return partition_graph(StageQuery(graph=graph(name), levels=on, **how))


def test_the_file_has_all_rows():
    assert len(ROWS) == 42


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda r: "-".join(list(r.values())[:4]).replace("order_", "")
)
def test_a_golden_row(row):
    form = COST_CONVENTIONS[row["form"].removeprefix("order_")]
    found = ask(
        row["model"], int(row["workers"]), float(row["bandwidth"]), cost_convention=form
    )
    assert found.seconds == pytest.approx(float(row["predicted_stage_s"]), rel=1e-5)
    assert found.config == row["config"]
    assert [s.after for s in found.stages] == [int(n) for n in row["splits"].split()]
    one, all_ = found.single_device_seconds, found.data_parallel_seconds
    assert one / found.seconds == pytest.approx(
        float(row["predicted_speedup"]), abs=1e-4
    )
    assert all_ / found.seconds == pytest.approx(
        float(row["predicted_over_dp"]), rel=1e-4
    )


@pytest.mark.parametrize(("workers", "config"), [(4, "3-1"), (8, "7-1"), (16, "15-1")])
def test_vgg16_fits_on_devices_of_16_gb(workers, config):
    found = ask("vgg16", workers, 1.25e9, memory_budget=MemoryBudget(limit=16e9))
    assert found.config == config
    assert max(stage.memory for stage in found.stages) <= 16e9


def test_the_authors_memory_test_leaves_out_the_minibatch_at_work():
    """All data parallelism is free in it, whatever the limit."""
    tight = MemoryBudget(limit=1.0, model="upstream")
    assert ask("vgg16", 4, 3.125e9, memory_budget=tight).config == "4"
    rows = [
        {"model": model, "limit": limit}
        for model in ("upstream", "in-flight")
        for limit in (16e9, 14e9)
    ]
    found = [
        ask("vgg16", 4, 1.25e9, memory_budget=MemoryBudget(**row)).config
        for row in rows
    ]
    splits = (
        ask("vgg16", 4, 1.25e9, memory_budget=MemoryBudget(limit=12e9)).stages[0].after
    )
    assert found == ["3-1", "3-1", "3-1", "3-1"]
    assert splits < 17


def test_straight_pipelines_have_a_device_a_stage():
    found = ask(
        "vgg16",
        4,
        1.25e9,
        straight_pipeline=True,
        cost_convention=COST_CONVENTIONS["sum"],
    )
    assert found.replicas == (1, 1, 1, 1)
    assert [stage.in_flight for stage in found.stages] == [4, 3, 2, 1]


@pytest.mark.parametrize("model", ["vgg16", "resnet50", "gnmt"])
def test_in_flight_is_what_the_executor_holds(model):
    found = ask(model, 16, 1.25e9, cost_convention=COST_CONVENTIONS["sum"])
    held = [max_in_flight(found.replicas, k) for k in range(len(found.stages))]
    assert [stage.in_flight for stage in found.stages] == held


def test_bytes_are_those_of_rings_and_cuts():
    found = ask("vgg16", 8, 1.25e9)
    by_name = {node.name: node for node in graph("vgg16").nodes}
    front, back = (
        sum(by_name[name].parameters for name in stage.nodes) for stage in found.stages
    )
    cut = by_name["node25"].output  # the pool in front of the last five convolutions
    assert found.sent_bytes == pytest.approx(2 * 6 / 7 * front + 2 * cut)
    assert found.data_parallel_bytes == pytest.approx(2 * 7 / 8 * (front + back))


def test_cuts_around_any_nodes_beat_an_order():
    """The shortcut of a residual block goes to a later stage than its main path."""
    order, any_ = (
        ask("resnet50", 8, 3.125e9, cost_convention=COST_CONVENTIONS["sum"], cuts=cuts)
        for cuts in ("order", "any")
    )
    assert (order.config, any_.config) == ("5-2-1", "5-2-1")
    assert order.seconds == pytest.approx(0.0641301, rel=1e-5)
    assert any_.seconds == pytest.approx(0.0630803, rel=1e-5)


@pytest.mark.parametrize("cuts", ["order", "any"])
def test_translation_on_two_tiers(cuts):
    on = parse_link_levels(8, (4, 2), (3.125e9, 1.25e9))
    found = partition_graph(StageQuery(graph=graph("gnmt"), levels=on, cuts=cuts))
    assert sum(found.replicas) == 8
    slowest = max(max(stage.seconds, stage.cut) for stage in found.stages)
    assert slowest == pytest.approx(found.seconds)
