"""The barrier at the start of a run: process 0 waits for all, and says who is missing.

jax ends a process that has waited in vain by an abort, and names nobody. So before jax
is asked, each process tells process 0 its rank, at the address where jax will listen,
and process 0 answers all of them alike: that everybody is here, or who is not.
"""

import json
import os
import selectors
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from jaxdist.core.errors import BadInput, RetryableError
from jaxdist.launch.distributed.coordinator_address import listen_address
from jaxdist.launch.distributed.schedulers import (
    NUM_PROCESSES_VAR,
    RANK_VAR,
    RankAssignment,
)

_ATTEMPT_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 0.1
# The port may still be that of the attempt before.
_LISTEN_TIMEOUT_S: Final = 5.0
# How much longer others wait for the answer than process 0 waits for them.
_ANSWER_MARGIN_S: Final = 10.0
_MAX_LINE_BYTES: Final = 1 << 16
_MAX_SHOWN: Final = 16
_GREETING: Final = "jaxdist-start"


def wait_for_all(mine: RankAssignment, timeout_s: float) -> None:
    """Wait until all processes of a run have started.

    Args:
        mine: which process this is.
        timeout_s: seconds that process 0 waits for the others, and they for it.

    Raises:
        RetryableError: processes are missing, which are named; or nobody reaches
            process 0.
        BadInput: two processes have one rank, or do not agree on how many there are; or
            JAX_COORDINATOR_BIND_ADDRESS is no address.
    """
    if mine.num_processes == 1:
        return
    wait = _answer_others if mine.rank == 0 else _ask_primary
    answer = wait(mine, timeout_s)
    if answer.get("conflict"):
        raise BadInput(
            "the processes of this run do not fit together",
            rule=f"each has a {RANK_VAR} of its own, from 0, and the same "
            f"{NUM_PROCESSES_VAR}",
            values=str(answer["conflict"]),
            remedy="ranks 0 to N-1 for N processes; another port of process 0 where "
            "two runs share it",
        )
    if answer.get("missing"):
        raise _missing(mine, list(answer["missing"]), float(answer["waited_s"]))


def wait_for_coordinator(rank: int, coordinator: str, timeout_s: float) -> None:
    """Wait until process 0 listens.

    Args:
        rank: which process asks.
        coordinator: `address:port` of process 0.
        timeout_s: seconds until it must.

    Raises:
        RetryableError: it does not, or a firewall between both hosts lets nothing
            through.
    """
    _connect(rank, coordinator, time.monotonic() + timeout_s, timeout_s).close()


def _connect(
    rank: int, coordinator: str, end: float, timeout_s: float
) -> socket.socket:
    """Connect to process 0 as soon as it listens."""
    host, _, port = coordinator.rpartition(":")
    address = host.strip("[]"), int(port)
    while True:
        left = max(end - time.monotonic(), _RETRY_S)
        try:
            # jax would log every failed attempt and in the end abort the process, so
            # it connects only after this has succeeded.
            return socket.create_connection(address, min(left, _ATTEMPT_TIMEOUT_S))
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= end:
                raise RetryableError(
                    f"process {rank} does not reach process 0\n"
                    "  rule     process 0 listens at an address that all others reach\n"
                    f"  values   {coordinator}, for {timeout_s:g} s: {error}\n"
                    "  remedy   the network between the hosts, then the same command"
                ) from error
        time.sleep(_RETRY_S)


def _ask_primary(mine: RankAssignment, timeout_s: float) -> dict[str, Any]:
    """Tell process 0 of this process, and return its answer."""
    began = time.monotonic()
    end = began + timeout_s
    hello = f"{json.dumps([_GREETING, mine.rank, mine.num_processes])}\n".encode()
    while True:
        connection = _connect(mine.rank, mine.coordinator, end, timeout_s)
        # Process 0 may have begun to wait later than this process has.
        until = time.monotonic() + timeout_s + _ANSWER_MARGIN_S
        with connection, suppress(OSError, ValueError):
            connection.sendall(hello)
            received = b""
            while not received.endswith(b"\n") and len(received) < _MAX_LINE_BYTES:
                # Not 0, with which it would not wait at all.
                connection.settimeout(max(until - time.monotonic(), _RETRY_S))
                chunk = connection.recv(_MAX_LINE_BYTES)
                if not chunk:
                    break
                received += chunk
            answer = json.loads(received)
            if isinstance(answer, dict) and answer.get("kind") == _GREETING:
                return answer
        # It went away without an answer, or something else listens there.
        if time.monotonic() >= end:
            raise _missing(mine, [0], time.monotonic() - began)
        time.sleep(_RETRY_S)


def _answer_others(mine: RankAssignment, timeout_s: float) -> dict[str, Any]:
    """Collect the ranks of all others, and send all of them the same answer."""
    began = time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(_listen(mine))
        arrivals = _Arrivals(mine, server, stack)
        while arrivals.missing and not arrivals.conflict:
            left = began + timeout_s - time.monotonic()
            if left <= 0:
                break
            arrivals.wait(left)
        # Closed before anybody is answered: whoever connects next is to reach jax.
        server.close()
        answer = {
            "kind": _GREETING,
            "conflict": arrivals.conflict,
            "missing": arrivals.missing,
            "waited_s": time.monotonic() - began,
        }
        arrivals.answer(f"{json.dumps(answer)}\n".encode())
    return answer


