"""What processes say in the key-value store is data: what is damaged is left out."""

import dataclasses
import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.records import parse_record
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.training.monitor.stragglers import (
    ProcessStepTime,
    find_stragglers,
    parse_step_time,
)
from jaxdist.launch.training.monitor.watchdog import (
    ProcessHeartbeat,
    diagnose_hang,
    parse_heartbeat,
    unresponsive_text,
)

BEAT = ProcessHeartbeat(
    number=3, step=2, phase="input", beat=1, line="a.py:1", host="h"
)
TIME = ProcessStepTime(
    host="h", first=1, last=9, step_s=0.1, own_s={"input": 0.05}, ran_s={"computed": 1}
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


class Store:
    """A key-value store that holds some texts, as jax's does."""

    def __init__(self, texts):
        self.texts = texts

    def key_value_dir_get(self, folder):
        return [(f"{folder}/{key}", text) for key, text in self.texts.items()]


def texts_of(record):
    """Texts, near those of a record: a field is gone, or another value is in it."""
    tree = dataclasses.asdict(record)
    changed = st.tuples(st.sampled_from([*tree, "other"]), JSON).map(
        lambda change: json.dumps(tree | {change[0]: change[1]})
    )
    cut = st.integers(0, len(json.dumps(tree))).map(lambda at: json.dumps(tree)[:at])
    return st.text() | JSON.map(json.dumps) | changed | cut


def read(parse, texts):
    group = ProcessGroup(rank=0, size=2, kv_store=Store(texts))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", JaxdistWarning)
        found = group.published("word", parse)
        group.published("word", parse)
    assert set(found) <= {0, 1}
    assert all(each.category is JaxdistWarning for each in told)
    # One of a process, although it was read twice.
    assert len(found) + len(told) == len(texts)
    return found, group


@given(text=texts_of(BEAT), rank=st.sampled_from(["1", "7", "", "-1", "one"]))
def test_any_text_is_a_heartbeat_or_left_out(text, rank):
    mine = json.dumps(dataclasses.asdict(BEAT))
    found, group = read(parse_heartbeat, {"0": mine, rank: text})
    assert found[0] == BEAT
    assert unresponsive_text(found)
    assert diagnose_hang(found, found, group, BEAT, 1.0).text


@given(text=texts_of(TIME))
def test_any_text_is_a_step_time_or_left_out(text):
    mine = json.dumps(dataclasses.asdict(TIME))
    found, _ = read(parse_step_time, {"0": mine, "1": text})
    assert found[0] == TIME
    assert all(late.text for late in find_stragglers([*found.values()]))


def test_what_is_whole_is_read_back():
    texts = {"0": json.dumps(dataclasses.asdict(BEAT))}
    assert read(parse_heartbeat, texts)[0] == {0: BEAT}
    assert parse_record(ProcessStepTime, dataclasses.asdict(TIME), "a time") == TIME


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": True}, "step of a heartbeat is of another type"),
        ({"step": 10**30}, "a whole number of at most 64 bits"),
        ({"hots": "h"}, "did you mean host"),
        ({"host": None}, "host is a text"),
    ],
)
def test_a_wrong_field_is_named(change, said):
    with pytest.raises(BadInput, match=said):
        parse_heartbeat(dataclasses.asdict(BEAT) | change)
