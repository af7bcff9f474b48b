"""Reachable: process 0 is waited for, and an address that does not answer is named."""

import socket
import threading
import time

import pytest

from jaxdist.core.errors import RetryableError
from jaxdist.launch.distributed.start_barrier import wait_for_coordinator
from jaxdist.launch.launchers.processes.loopback import free_port


def test_who_listens_late_is_waited_for():
    port, listening = free_port(), threading.Event()

    def listen():
        time.sleep(0.3)
        with socket.create_server(("127.0.0.1", port)):
            listening.set()
            time.sleep(5)

    threading.Thread(target=listen, daemon=True).start()
    wait_for_coordinator(1, f"127.0.0.1:{port}", 30)
    assert listening.is_set()


def test_an_address_that_does_not_answer_is_named():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        RetryableError, match=f"process 3 does not reach(?s:.*){address}"
    ):
        wait_for_coordinator(3, address, 0.3)
