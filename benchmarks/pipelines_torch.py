"""The stacks of `pipelines.py steps` in torch's own pipelines: four processes, gloo.

    python benchmarks/pipelines_torch.py --steps 20

Needs torch alone, in whatever environment it is. A step has the optimizer in it.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

STAGES, BLOCKS, MICRO = 4, 8, 8
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(
            torch.nn.LayerNorm(512),
            torch.nn.Linear(512, 1024),
            torch.nn.GELU(),
            torch.nn.Linear(1024, 512),
        )

    def forward(self, x):
        return x + self.inner(x)


def encoder():
    return torch.nn.TransformerEncoderLayer(
        128, 4, 512, dropout=0.0, batch_first=True, norm_first=True
    )


KINDS = {"mlp": (Mlp, (64, 512)), "transformer": (encoder, (8, 64, 128))}


def square(y, target):
    return ((y - target) ** 2).mean()


def timed(kind, name, steps):
    """Return the seconds of steps, after three that warm up."""
    block, shape = KINDS[kind]
    rank, last = dist.get_rank(), STAGES - 1
    torch.manual_seed(rank)
    own = torch.nn.Sequential(*(block() for _ in range(BLOCKS // STAGES)))
    stage = PipelineStage(own, rank, STAGES, torch.device("cpu"))
    schedule = SCHEDULES[name](stage, MICRO, loss_fn=square)
    optimizer = torch.optim.SGD(own.parameters(), 1e-3)
    x = torch.randn(MICRO * shape[0], *shape[1:])
    # torch's schedules take inputs on the first stage and targets on the last.
    given = {0: ((x,), {}), last: ((), {"target": x, "losses": []})}
    words, how = given.get(rank, ((), {}))
    found = []
    for _ in range(steps + 3):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        schedule.step(*words, **how)
        optimizer.step()
        dist.barrier()
        found.append(time.perf_counter() - start)
    return found[3:]


def work(steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in KINDS:
        for name in SCHEDULES:
            found = timed(kind, name, steps)
            ms = [round(1e3 * f(found), 1) for f in (statistics.median, min, max)]
            if dist.get_rank() == 0:
                row = {"blocks": kind, "schedule": f"torch, {name}", "ms": ms}
                print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def start(steps):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--steps", str(steps)]
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, **places, "RANK": str(rank), "WORLD_SIZE": str(STAGES)},
        )
        for rank in range(STAGES)
    ]
    return max(each.wait() for each in running)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args().steps
    sys.exit(work(asked) if "RANK" in os.environ else start(asked))
