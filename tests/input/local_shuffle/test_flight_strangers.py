"""Peers and callers that are not what they should be: nothing but the token counts."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import flight

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle import flight as peers
from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer
from jaxdist.input.local_shuffle.store import ArrayStore

IDS = np.arange(1, 4)
X = np.arange(8, dtype=np.float32).reshape(4, 2)
LIKE = {"x": np.zeros((1, 2), np.float32)}
SECRET = "c0ffee" * 4
CREDENTIAL = peers._credential(SECRET)
FAR_S = 600.0
"""A deadline that no test comes near: what ends a call is not time."""


class Counting(PeerServer):
    """Counts how often it has looked for samples."""

    looked = 0

    def sample_table(self, ids):
        self.looked += 1
        return super().sample_table(ids)


@pytest.fixture(scope="module")
def server():
    store = ArrayStore(LIKE, 4)
    store.put(IDS, {"x": X[IDS]})
    with Counting(store, "127.0.0.1:0", SECRET) as serving:
        yield serving


@pytest.fixture(scope="module")
def caller(server):
    with flight.FlightClient(f"grpc://{server.address}") as made:
        yield made


def call(caller, ticket, headers, kind="samples"):
    """What a call of any kind brings: the results, as bytes."""
    how = flight.FlightCallOptions(timeout=FAR_S, headers=headers)
    return [
        result.body.to_pybytes()
        for result in caller.do_action(flight.Action(kind, ticket), how)
    ]


WITH_CREDENTIAL = [(peers._CREDENTIAL_HEADER.encode(), CREDENTIAL.encode())]
TICKETS = st.one_of(
    st.binary(max_size=40),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(
        lambda ids: np.array(ids, "<i8").tobytes()
    ),
    st.just(json.dumps({"token": SECRET, "ids": [1]}).encode()),
)
NAMES = st.sampled_from([peers._CREDENTIAL_HEADER, "authorization", "other"])
WORDS = st.one_of(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=70),
    st.sampled_from([SECRET, CREDENTIAL[:-1], CREDENTIAL + "0", CREDENTIAL.upper()]),
)


@settings(max_examples=60, deadline=None)
@given(TICKETS, st.lists(st.tuples(NAMES, WORDS), max_size=3))
def test_who_does_not_have_the_credential_learns_nothing(
    server, caller, ticket, headers
):
    looked = server.looked
    with pytest.raises(flight.FlightUnauthenticatedError) as refused:
        call(caller, ticket, [(name.encode(), word.encode()) for name, word in headers])
    assert server.looked == looked
    assert SECRET not in str(refused.value)
    assert CREDENTIAL not in str(refused.value)


def test_no_other_kind_of_call_goes_around_the_credential(caller):
    for ask in (
        lambda: list(caller.list_flights()),
        caller.list_actions,
        lambda: caller.do_get(flight.Ticket(b"")).read_all(),
        lambda: caller.get_flight_info(flight.FlightDescriptor.for_path("x")),
    ):
        with pytest.raises(flight.FlightUnauthenticatedError):
            ask()


@settings(max_examples=60, deadline=None)
@given(TICKETS, st.sampled_from(["samples", "other"]))
def test_any_ticket_is_answered_or_refused_without_the_token(caller, ticket, kind):
    said = ""
    try:
        found = call(caller, ticket, WITH_CREDENTIAL, kind)
    except flight.FlightServerError as refused:
        said = str(refused)
    assert bool(said) == (kind != "samples" or len(ticket) % 8 != 0)
    assert said or len(found) in (0, 2)
    assert SECRET not in said
    assert CREDENTIAL not in said


def test_a_ticket_has_so_many_ids_at_most(server, caller):
    most = np.arange(peers._MAX_IDS, dtype="<i8").tobytes()
    assert len(call(caller, most, WITH_CREDENTIAL)) == 2
    looked = server.looked
    with pytest.raises(flight.FlightServerError, match="65536 at most"):
        call(caller, most + bytes(8), WITH_CREDENTIAL)
    assert server.looked == looked
    # One id many times is one sample.
    (_, once), (_, often) = (
        call(caller, np.full(count, 2, "<i8").tobytes(), WITH_CREDENTIAL)
        for count in (1, 1000)
    )
    assert once == often


class Heard(flight.ServerMiddlewareFactory):
    def __init__(self):
        super().__init__()
        self.headers = []

    def start_call(self, info, headers):
        self.headers.append(headers)


class Answering(flight.FlightServerBase):
    """Answers every call with the same results, to whoever asks."""

    def __init__(self):
        self.heard = Heard()
        super().__init__("grpc://127.0.0.1:0", middleware={"heard": self.heard})
        self.results = []

    def do_action(self, context, action):
        yield from (flight.Result(pa.py_buffer(body)) for body in self.results)


@pytest.fixture(scope="module")
def stranger():
    with Answering() as serving:
        yield serving


def fetch(stranger, results, ids=IDS, example=LIKE):
    """What a client takes of a reply, and the client."""
    stranger.results = results
    where = [f"127.0.0.1:{stranger.port}"]
    client = PeerClient(
        addresses=where, example=example, token=SECRET, deadline_s=FAR_S
    )
    found = client.fetch(ids, np.zeros(len(ids), np.int64))
    client.close()
    assert client.fetched_count == len(found)
    return found, client


def signed(*chunks):
    return [part for chunk in chunks for part in (peers._sign(SECRET, chunk), chunk)]


def chunk_of(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def good(caller):
    """A signature and a chunk that a host of this run has sent."""
    return call(caller, IDS.astype("<i8").tobytes(), WITH_CREDENTIAL)


def test_a_stranger_at_the_address_of_a_peer_does_not_hear_the_token(stranger, good):
    found, _ = fetch(stranger, good)
    assert {sample: one["x"].tolist() for sample, one in found.items()} == {
        sample: X[[sample]].tolist() for sample in IDS.tolist()
    }
    heard = str(stranger.heard.headers)
    assert CREDENTIAL in heard
    assert SECRET not in heard
    # What is heard signs nothing.
    _, chunk = good
    for key in (CREDENTIAL, CREDENTIAL.upper(), ""):
        found, client = fetch(stranger, [peers._sign(key, chunk), chunk])
        assert (found, client.failed_calls) == ({}, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_a_reply_of_any_bytes_gives_no_sample(stranger, results):
    found, client = fetch(stranger, results)
    assert (found, client.failed_calls) == ({}, int(len(results) > 1))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_reply_that_was_changed_on_its_way_gives_no_sample(stranger, good, data):
    signature, chunk = map(bytearray, good)
    which = data.draw(st.sampled_from([signature, chunk]))
    place = data.draw(st.integers(0, len(which) - 1))
    if data.draw(st.booleans()):
        which[place] ^= data.draw(st.integers(1, 255))
    else:
        del which[place:]
    found, client = fetch(stranger, [bytes(signature), bytes(chunk)])
    assert (found, client.failed_calls) == ({}, 1)


COLUMNS = st.one_of(
    st.lists(st.integers(0, 2**63 - 1), max_size=3),
    st.lists(st.binary(max_size=9), max_size=3),
    st.lists(st.binary(min_size=8, max_size=8), max_size=3),
    st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=3),
    st.lists(st.floats(), max_size=3),
    st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=3),
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["id", "sum", "key x", "other"]), COLUMNS))
def test_a_signed_reply_of_any_schema_gives_no_sample(stranger, columns):
    rows = min(map(len, columns.values()), default=0)
    table = pa.table({key: values[:rows] for key, values in columns.items()})
    found, client = fetch(stranger, signed(chunk_of(table)))
    assert found == {}
    of_samples = table.schema == peers._make_schema(LIKE)
    assert client.failed_calls == 1 or (of_samples and client.corrupt_count == rows)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([None, -1, 0, 1, 2]), min_size=1, max_size=4), st.data()
)
def test_rows_of_another_number_or_size_give_no_wrong_sample(stranger, ids, data):
    rows = [data.draw(st.sampled_from([None, b"", bytes(8), bytes(16)])) for _ in ids]
    sums = [peers.checksums({"x": np.zeros((1, 2), np.float32)})[0]] * len(ids)
    table = pa.table([ids, sums, rows], peers._make_schema(LIKE))
    found, client = fetch(stranger, signed(chunk_of(table)))
    whole = None not in ids and set(rows) == {bytes(8)}
    assert set(found) == ({*ids} & {*IDS.tolist()} if whole else set())
    assert all(not one["x"].any() for one in found.values())
    assert whole or client.failed_calls + client.corrupt_count > 0


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_host_that_signs_is_no_traceback(stranger, good, data):
    """What it sends has its signature, so that Arrow reads it."""
    chunk = bytearray(good[1])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(chunk) - 1))
        chunk[place] ^= 1 << data.draw(st.integers(0, 7))
    found, _ = fetch(stranger, signed(bytes(chunk)))
    rows = X[IDS].tolist()
    assert all(one["x"].tolist()[0] in rows for one in found.values())


def test_a_reply_without_end_is_left(stranger, good):
    """What was read until then is right."""
    count = 10_000
    found, client = fetch(stranger, good * count)
    assert sorted(found) == IDS.tolist()
    assert client.failed_calls == 1
    # Unsigned, it ends with its first chunk; and so does one that is too long.
    for results in ([bytes(32), bytes(100)] * count, signed(bytes(2 << 20))):
        found, client = fetch(stranger, results)
        assert (found, client.failed_calls) == ({}, 1)


def test_what_came_ahead_of_a_damaged_chunk_is_kept(stranger, good):
    found, client = fetch(stranger, [*good, bytes(32), good[1]])
    assert (sorted(found), client.failed_calls) == (IDS.tolist(), 1)


def test_samples_of_any_size_come_in_chunks_of_a_megabyte():
    like = {"x": np.zeros((1, 1 << 18), np.uint8)}
    x = np.random.default_rng(0).integers(0, 255, (30, 1 << 18), np.uint8)
    store, ids = ArrayStore(like, 30), np.arange(30)
    store.put(ids, {"x": x})
    with PeerServer(store, "127.0.0.1:0", SECRET) as server:
        chunks = list(server._signed_chunks(server.sample_table(ids)))
        assert len(chunks) == 2 * 8
        where = [server.address]
        client = PeerClient(
            addresses=where, example=like, token=SECRET, deadline_s=FAR_S
        )
        found = client.fetch(ids, np.zeros(30, np.int64))
        client.close()
    assert all(np.array_equal(found[i]["x"][0], x[i]) for i in range(30))


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", ":0"])
def test_no_peer_listens_on_every_network(address):
    with pytest.raises(BadInput, match="on every network") as refused:
        PeerServer(ArrayStore(LIKE, 1), address, SECRET)
    assert SECRET not in str(refused.value)


def test_the_token_is_in_no_text(server):
    client = PeerClient(addresses=[server.address], example=LIKE, token=SECRET)
    other = PeerClient(addresses=[server.address], example=LIKE, token="another")
    assert other.fetch(np.array([1]), np.array([0])) == {}
    assert other.failed_calls == 1
    for text in (repr(client), str(client), repr(server), str(server)):
        assert SECRET not in text
    client.close()
    other.close()


class Breaking(PeerServer):
    def sample_table(self, ids):
        raise RuntimeError("broken")


def test_a_server_that_breaks_says_nothing_of_the_token(capfd):
    with Breaking(ArrayStore(LIKE, 1), "127.0.0.1:0", SECRET) as server:
        with (
            flight.FlightClient(f"grpc://{server.address}") as caller,
            pytest.raises(pa.ArrowException) as refused,
        ):
            call(caller, bytes(8), WITH_CREDENTIAL)
        for text in (str(refused.value), *capfd.readouterr()):
            assert SECRET not in text
            assert CREDENTIAL not in text
        where = [server.address]
        client = PeerClient(addresses=where, example=LIKE, token=SECRET)
        assert client.fetch(np.array([0]), np.array([0])) == {}
        assert client.failed_calls == 1
        client.close()
