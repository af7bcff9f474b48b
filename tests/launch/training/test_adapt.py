"""Runs that are looked at: what counts as a drift, as its cause, and as worth it."""

import json
import sys
import textwrap
from itertools import combinations

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.cli.main import main
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.training.adapt.diagnosis import (
    BASELINE_STEPS,
    DRIFT_WARMUP_STEPS,
    DRIFT_WINDOW,
    DriftDetector,
    diagnose,
)
from jaxdist.launch.training.adapt.link_probe import (
    LinkMeasurement,
    ProcessMeasurement,
    merge_measurements,
    round_robin_pairs,
)
from jaxdist.launch.training.adapt.plan_search import can_resume, decide_restart
from jaxdist.launch.training.job.setup import (
    SavedPlan,
    digest_cluster,
    read_saved_plan,
    write_saved_plan,
)
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.meshes.clusters.what_if import apply_overrides

STEADY = DRIFT_WARMUP_STEPS + BASELINE_STEPS


def drifts(seconds):
    pace = DriftDetector()
    found = [pace.seen(step, took) for step, took in enumerate(seconds, 1)]
    return [drift for drift in found if drift]


class TestPace:
    def test_a_longer_step_is_a_drift_only_many_times_in_a_row(self):
        steady = [0.1] * (STEADY + 20)
        longer = [0.3] * (DRIFT_WINDOW - 1)
        assert drifts([*steady, *longer, 0.1, *longer, 0.1]) == []
        (drift,) = drifts([*steady, *longer, 0.3])
        assert drift.since == STEADY + 21
        assert drift.step == STEADY + 20 + DRIFT_WINDOW
        assert drift.times == pytest.approx(3)

    def test_noise_and_slow_first_steps_are_none(self):
        noisy = [0.1, 0.12, 0.09, 0.2, 0.11] * 40
        assert drifts([3.0] * DRIFT_WARMUP_STEPS + noisy) == []

    def test_it_is_noticed_within_twenty_steps(self):
        (drift,) = drifts([0.1] * 100 + [1.0] * 40)
        assert drift.step <= 120

    def test_after_a_drift_the_new_steps_are_the_pace(self):
        seconds = [0.1] * 50 + [0.4] * 100 + [0.1] * 100
        first, second = drifts(seconds)
        assert (first.since, second.since) == (51, 151)
        assert (first.times, second.times) == pytest.approx((4, 0.25))

    def test_a_drift_without_a_cause_must_last_longer_the_next_time(self):
        pace = DriftDetector()
        pace.doubts()
        steady = [pace.seen(n, 0.1) for n in range(1, 41)]
        found = [pace.seen(n, 0.3) for n in range(41, 41 + 2 * DRIFT_WINDOW)]
        assert steady == [None] * 40
        assert [bool(drift) for drift in found] == [False] * (2 * DRIFT_WINDOW - 1) + [
            True
        ]


@pytest.mark.parametrize("count", range(1, 10))
def test_every_two_processes_meet_once_and_nobody_twice_in_a_round(count):
    found = round_robin_pairs(count)
    assert sorted(sum(found, ())) == list(combinations(range(count), 2))
    for pairs in found:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len({*ranks})


def test_a_pair_is_as_fast_as_the_slower_of_the_two_says():
    owns = [
        ProcessMeasurement(rounds=s, product=0.1)
        for s in ((0, 1, 2), (4, 0, 1), (2, 3, 0))
    ]
    rates = merge_measurements(owns, 12).rates
    assert rates == {(1, 2): 3, (0, 2): 4, (0, 1): 6}


def sounding(count=4, slow=None, product=None):
    rates = dict.fromkeys(combinations(range(count), 2), 20e6) | (slow or {})
    products = [0.01] * count
    for rank, took in (product or {}).items():
        products[rank] = took
    hosts = tuple(f"h{rank}" for rank in range(count))
    return LinkMeasurement(rates=rates, products=tuple(products), hosts=hosts)


def of_host(rank, rate, count=4):
    return {pair: rate for pair in combinations(range(count), 2) if rank in pair}


