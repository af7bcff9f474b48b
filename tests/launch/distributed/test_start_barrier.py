"""The start of a run: all wait for all, and all of them name who is missing."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput, RetryableError
from jaxdist.launch.cli.main import main
from jaxdist.launch.distributed.schedulers import RankAssignment
from jaxdist.launch.distributed.start_barrier import wait_for_all
from jaxdist.launch.launchers.processes.loopback import free_port


def outcomes(assignments, timeout_s):
    """What comes of processes that begin at once, each here a thread."""

    def start(each):
        try:
            wait_for_all(each, timeout_s)
        except (BadInput, RetryableError) as error:
            return error
        return None

    with ThreadPoolExecutor(len(assignments)) as pool:
        return list(pool.map(start, assignments))


def assignments(ranks, count, port=None, host="127.0.0.1"):
    address = f"{host}:{port or free_port()}"
    return [
        RankAssignment(rank=rank, num_processes=count, coordinator=address)
        for rank in ranks
    ]


def test_all_who_wait_name_who_is_missing():
    found = outcomes(assignments([0, 2, 4], 5), 2)
    assert all(isinstance(each, RetryableError) for each in found)
    assert all("processes 1, 3 of 5 did not start" in str(each) for each in found)


def test_process_0_is_missing():
    for each in outcomes(assignments([1, 2], 3), 0.5):
        assert isinstance(each, RetryableError)
        assert "does not reach process 0" in str(each)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_all_are_here(host):
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        host = "127.0.0.1"
    assert outcomes(assignments([3, 1, 0, 2], 4, host=host), 60) == [None] * 4


def test_strangers_at_the_port_disturb_nobody():
    port = free_port()

    def strange(text):
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), 5) as stranger:
                    stranger.sendall(text)
                    return
            except ConnectionRefusedError:
                continue

    with ThreadPoolExecutor(4) as pool:
        primary = pool.submit(outcomes, assignments([0], 2, port), 60)
        for text in (b"", b"GET / HTTP/1.1\n", b"[" * 4000 + b"\n", b'["x", 1]\n'):
            strange(text)
        assert outcomes(assignments([1], 2, port), 60) == [None]
        assert primary.result() == [None]


def test_ranks_and_numbers_that_do_not_fit_together():
    port = free_port()
    for each in outcomes(assignments([0, 1, 1], 3, port), 60):
        assert isinstance(each, BadInput)
        assert "rank 1 twice" in each.values
    port = free_port()
    mixed = [*assignments([0], 3, port), *assignments([1], 2, port)]
    for each in outcomes(mixed, 60):
        assert isinstance(each, BadInput)
        assert "rank 0 says 3 processes, rank 1 says 2" in each.values


@settings(max_examples=6, deadline=None)
@given(st.integers(2, 6), st.data())
def test_any_ranks_start_or_learn_who_is_missing(count, data):
    others = data.draw(st.sets(st.integers(1, count - 1)))
    missing = set(range(1, count)) - others
    found = outcomes(assignments([0, *others], count), 1 if missing else 60)
    if not missing:
        assert found == [None] * count
    else:
        names = ", ".join(map(str, sorted(missing)))
        assert all(f" {names} of {count} did not start" in str(each) for each in found)


def test_the_command_ends_with_75(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "JAXDIST_RANK": "0",
        "JAXDIST_HOSTS": "2",
        "JAXDIST_COORDINATOR": f"127.0.0.1:{free_port()}",
        "JAXDIST_START_S": "1",
    }.items():
        monkeypatch.setenv(name, text)
    assert main(["train", "digits"]) == 75
    assert "process 1 of 2 did not start" in capfd.readouterr().err
    monkeypatch.setenv("JAXDIST_START_S", "soon")
    assert main(["train", "digits"]) == 2
    assert "JAXDIST_START_S='soon'" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
