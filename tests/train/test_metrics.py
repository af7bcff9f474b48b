"""What a run reports: whole lines, once for each step, whatever happened before."""

import json
import time

import jax
import pytest

from jaxdist.train.metrics import Recorder


@pytest.fixture
def files(tmp_path):
    return tmp_path / "metrics.jsonl", tmp_path / "spans.jsonl"


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(recorder, *steps):
    for step in steps:
        recorder.log_step(step=step, epoch=0, loss=0.5, learning_rate=0.1, step_s=0.01)


def test_a_line_a_step(files):
    recorder = Recorder(*files, start_time=time.time())
    train(recorder, 1, 2)
    recorder.log_evaluation(step=2, epoch=0, metrics={"loss": 0.4, "accuracy": 0.9})
    recorder.close()
    assert [(r["kind"], r["step"]) for r in rows(files[0])] == [
        ("train", 1),
        ("train", 2),
        ("test", 2),
    ]


class Accelerator:
    """A device that counts its memory."""

    def __init__(self, peak):
        self._stats = {"bytes_in_use": 5, "peak_bytes_in_use": peak}

    def memory_stats(self):
        return self._stats


def test_a_line_has_the_memory_of_the_process_and_of_its_fullest_device(
    files, monkeypatch
):
    recorder = Recorder(*files, start_time=time.time())
    train(recorder, 1)
    devices = [Accelerator(7), Accelerator(9), *jax.local_devices()[:1]]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    train(recorder, 2)
    recorder.close()
    first, second = rows(files[0])
    assert first["host_memory_bytes"] > 10e6
    assert "device_memory_bytes" not in first
    assert second["device_memory_bytes"] == 9


def test_a_resumed_run_writes_its_steps_once(files):
    first = Recorder(*files, start_time=time.time())
    train(first, 1, 2, 3)
    first.close()
    with files[0].open("a") as torn:
        torn.write('{"kind": "train", "st')
    again = Recorder(*files, start_time=time.time())
    again.resume_from(2)
    train(again, 3, 4)
    again.close()
    assert [r["step"] for r in rows(files[0])] == [1, 2, 3, 4]


def test_a_finished_run_writes_its_last_evaluation_once(files):
    for attempt in range(2):
        recorder = Recorder(*files, start_time=time.time())
        recorder.resume_from(2 * attempt)
        recorder.log_evaluation(step=2, epoch=0, metrics={"loss": 0.4})
        recorder.close()
    assert [r["step"] for r in rows(files[0])] == [2]


def test_phases_add_up_to_the_wall_clock(files):
    started = time.time()
    recorder = Recorder(*files, start_time=started)
    with recorder.phase("input", 1):
        time.sleep(0.02)
    phases = recorder.phase_seconds()
    recorder.close()
    assert phases["input"] >= 0.02
    assert abs(sum(phases.values()) - (time.time() - started)) < 0.05


def test_a_long_phase_is_written_when_it_starts(files):
    recorder = Recorder(*files, start_time=time.time())
    with recorder.phase("compile", 0):
        begun = rows(files[1])
    recorder.close()
    assert [(r["name"], r["begin"]) for r in begun] == [("compile", True)]
    assert "seconds" in rows(files[1])[1]


def test_a_phase_left_behind_by_an_interrupt_says_nothing_later(files, monkeypatch):
    unraised = []
    monkeypatch.setattr("sys.unraisablehook", unraised.append)
    recorder = Recorder(*files, start_time=time.time())
    phase = recorder.phase("compute", 1)
    phase.__enter__()
    recorder.close()
    del phase
    assert not unraised
    assert not rows(files[1])