class TestReasons:
    cluster = load_cluster("testbed")

    def reason(self, now, cluster=None, each=1, before=None):
        return diagnose(before or sounding(), now, cluster or self.cluster, each)

    @pytest.mark.parametrize(
        ("slow", "who"),
        [
            (of_host(2, 2e6), "the link of rank 2 (h2) carries 2.00 MB/s, 20.0 MB/s"),
            # What others lose by chance is not the cause.
            (of_host(2, 2e6) | {(0, 1): 11e6}, "the link of rank 2 (h2) carries"),
            # Nor is it another one where a packet was sent again.
            (of_host(2, 5e6) | {(1, 2): 2e6}, "the link of rank 2 (h2) carries"),
            ({(1, 3): 2e6}, "the link between rank 1 (h1) and rank 3 (h3) carries"),
            (dict.fromkeys(combinations(range(4), 2), 2e6), "all links carry"),
            (of_host(0, 2e6) | of_host(1, 2e6), "5 of 6 links carry"),
        ],
    )
    def test_the_link_that_has_changed_is_named(self, slow, who):
        found = self.reason(sounding(slow=slow))
        assert found.text.startswith(who)
        assert found.changes == {"levels.net.bandwidth": pytest.approx(0.1)}

    def test_links_that_carry_half_are_told_from_those_that_have_not_changed(self):
        found = self.reason(sounding(slow=of_host(2, 9e6) | {(0, 1): 14e6}))
        assert found.text.startswith("the link of rank 2 (h2) carries 9.00 MB/s")

    def test_where_nothing_has_changed_there_is_no_reason(self):
        assert self.reason(sounding(slow={(0, 1): 14e6}, product={1: 0.02})) is None

    def test_the_cluster_has_the_numbers_of_now_and_says_so(self):
        found = self.reason(sounding(slow=of_host(2, 2e6)))
        net = found.applied(self.cluster).levels[0]
        assert net.bandwidth.value == pytest.approx(2.5e6)
        assert net.bandwidth.origin.startswith("measured: the link of rank 2")
        typed = apply_overrides(self.cluster, found.words(self.cluster))
        assert typed.levels[0].bandwidth.value == pytest.approx(2.5e6)

    def test_a_link_that_is_mended_is_faster_by_as_much(self):
        slow = sounding(slow=of_host(2, 2e6))
        found = self.reason(sounding(), before=slow)
        assert found.changes == {"levels.net.bandwidth": pytest.approx(10)}
        assert "the link of rank 2" in found.text

    def test_the_level_is_that_which_connects_the_two(self):
        cluster = load_cluster("dgx-a100")
        inner, outer = (level.name for level in cluster.levels[:2])
        size = cluster.sizes[0]
        each = size // 2  # ranks 0 and 1 are in one unit, 2 and 3 in the next
        found = self.reason(sounding(slow=of_host(2, 2e6)), cluster, each)
        assert set(found.changes) == {f"levels.{n}.bandwidth" for n in (inner, outer)}
        found = self.reason(sounding(slow={(0, 1): 2e6}), cluster, each)
        assert set(found.changes) == {f"levels.{inner}.bandwidth"}
        assert found.text.startswith("the link between rank 0 (h0) and rank 1 (h1)")

    def test_a_slow_host_makes_all_devices_as_slow(self):
        found = self.reason(sounding(product={3: 0.05}))
        assert found.text.startswith("rank 3 (h3) computes 0.2 times as fast")
        assert found.changes["device.flops.float32"] == pytest.approx(0.2)
        now = found.applied(self.cluster).device.flops["float32"].value
        assert now == pytest.approx(0.2 * self.cluster.device.flops["float32"].value)


@pytest.mark.parametrize(
    ("other", "left", "changes", "says"),
    [
        (("b", 1.0), 100, True, "b is predicted to be 2.00 times as fast as a"),
        (("b", 1.9), 10_000, False, "a stays: b would be 1.05 times as fast"),
        (("b", 1.0), 15, False, "a stays: b saves 22.5 s"),
        (("a", 2.0), 100, False, "a stays: it is the best one now, too"),
    ],
)
def test_a_plan_changes_where_it_saves_more_than_a_restart(other, left, changes, says):
    found = decide_restart(("a", 2.0), other, step_s=3.0, steps_left=left, restart_s=30)
    assert (found.changes, says in found.text) == (changes, True)


@pytest.mark.parametrize(
    ("words", "plan", "able"),
    [
        ((), Plan(mesh=MeshShape(fsdp=4)), True),
        (("model.norm=replica",), Plan(mesh=MeshShape(data=2, spatial_h=4)), False),
        (("model.norm=replica",), Plan(mesh=MeshShape(data=4)), True),
        (("plan.reduce.algorithm=int8",), Plan(mesh=MeshShape(data=4)), False),
    ],
)
def test_a_run_goes_on_only_under_plans_that_leave_it_what_it_is(words, plan, able):
    assert can_resume(resolve_config("digits", words).config, plan) == able