class _Arrivals:
    """The processes that have told process 0 of themselves, by their connections.

    Args:
        mine: the assignment of process 0.
        server: where they connect.
        stack: closes their connections.
    """

    def __init__(
        self, mine: RankAssignment, server: socket.socket, stack: ExitStack
    ) -> None:
        self._mine, self._server, self._stack = mine, server, stack
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._selector.register(server, selectors.EVENT_READ)
        self._received: dict[socket.socket, bytes] = {}
        self._ranks: dict[socket.socket, int] = {}
        self.conflict = ""
        """Why a process does not belong to the others; empty: none is like that."""

    @property
    def missing(self) -> list[int]:
        """Ranks of the processes that are not here."""
        return sorted({*range(1, self._mine.num_processes)} - {*self._ranks.values()})

    def wait(self, timeout_s: float) -> None:
        """Wait until something arrives, and take it in."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._server:
                with suppress(OSError):
                    connection = self._stack.enter_context(self._server.accept()[0])
                    # One that says nothing must not hold up the others.
                    connection.setblocking(False)
                    self._selector.register(connection, selectors.EVENT_READ)
                    self._received[connection] = b""
            elif isinstance(key.fileobj, socket.socket):
                self._receive(key.fileobj)

    def answer(self, line: bytes) -> None:
        """Send a line to all that are here."""
        for connection in self._ranks:
            with suppress(OSError):
                connection.settimeout(_ATTEMPT_TIMEOUT_S)
                connection.sendall(line)

    def _receive(self, connection: socket.socket) -> None:
        try:
            chunk = connection.recv(_MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        text = self._received[connection] = self._received[connection] + chunk
        # A part of a line is not judged yet.
        hello = _parse_hello(text) if text.endswith(b"\n") else (0, 0)
        if not chunk or len(text) > _MAX_LINE_BYTES or hello is None:
            # Nobody of ours; or a process that has gone again, and is missing again.
            self._selector.unregister(connection)
            self._ranks.pop(connection, None)
            connection.close()
        elif text.endswith(b"\n"):
            rank, count = hello
            here = self._ranks.values()
            self.conflict = self.conflict or _conflict(self._mine, rank, count, here)
            self._ranks[connection] = rank


def _listen(mine: RankAssignment) -> socket.socket:
    """Listen at the port of process 0, and at the addresses where jax will."""
    host, port = listen_address(mine.coordinator, os.environ)
    both = not host and socket.has_dualstack_ipv6()
    end = time.monotonic() + _LISTEN_TIMEOUT_S
    while True:
        try:
            return socket.create_server(
                (host, port),
                family=socket.AF_INET6 if both or ":" in host else socket.AF_INET,
                dualstack_ipv6=both,
                # All may connect at once, and some that are none of ours.
                backlog=min(mine.num_processes + 8, 4096),
            )
        except OSError as error:
            if time.monotonic() >= end:
                raise RetryableError(
                    f"process 0 cannot listen at port {port}\n"
                    "  rule     the port of process 0 is free on its host\n"
                    f"  values   {mine.coordinator}: {error}\n"
                    "  remedy   another port, or the same command a little later"
                ) from error
        time.sleep(_RETRY_S)


def _parse_hello(text: bytes) -> tuple[int, int] | None:
    """Return (rank, processes) of a first line; None where it is not one of ours."""
    try:
        greeting, rank, count = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    if greeting != _GREETING or type(rank) is not int or type(count) is not int:
        return None
    return rank, count


def _conflict(
    mine: RankAssignment, rank: int, count: int, here: Collection[int]
) -> str:
    """Say why a process does not belong to those that are here; empty: it does."""
    if count != mine.num_processes:
        return f"rank 0 says {mine.num_processes} processes, rank {rank} says {count}"
    if not 0 < rank < count:
        return f"rank {rank} of {count}, and process 0 is another one"
    return f"rank {rank} twice" if rank in here else ""


def _missing(
    mine: RankAssignment, ranks: Sequence[int], waited_s: float
) -> RetryableError:
    shown = ", ".join(map(str, ranks[:_MAX_SHOWN]))
    more = f" and {len(ranks) - _MAX_SHOWN} more" if len(ranks) > _MAX_SHOWN else ""
    who = "process" if len(ranks) == 1 else "processes"
    return RetryableError(
        f"{who} {shown}{more} of {mine.num_processes} did not start\n"
        "  rule     all processes of a run start within JAXDIST_START_S seconds\n"
        f"  values   waited {waited_s:.0f} s, "
        f"process 0 is {mine.coordinator}\n"
        "  remedy   see what has become of them, then the same command; "
        "JAXDIST_START_S=600 waits longer"
    )
