"""One process of an elastic run: trains digits, and notes the samples of its steps."""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from jaxdist.launch.distributed import initialize
from jaxdist.launch.distributed.preemption import PreemptionHandler
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.training.job.request import JobRequest
from jaxdist.launch.training.job.setup import settle

SLOW_S = 1.0
"""A step with fewer processes: there is time to take one back before the end."""


def main(folder, count, dies_at, ends_at, *words):
    """Train; rank 1 of `count` processes dies once, in front of a step.

    Args:
        folder: where traces are, and a file that says that it has died.
        count: processes of the whole run.
        dies_at: step, 0 for none.
        ends_at: last step of this attempt, 0 for that of the run.
    """
    rank, folder = initialize(), Path(folder)
    mine, died = process_group(), folder / "died"
    whole = mine.size == int(count)
    with PreemptionHandler(mine) as ends:
        request = JobRequest(experiment="digits", overrides=words, accepts_changes=True)
        settled = settle(request, mine, for_training=True)
        from jaxdist.launch.training.console_reporter import NullReporter
        from jaxdist.launch.training.train import train

        def traced(batches, start):
            trace = folder / f"trace-{start:04}-{mine.size}-{rank}"
            with trace.open("w", buffering=1) as file:
                for step, batch in enumerate(batches, start + 1):
                    if step == int(ends_at or 0) + 1 and step > 1:
                        return
                    if step == int(dies_at) and rank == 1 and not died.exists():
                        died.touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(0 if whole else SLOW_S)
                    held = {}
                    for shard in batch["id"].addressable_shards:
                        held[shard.index[0].start or 0] = shard.data.tolist()
                    file.write(json.dumps({"step": step, "held": held}) + "\n")
                    yield batch

        with NullReporter() as silent:
            run, _ = train(
                settled,
                silent,
                start_time=time.time(),
                wrap_batches=traced,
                should_stop=ends,
            )
    sys.exit(75 if run.status == "stopped" else 0)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception:
        traceback.print_exc()
        # jax would wait for the others, which wait for this one.
        sys.exit(process_group().exit_process(1))
