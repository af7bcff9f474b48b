"""A host of `links.py`: sums one matrix a host in torch's ways; has torch, not jax.

The rows of DDP are one backward pass of a module that is one square matrix in one
bucket (its PowerSGD hook aborts on gloo with two). They hold the pass itself, a product
by element, as a training step would.
"""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

SETTLE_S = 0.15
DENSE_STEPS = 2  # the hook compresses from there on


class Matrix(torch.nn.Module):
    def __init__(self, side):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(side, side))

    def forward(self, x):
        return (self.weight * x).sum()


def sent():
    """Bytes that this host's interface has sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (own,) = (line for line in lines if line.strip().startswith("eth0:"))
    return int(own.split(":")[1].split()[8])


def call(name, x):
    """Return a call of one method that has run and is past its first, dense steps."""
    if name == "all_reduce":
        buffer = x.clone()
        return lambda: dist.all_reduce(buffer)
    # Equal weights are made on all hosts, so nothing is broadcast first.
    model = DistributedDataParallel(Matrix(len(x)), bucket_cap_mb=4096, init_sync=False)
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name.startswith("powersgd"):
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=int(name.removeprefix("powersgd")),
            start_powerSGD_iter=DENSE_STEPS,
            min_compression_rate=1,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def step():
        model.zero_grad(set_to_none=False)
        model(x).backward()

    for _ in range(2 * DENSE_STEPS):
        step()
    return step


def read(step):
    dist.barrier()
    time.sleep(SETTLE_S)
    before, start = sent(), time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    time.sleep(SETTLE_S)
    return seconds, sent() - before


def main(mib, methods, times):
    torch.set_num_threads(1)
    rank, hosts = int(os.environ["JAXDIST_RANK"]), int(os.environ["JAXDIST_HOSTS"])
    address = f"tcp://{os.environ['JAXDIST_COORDINATOR']}"
    dist.init_process_group("gloo", address, rank=rank, world_size=hosts)
    # 1 MiB is 2^18 float32 numbers.
    side = math.isqrt(mib << 18)
    x = torch.randn(side, side, generator=torch.Generator().manual_seed(rank))
    calls = {name: call(name, x) for name in methods}
    for each in calls.values():
        each()
    readings: dict[str, list[Any]] = {name: [] for name in methods}
    for _ in range(times):
        for name, step in calls.items():
            readings[name].append(read(step))
    dist.barrier()
    for name, each in readings.items():
        seconds, counted = zip(*each)
        found = {"method": f"torch {name}", "seconds": seconds, "sent": counted}
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
