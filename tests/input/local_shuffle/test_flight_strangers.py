"""Peers and callers that are not what they should be: nothing but the token counts."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import flight

from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer
from jaxdist.input.local_shuffle.store import ArrayStore

LIKE = {"x": np.zeros((1, 2), np.float32)}
SECRET = "c0ffee" * 4


@pytest.fixture(scope="module")
def server():
    with PeerServer(ArrayStore(LIKE, 4), "127.0.0.1:0", SECRET) as serving:
        yield serving


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["ids", "token", "a"]), inner, max_size=3),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=20),
        JSON.map(lambda tree: json.dumps(tree).encode()),
        JSON.map(lambda ids: json.dumps({"token": SECRET, "ids": ids}).encode()),
        st.just(b"[" * 100_000),
        st.just(b"9" * 5000),
    )
)
def test_any_ticket_is_answered_or_refused_without_the_token(server, ticket):
    said = ""
    try:
        server.do_get(None, flight.Ticket(ticket))
    except flight.FlightError as refused:
        said = str(refused)
    assert SECRET not in said
    assert said or SECRET.encode() in ticket


COLUMNS = st.one_of(
    st.lists(st.integers(0, 2**63 - 1), max_size=3),
    st.lists(st.binary(max_size=9), max_size=3),
    st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=3),
    st.lists(st.floats(), max_size=3),
    st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=3),
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["id", "sum", "key x", "other"]), COLUMNS))
def test_a_reply_of_any_schema_gives_no_sample(columns):
    rows = min(map(len, columns.values()), default=0)
    table = pa.table({key: values[:rows] for key, values in columns.items()})
    client = PeerClient(addresses=[], example=LIKE, token=SECRET)
    assert client._verify(table, {1, 2, 3}) == {}


def test_the_token_is_in_no_text(server):
    client = PeerClient(addresses=[server.address], example=LIKE, token=SECRET)
    other = PeerClient(addresses=[server.address], example=LIKE, token="another")
    assert other.fetch(np.array([1]), np.array([0])) == {}
    assert other.failed_calls == 1
    for text in (repr(client), str(client), repr(server), str(server)):
        assert SECRET not in text
    client.close()
    other.close()
