"""Every finding is computed from the run: a branch for good, for bad, for missing."""

import re
from dataclasses import replace

import pytest

from jaxdist.core.plan import Plan
from jaxdist.launch.report import page, traffic
from jaxdist.launch.report.run_record import read_run_data


def say(finding, sample):
    return re.sub("</?b>", "", str(finding(read_run_data(sample.write()))))


def change(sample, **values):
    sample.run = replace(sample.run, **values)


def test_learning_names_the_accuracy_reached(sample):
    found = say(page.learning_caption, sample)
    assert found.startswith("Test accuracy reached 99.17 % after 30 epochs; training")


def test_learning_counts_steps_before_the_first_epoch_is_over(sample):
    sample.tests = [sample.tests[0] | {"epoch": 0, "step": 10}]
    assert "after 10 steps;" in say(page.learning_caption, sample)


def test_learning_counts_an_epoch_that_its_last_step_ends(sample):
    sample.lock["data"]["train"] = "640 samples, 0123"
    sample.tests = [sample.tests[0] | {"epoch": 0, "step": 10}]
    assert "after 1 epoch;" in say(page.learning_caption, sample)


def test_learning_names_the_best_where_the_end_is_clearly_worse(sample):
    sample.tests[-1] |= {"accuracy": 0.9, "correct": 324}
    found = say(page.learning_caption, sample)
    assert found.startswith(
        "Test accuracy ended at 90.00 %, below its best of 99.17 % at step"
    )


def test_learning_takes_noise_for_no_loss(sample):
    sample.tests[-1] |= {"accuracy": 356 / 360, "correct": 356}
    assert "reached 98.89 %" in say(page.learning_caption, sample)


def test_learning_says_that_the_loss_rose(sample):
    for row in sample.train:
        row["loss"] = float(row["step"])
    assert "training loss rose from 2.000 to 673.500" in say(
        page.learning_caption, sample
    )


def test_learning_says_where_the_loss_stopped_being_a_number(sample):
    for row in sample.train[40:]:
        row["loss"] = float("nan")
    assert say(page.learning_caption, sample) == (
        "The training loss is not finite from step 41 on, and not drawn."
    )


def test_learning_without_steps(sample):
    sample.train = sample.tests = []
    assert say(page.learning_caption, sample) == "No step was recorded."


def test_time_names_the_share_of_steps_and_the_next(sample):
    assert say(page.time_caption, sample) == (
        "Training steps took 69.0 % of 34.2 s, followed by compile with 23.1 %."
    )


def test_time_names_what_took_more_than_the_steps(sample):
    change(sample, phases_s={"compute": 2.0, "compile": 7.0, "other": 1.0})
    assert say(page.time_caption, sample) == (
        "Compile took 70.0 % of 10.0 s, more than the training steps (20.0 %)."
    )


def test_time_tells_of_waiting_for_input(sample):
    change(sample, phases_s={"compute": 6.0, "input": 2.0})
    assert say(page.time_caption, sample).endswith(
        "Steps spent 25.0 % of their time waiting for input."
    )


@pytest.mark.parametrize(
    ("phases", "found"),
    [
        ({}, "Time by phase was not recorded."),
        ({"compile": 7.0}, "No step finished in 7.0 s."),
        ({"compute": 7.0}, "Training steps took 100.0 % of 7.0 s."),
    ],
)
def test_time_where_something_is_missing(sample, phases, found):
    change(sample, phases_s=phases)
    assert say(page.time_caption, sample) == found


def test_bytes_name_the_largest_term(sample):
    assert say(traffic.traffic_caption, sample) == (
        "A device sends 644 kB a step; all-reduce, data x spatial_h is 85.1 % of it."
    )


def test_bytes_on_one_device(sample):
    sample.plan = Plan()
    change(sample, bytes_by_collective={})
    assert (
        say(traffic.traffic_caption, sample)
        == "No bytes move: the plan has one device."
    )


def test_bytes_and_memory_without_a_summary(sample):
    sample.run = None
    assert (
        say(traffic.traffic_caption, sample) == "Not counted: the run has no summary."
    )
    assert say(page.memory_caption, sample) == "Not measured: the run has no summary."


def test_memory_is_what_the_compiler_measured(sample):
    assert say(page.memory_caption, sample) == (
        "The compiled step needs 39.0 MB on each of 8 devices."
    )


def test_checkpoints_are_counted_and_resumes_are_named(sample):
    found = say(page.checkpoint_caption, sample)
    assert found == (
        "30 checkpoints paused training for 300 ms; the newest is from step 674. Never resumed."
    )
    change(sample, resumed_at=440)
    assert "Resumed at step 440; no step was repeated." in say(
        page.checkpoint_caption, sample
    )


def test_no_checkpoint(sample):
    sample.spans = []
    change(sample, checkpoint=None)
    assert say(page.checkpoint_caption, sample) == "No checkpoint was written."


def test_values_without_a_lock_file(sample):
    sample.lock = None
    assert "could be read" in say(page.config_caption, sample)
