"""The course of a run, and the loop that follows it."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import FatalError
from jaxdist.train.loop import fit
from jaxdist.train.metrics import Recorder
from jaxdist.train.optimizers import RunSchedule
from jaxdist.train.step_metrics import StepMetrics


def course(samples, batch, epochs, save_every=1000, skips=0):
    return RunSchedule(
        steps=-(-samples * epochs // batch),
        samples=samples,
        batch_size=batch,
        checkpoint_interval=save_every,
        max_consecutive_skips=skips,
    )


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 9))
def test_every_epoch_is_evaluated_once(samples, batch, epochs):
    run = course(samples, batch, epochs)
    tested = [step for step in range(1, run.steps + 1) if run.is_evaluation_step(step)]
    # A batch larger than the data set can finish several epochs in one step.
    ends = sorted({-(-samples * e // batch) for e in range(1, epochs + 1)})
    assert tested == ends


@given(st.integers(2, 50), st.integers(1, 60))
def test_the_last_step_is_always_saved(every, steps):
    run = RunSchedule(
        steps=steps, samples=10**9, batch_size=1, checkpoint_interval=every
    )
    saved = [step for step in range(1, steps + 1) if run.is_checkpoint_step(step)]
    assert saved[-1] == steps
    assert set(saved[:-1]) == set(range(every, steps, every))


def test_a_loss_that_is_no_number_ends_the_run(run):
    with pytest.raises(FatalError, match="step 3 is not finite: its loss is nan"):
        run(0, nan_at=(3,), samples=10, batch=2, epochs=1)


def test_skipped_steps_are_noted_and_have_no_loss(run, tmp_path):
    log, outcome = run(0, nan_at=(2, 3, 5), samples=12, batch=2, epochs=1, skips=2)
    assert [row[1] for row in log if row[0] == "loss"] == [1, 4, 6]
    lines = [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()]
    assert [row["step"] for row in lines if row["kind"] == "skip"] == [2, 3, 5]
    # The optimizer counts the steps it made, and its rate with them.
    rates = [row["learning_rate"] for row in lines if row["kind"] == "train"]
    assert rates == [0, 1, 2]
    trained = [row for row in lines if row["kind"] == "train"]
    assert [row.get("gradient_norm") for row in trained] == [2, None, 12]
    assert "gradient_norm" not in trained[1]
    assert outcome.state.step == 6


def test_too_many_skipped_steps_in_a_row_end_the_run(run):
    with pytest.raises(FatalError, match="step 4 is not finite: its loss is nan"):
        run(0, nan_at=(2, 3, 4), samples=12, batch=2, epochs=1, skips=2)


class Job:
    """A step that counts, and everyone who looks on, in one."""

    ready = False

    def __init__(self, nan_at, cut_at):
        self.log, self.nan_at, self.cut_at = [], nan_at, cut_at

    def run(self, number, state, batch):
        assert number == state.step + 1
        self.log.append(("step", batch))
        loss = np.nan if batch in self.nan_at else batch
        # Its squares overflow in step 4.
        norm = jnp.float32(np.inf if batch == 4 else 2 * loss)
        metrics = StepMetrics(loss=jnp.float32(loss), scalars={"gradient_norm": norm})
        return SimpleNamespace(step=state.step + 1, opt=None), metrics

    def prepare(self):
        self.ready = True
        self.log.append(("prepare",))

    def __call__(self, state):
        self.log.append(("test", state.step))
        if state.step == self.cut_at:
            return {}
        return {"loss": 0.1, "accuracy": 0.5, "correct": 1, "samples": 2}

    def is_best(self, metrics):
        return False

    def save(self, state, metrics):
        self.log.append(("save", state.step))

    def on_step(self, *, step, loss, step_s):
        self.log.append(("loss", step, loss))

    def on_evaluation(self, *, step, metrics):
        self.log.append(("score", step))


@pytest.fixture
def run(tmp_path):
    def go(start, nan_at=(), cut_at=None, batches=1000, owed=False, **how):
        job = Job(nan_at, cut_at)
        recorder = Recorder(tmp_path / "m", tmp_path / "s", time.time())
        outcome = fit(
            job,
            SimpleNamespace(step=start, opt=None),
            iter(range(start + 1, batches)),
            schedule=replace(course(**how), resume_evaluation=owed),
            evaluate=job,
            checkpointer=job,
            recorder=recorder,
            callback=job,
            learning_rates=lambda steps: steps,
        )
        recorder.close()
        return job.log, outcome

    return go


@pytest.mark.parametrize("ready", [True, False])
def test_input_that_devices_waited_for_is_told(tmp_path, ready):
    """They did where no loss was out still; before the first step they always do."""
    job, told = Job((), None), []
    run_step = job.run

    def runs(number, state, batch):
        state, metrics = run_step(number, state, batch)
        return state, StepMetrics(loss=Out(metrics.loss, ready))

    job.run = runs
    recorder = Recorder(
        tmp_path / "m",
        tmp_path / "s",
        time.time(),
        on_starvation=lambda: told.append(1),
    )
    fit(
        job,
        SimpleNamespace(step=0, opt=None),
        iter(range(1, 9)),
        schedule=course(samples=10, batch=2, epochs=1),
        evaluate=job,
        checkpointer=job,
        recorder=recorder,
        callback=job,
        learning_rates=lambda steps: steps,
    )
    recorder.close()
    # The first loss is awaited at once, so the second step finds none out either.
    assert len(told) == (5 if ready else 2)


class Out:
    """A loss that is out."""

    ndim = 0

    def __init__(self, loss, ready):
        self.loss, self.ready = loss, ready

    def is_ready(self):
        return self.ready

    def __float__(self):
        return float(self.loss)


def test_losses_come_late_but_all_before_what_follows(run):
    log, outcome = run(0, samples=10, batch=2, epochs=1, save_every=3)
    assert [row[1] for row in log if row[0] == "loss"] == [1, 2, 3, 4, 5]
    assert log.index(("save", 3)) > log.index(("loss", 3, 3.0))
    assert log.index(("test", 5)) > log.index(("loss", 5, 5.0))
    assert outcome.state.step == 5
    assert outcome.first_step_s > 0


def test_it_goes_on_where_it_was(run):
    log, _ = run(3, samples=10, batch=2, epochs=1)
    assert [row[1] for row in log if row[0] == "step"] == [4, 5]


@pytest.mark.parametrize("beyond", [6, 7])
def test_a_run_that_was_longer_before_is_only_evaluated(run, beyond):
    """Step 7 ends no epoch of the shorter course."""
    log, outcome = run(beyond, samples=10, batch=2, epochs=1)
    assert log == [("prepare",), ("test", beyond), ("score", beyond)]
    assert outcome.eval_metrics
    assert not outcome.stopped_early


def test_a_finished_run_is_only_evaluated(run):
    log, outcome = run(5, samples=10, batch=2, epochs=1)
    assert log == [("prepare",), ("test", 5), ("score", 5)]
    assert outcome.eval_metrics["correct"] == 1


def test_batches_that_end_early_end_the_run_at_a_step_that_is_saved(run):
    log, outcome = run(0, samples=10, batch=2, epochs=1, batches=4)
    assert [row for row in log if row[0] == "save"] == [("save", 3)]
    assert log.index(("save", 3)) > log.index(("loss", 3, 3.0))
    assert (outcome.stopped_early, outcome.eval_metrics, outcome.state.step) == (
        True,
        {},
        3,
    )


@pytest.mark.parametrize("batches", [1, 4])
def test_what_is_saved_already_or_not_new_is_not_saved_again(run, batches):
    log, outcome = run(0, samples=10, batch=2, epochs=1, batches=batches, save_every=3)
    assert [row for row in log if row[0] == "save"] == [("save", 3)] * (batches == 4)
    assert outcome.stopped_early


@pytest.mark.parametrize(("step", "epochs"), [(5, 2), (10, 2)])
def test_an_evaluation_that_is_cut_short_is_owed_to_the_next_attempt(run, step, epochs):
    how = dict(samples=10, batch=2, epochs=epochs)
    log, outcome = run(0, **how, cut_at=step, batches=step + 1)
    assert ("test", step) in log
    assert ("score", step) not in log
    assert ("save", step) in log
    assert (outcome.stopped_early, outcome.eval_metrics) == (True, {})
    again, outcome = run(step, **how, owed=True)
    kinds = [row[0] for row in again]
    assert [row for row in again if row[0] == "score"] == [
        ("score", s) for s in (5, 10) if s >= step
    ]
    assert "step" not in kinds or kinds.index("score") < kinds.index("step")
    assert not outcome.stopped_early


def test_a_run_that_is_done_was_not_stopped(run):
    assert not run(0, samples=10, batch=2, epochs=1)[1].stopped_early
