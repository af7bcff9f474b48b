"""Spans become a trace that viewers open: microseconds, one track a phase."""

import json

import pytest

from jaxdist.core.run_record import PHASES
from jaxdist.launch.run_folder.folder import complete_spans
from jaxdist.launch.run_folder.perfetto_trace import (
    chrome_trace,
    write_trace,
)

SPANS = [
    {"name": "compile", "start": 1000.0, "step": 0, "begin": True},
    {"name": "compile", "start": 1000.0, "seconds": 7.9, "step": 0},
    {"name": "input", "start": 1007.9, "seconds": 0.001, "step": 1},
    {"name": "compute", "start": 1007.901, "seconds": 0.0364, "step": 1},
    {"name": "checkpoint", "start": 1007.94, "step": 1, "begin": True},
]


def slices(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def tracks(trace):
    return {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }


def test_times_are_microseconds_from_the_first_span():
    found = {e["name"]: (e["ts"], e["dur"]) for e in slices(chrome_trace(SPANS))}
    assert found["compile"] == (0, 7_900_000)
    assert found["compute"] == (7_901_000, 36_400)


def test_each_phase_has_one_named_track_in_the_order_of_phases():
    trace = chrome_trace(SPANS)
    named = tracks(trace)
    assert list(named.values()) == [p for p in PHASES if p in set(named.values())]
    assert all(named[event["tid"]] == event["name"] for event in slices(trace))


def test_an_unknown_name_gets_a_track_of_its_own():
    odd = [*SPANS, {"name": "exchange", "start": 1001.0, "seconds": 1.0, "step": 0}]
    assert list(tracks(chrome_trace(odd)).values())[-1] == "exchange"


def test_a_span_that_ended_is_drawn_once():
    assert [row["name"] for row in complete_spans(SPANS)].count("compile") == 1


def test_a_span_that_never_ended_lasts_to_the_last_moment_and_is_marked():
    spans = [{"name": "compile", "start": 5.0, "step": 0, "begin": True}]
    spans.append({"name": "input", "start": 5.0, "seconds": 2.0, "step": 0})
    compiled = next(e for e in slices(chrome_trace(spans)) if e["name"] == "compile")
    assert compiled["dur"] == 2_000_000
    assert compiled["args"] == {"step": 0, "unfinished": True}


def test_slices_are_in_the_order_of_time():
    times = [event["ts"] for event in slices(chrome_trace(reversed(SPANS)))]
    assert times == sorted(times)


@pytest.mark.parametrize("spans", [[], [{"kind": "odd"}]])
def test_a_run_without_spans_makes_an_empty_trace(spans):
    assert slices(chrome_trace(spans)) == []


def test_the_file_is_json_and_names_the_run(tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    lines = [json.dumps(span) for span in SPANS]
    (folder / "spans.jsonl").write_text("\n".join(lines) + '\n{"name": "com')
    trace = json.loads(write_trace(folder, tmp_path / "trace.json").read_text())
    assert len(slices(trace)) == 4
    assert trace["traceEvents"][0]["args"] == {"name": "digits"}
