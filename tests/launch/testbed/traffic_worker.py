"""Host 0 sends to host 1, which stops for some time in the midst of it."""

import functools
import os
import subprocess

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxdist.launch.distributed import initialize
from jaxdist.launch.testbed.traffic_counter import TrafficCounter, shard_local_arrays

ROWS = 1 << 20


def send_to_stopped_host(send, rows, delay_s):
    if jax.process_index() == 1:
        pid = os.getpid()
        pause = f"sleep {delay_s}; kill -STOP {pid}; sleep 0.4; kill -CONT {pid}"
        subprocess.Popen(["/bin/sh", "-c", pause])
    return send(rows)


def main():
    initialize()
    mesh = jax.make_mesh((2,), ("host",))
    rows = shard_local_arrays(mesh, lambda rank: np.ones(ROWS, np.float32))
    send = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.ppermute(x, "host", [(0, 1)]),
            mesh=mesh,
            in_specs=P("host"),
            out_specs=P("host"),
        )
    )
    jax.block_until_ready(send(rows))
    counter = TrafficCounter(mesh)
    # When the last bytes stand in the sender differs from call to call.
    for delay_ms in (30, 35, 40, 45, 50, 55, 60, 65, 70, 80):
        call = functools.partial(send_to_stopped_host, send, rows, delay_ms / 1e3)
        print("sent", counter.measure(call).tx_payload_bytes)


if __name__ == "__main__":
    main()
