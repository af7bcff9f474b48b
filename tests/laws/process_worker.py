"""One process of a run: trains digits, and notes the samples that it puts on devices."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from jaxdist.launch.distributed import initialize
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.training.job.request import JobRequest
from jaxdist.launch.training.job.setup import settle


def main(trace, dies_at, *words):
    rank = initialize()
    request = JobRequest(experiment="digits", overrides=words, accepts_changes=True)
    job = settle(request, process_group(), for_training=True)
    from jaxdist.launch.training.console_reporter import NullReporter
    from jaxdist.launch.training.train import train

    def traced(batches, start):
        with Path(f"{trace}-{rank}").open("a", buffering=1) as file:
            for step, batch in enumerate(batches, start + 1):
                if step == int(dies_at) and rank == process_group().size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                held = {}
                for shard in batch["id"].addressable_shards:
                    held[shard.index[0].start or 0] = shard.data.tolist()
                file.write(json.dumps({"step": step, "held": held}) + "\n")
                yield batch

    with NullReporter() as silent:
        train(job, silent, start_time=time.time(), wrap_batches=traced)


if __name__ == "__main__":
    main(*sys.argv[1:])
