"""A link cut to a tenth while a run goes: noticed, planned for, and nothing is lost."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from jaxdist.launch.launchers.local import LocalLaunch
from jaxdist.launch.launchers.processes.restart import RestartPolicy, run_with_restarts
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.meshes.clusters.what_if import apply_overrides

pytestmark = [pytest.mark.system, pytest.mark.hosts, pytest.mark.timeout(900)]

COUNT, SLOW, RATE, LESS = 4, 2, "40mbit", "4mbit"
CUT_AT, AFTER, MOST_S = 28, 4, 400
WORDS = (
    *("digits", "precision=float64", "epochs=10", "plan.mesh.spatial_h=1"),
    *("checkpoint.every_steps=1000", "run.name=run", "run.straggler_interval=0"),
)


class Cut:
    """A run on hosts of which one has a tenth of its link from some step on."""

    def __init__(self, job, folder):
        self.job, self.folder = job, folder / "run"
        self.over, self.news, self.at = threading.Event(), [], 0
        net = [f"levels.net.bandwidth={RATE}"]
        (folder / "cluster.json").write_text(
            apply_overrides(load_cluster("testbed"), net).to_json()
        )
        where = f"run.dir={folder}", f"data.dir={job.data}"
        mesh = "plan.mesh.data=1", "plan.mesh.fsdp=4"
        asks = f"--cluster={folder / 'cluster.json'}", "--adapt"
        self.command = sys.executable, "-m", "jaxdist.launch", "train"
        self.command += (*WORDS, *where, *mesh, *asks)
        with EmulatedCluster(COUNT, RATE) as self.hosts:
            thread = threading.Thread(target=self.harms)
            thread.start()
            self.code = run_with_restarts(self.tasks, RestartPolicy())
            self.over.set()
            thread.join()

    def tasks(self, number):
        where = self.hosts.coordinator(number)
        command = self.command
        each = LocalLaunch(
            command=command,
            num_processes=COUNT,
            devices_per_process=1,
            coordinator=where,
        )
        return self.hosts.place_processes(each.process_specs(self.job.env))

    def harms(self):
        """Cut the link; end the run when it has trained under the new plan."""
        end = time.monotonic() + MOST_S
        while not self.over.wait(0.1):
            steps, self.news = self.steps(), self.lines("drift.jsonl")
            if not self.at and steps and steps[-1] >= CUT_AT:
                self.hosts.set_host_rate(SLOW, LESS)
                self.at = steps[-1]
            found = [row["step"] for row in self.news if row["kind"] == "plan"]
            if time.monotonic() > end or (found and steps[-1] > found[0] + AFTER + 4):
                for pid in self.hosts.pids(0)[:1]:
                    os.kill(pid, signal.SIGTERM)
                return

    def lines(self, name):
        path = self.folder / name
        return self.job.lines(path) if path.exists() else []

    def steps(self):
        return [r["step"] for r in self.lines("metrics.jsonl") if r["kind"] == "train"]

    def attempts(self):
        """The steps that each attempt has computed."""
        found = []
        for row in self.lines("spans.jsonl"):
            begins = row["name"] == "compile" and row["step"] == 0 and "begin" in row
            found += [set()] if begins else []
            found[-1] |= {row["step"]} - {0} if row["name"] == "compute" else set()
        return found

    def losses(self):
        rows = self.lines("metrics.jsonl")
        return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}


def test_a_cut_link_is_noticed_and_the_run_goes_on_with_nothing_lost(job, tmp_path):
    cut = Cut(job, tmp_path)
    assert cut.code == 75, cut.news  # it was ended here, not there
    drift, reason, plan = cut.news[:3]
    assert [drift["kind"], reason["kind"], plan["kind"]] == ["drift", "reason", "plan"]
    assert cut.at < drift["step"] <= cut.at + 20
    assert reason["why"].startswith(f"the link of rank {SLOW} carries")
    assert plan["stays"] == "fsdp 4" != plan["other"]
    assert (cut.folder / "adapted.json").exists()
    # Each step once, in the order of the run, whichever plan it was under.
    steps = cut.steps()
    assert steps == [*range(1, len(steps) + 1)]
    before, after = cut.attempts()
    assert before.isdisjoint(after)
    # The samples too: in float64 these are the losses of a run that nothing happened to.
    alone = f"run.dir={tmp_path / 'alone'}", f"data.dir={job.data}", "plan.mesh.data=1"
    code, _, err = job.run("train", *WORDS, *alone)
    assert code == 0, err
    rows = job.lines(tmp_path / "alone" / "run" / "metrics.jsonl")
    whole = {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}
    got = cut.losses()
    want = [whole[step] for step in got]
    np.testing.assert_allclose(list(got.values()), want, rtol=1e-9)
