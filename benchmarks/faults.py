"""What a fault costs: seconds until it is noticed and until the run trains again.

    python benchmarks/faults.py kill --trials 5
    python benchmarks/faults.py term --trials 20
    python benchmarks/faults.py stop --trials 20
    python benchmarks/faults.py soak --faults 50 --hosts 4
    python benchmarks/faults.py soak --faults 8

One run of a tiny network under `--restarts`, on loopback or, with `--hosts` and as
root, on a testbed; in every trial a random process of it is sent SIGKILL, SIGTERM or
SIGSTOP at a random moment. `soak` does any of these, damages the newest checkpoint,
fills the disk (as root), cuts a link or makes it slow (on a testbed), and compares the
end, and all that was read, with a run that nothing has happened to.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from faults_run import SIGNALS, Run, place
from faults_soak import ENDLESS, failed, soak


def trial(run: Run, fault, rank, chance: random.Random):
    """Do harm to one process, and see what follows."""
    begun = time.time()
    first = run.wait(lambda: run.steps(begun))[0]["step"]
    time.sleep(chance.uniform(0.1, 1.5))
    victim = run.process(rank)
    at, before = time.time(), run.steps()[-1]["step"]
    victim.send_signal(SIGNALS[fault])
    count, _ = run.wait(lambda: run.said(" so all were ended", at) or failed(run, at))
    noticed = run.said("stuck: ", at) or (count, "")
    last = run.steps()[-1]["step"]
    back = run.wait(lambda: run.steps(count))[0]
    return {
        "fault": fault,
        "noticed_s": noticed[0] - at,
        "ended_s": count - at,
        "again_s": back["time"] - at,
        "lost_steps": last - back["step"] + 1,
        "named": named(run, fault, rank, at),
        "steps": (first, before, last, back["step"]),
    }


def named(run: Run, fault, rank, at):
    """Whether the process that was harmed is the one that was named."""
    if fault != "stop":
        return run.said(f"process {rank} of", at) is not None
    _, line = run.said("stuck: ", at) or (0, "")
    return f"rank {rank}" in line.partition(";")[0]


def trials(folder: Path, args, chance: random.Random):
    """Do one kind of harm again and again, and print what it costs."""
    found: list[dict[str, Any]] = []
    # What fails again and again waits longer each time: a kill has a run of its own.
    each = 1 if args.fault == "kill" else args.faults
    count = args.hosts or args.processes
    how = {"restarts": each, "steps": ENDLESS, "hang_timeout_s": args.hang_s}
    with place(args.hosts, args.processes) as where:
        while len(found) < args.faults:
            name = folder / f"runs-{len(found)}"
            with Run(name, where.words, count, **how) as run:
                for _ in range(each):
                    rank = chance.randrange(count)
                    found.append(trial(run, args.fault, rank, chance))
                    print(json.dumps(found[-1]), flush=True)
    for key in ("noticed_s", "ended_s", "again_s", "lost_steps"):
        values = [row[key] for row in found]
        middle = statistics.median(values)
        print(f"{key:11} median {middle:6.2f}  most {max(values):6.2f}")
    print(f"named       {sum(row['named'] for row in found)} of {len(found)}")


def main():
    """Do the trials and print what they cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fault", choices=("kill", "term", "stop", "soak"))
    parser.add_argument("--faults", "--trials", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2, help="on loopback")
    parser.add_argument("--hosts", type=int, default=0, help="of a testbed instead")
    parser.add_argument("--minutes", type=float, default=1e9, help="soak: at most")
    parser.add_argument("--hang-s", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    act = soak if args.fault == "soak" else trials
    with tempfile.TemporaryDirectory() as folder:
        act(Path(folder), args, random.Random(args.seed))


if __name__ == "__main__":
    main()