def test_what_is_kept_of_a_compressor_stays_along_data():
    config = resolve_config("digits", ["plan.reduce.algorithm=int8"]).config
    moved = config.plan.on(MeshShape(data=2, spatial_h=2, tensor=2))
    assert not can_resume(config, moved)
    assert can_resume(config, config.plan.on(MeshShape(data=4, tensor=2)))


def test_the_plan_is_found_again_for_the_same_cluster_and_as_many(tmp_path):
    path, cluster = tmp_path / "adapted.json", load_cluster("testbed")
    plan = Plan(mesh=MeshShape(pipe=4))
    wrote = SavedPlan(
        asked=digest_cluster(cluster),
        processes=4,
        step=45,
        why="a slow link",
        plan=json.loads(plan.to_json()),
        cluster=json.loads(cluster.to_json()),
    )
    assert read_saved_plan(path, cluster, 4) is None
    write_saved_plan(path, wrote)
    found = read_saved_plan(path, cluster, 4)
    assert (found.now, found.since) == (plan, cluster)
    assert read_saved_plan(path, cluster, 3) is None
    other = apply_overrides(cluster, ["levels.net.bandwidth=1gbit"])
    assert read_saved_plan(path, other, 4) is None


def test_nothing_is_adapted_to_without_a_cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--adapt"]) == 2
    assert "--cluster testbed --adapt" in capsys.readouterr().err


BEGIN = """
import os, sys, time
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.distributed import initialize

rank = initialize()
"""


def python(text):
    return sys.executable, "-c", BEGIN + textwrap.dedent(text)


def test_all_pause_before_the_same_step_each_time_that_one_asks():
    text = """
        from jaxdist.launch.distributed.process_group import StepAgreement

        due, mine, step = [], process_group(), 0
        with StepAgreement(mine, "pause", 3) as agreed:
            while len(due) < 3:
                step += 1
                due += [step] * (agreed.reached(step) == step)
                # Two steps may be under way, as where devices are handed them ahead.
                time.sleep(0.001 * (1 + rank))
                if step % 3 == 0:
                    mine.kv_store.wait_at_barrier(f"step-{step}", 60_000)
                if rank == 0 and due and step == due[-1] + 9:
                    agreed.request()
        print(due)
    """
    done = Loopback(3).run(python(text), timeout=60)
    (said,) = {each.stdout for each in done}
    first, second, third = json.loads(said)
    assert first == 3
    assert first + 9 < second < second + 9 < third


def test_all_sound_and_the_first_process_hears_of_all_pairs():
    text = """
        from jaxdist.launch.training.adapt.link_probe import LinkProbe

        sounder = LinkProbe(process_group(), 1 << 16)
        for _ in range(2):
            found = sounder()
            print(found and (sorted(found.rates), min(found.rates.values()) > 0))
    """
    # gloo writes a line of its own before.
    ends = [
        d.stdout.splitlines()[-2:] for d in Loopback(3).run(python(text), timeout=60)
    ]
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert ends == [[f"{(pairs, True)}"] * 2, ["None"] * 2, ["None"] * 2]


def test_who_adapts_is_started_again_and_not_for_a_failure(tmp_path, capfd):
    begun = tmp_path / "begun"
    text = f"""
        import os, time
        from pathlib import Path
        from jaxdist.launch.distributed.launcher_messages import (
            MessageKind, send_to_launcher
        )

        rank = int(os.environ["JAXDIST_RANK"])
        begun = Path({str(begun)!r})
        if rank == 1:
            time.sleep(60)
        with begun.open("a") as file:
            print("begun", file=file)
        if len(begun.read_text().split()) < 3:
            send_to_launcher(MessageKind.ADAPTING)
            os._exit(75)
        os._exit(3)
    """
    alone = sys.executable, "-c", textwrap.dedent(text)  # it has no need of the others
    code = main(["launch", "local", "-n", "2", "--", *alone])
    said = capfd.readouterr().err
    assert code == 3
    assert begun.read_text().split() == ["begun"] * 3
    assert "restart" not in said
    assert "adapting" not in said
