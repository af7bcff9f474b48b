"""A run that is harmed again and again, held against one that is left alone."""

import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
from faults_run import EPOCH, SIGNALS, Box, Local, Run, disk, place

ROOM = (0, 50_000)
"""Bytes that a full disk has left: none, or too few for a checkpoint."""
BATCH = 64
RESTART = re.compile(r"^restart \d+ of")
ENDLESS = 10_000_000
LINE_S = 5
"""Seconds in which a line of a process gets through its launcher."""
KINDS = (*SIGNALS, "disk")
SAYS = {
    "kill": ("error: process",),
    "damage": ("skipped: ",),
    "term": (" so all were ended",),
    "stop": ("stuck: ",),
    "cut": ("stuck: ",),
    "disk": ("does not fit", "the disk is full"),
}
"""What names each kind of fault, when the run goes on."""


def soak(folder: Path, args, chance: Random):
    """Do any harm, and compare the end with that of a run that was left alone.

    Raises:
        SystemExit: a difference, or something that is left.
    """
    count, seen = args.hosts or args.processes, set()
    with place(args.hosts, args.processes) as where, disk(folder / "runs") as small:

        def start(name, **how):
            return Run(
                folder / name,
                where.words,
                count,
                hang_timeout_s=args.hang_s,
                **how,
            )

        kinds = [k for k in (*KINDS, *where.kinds) if small or k != "disk"]
        with start("runs", restarts=1000, steps=ENDLESS) as run:
            began, number, took = time.time(), 0, 0
            for number, kind in enumerate(dealt(kinds, args.faults, chance), 1):
                row = one(run, where, kind, chance.randrange(count), chance)
                seen |= identities(run)
                print(json.dumps({"fault": number, **row}), flush=True)
                took = round(time.time() - began)
                if took > 60 * args.minutes:
                    break
            run.child.send_signal(signal.SIGTERM)
            run.ends(75)
        steps = run.rows()[-1]["step"]
        # The same run, asked for as many steps as it has done, evaluates and trains no
        # further; the other one does all of them.
        with start("runs", restarts=0, steps=steps) as last:
            last.ends(0)
        with start("whole", restarts=0, steps=steps) as alone:
            alone.ends(0)
        wrong = {**differences(last, alone, count), "left": left(where, seen)}
    restarts = sum(bool(RESTART.search(line)) for _, line in run.lines)
    said = {"faults": number, "seconds": took, "steps": steps}
    print(json.dumps({**said, "restarts": restarts, "wrong": wrong}))
    if any(wrong.values()):
        raise SystemExit("the run is not the one that was left alone")


def dealt(kinds, faults, chance: Random):
    """Kinds of faults in a random order: each comes once before one comes again."""
    while faults > 0:
        yield from chance.sample(kinds, len(kinds))[:faults]
        faults -= len(kinds)


def identities(run: Run):
    """The processes of a run, by number and by when they were made."""
    found = set()
    for child in run.children():
        with suppress(psutil.Error):
            found.add((child.pid, child.create_time()))
    return found


def one(run: Run, where: Local | Box, kind, rank, chance: Random):
    """Do harm, see what follows, and undo it."""
    begun = time.time()
    run.wait(lambda: run.steps(begun))
    time.sleep(chance.uniform(0.1, 1.5))
    if kind == "slow":
        return slowed(run, where, rank)
    at, filler = time.time(), run.folder.parent / "filler"
    room = chance.choice(ROOM)
    damaged = damage(run) if kind == "damage" else None
    if kind == "cut":
        where.harm(kind, rank)
    elif kind != "disk":
        run.process(rank).send_signal(SIGNALS[kind])

    def noticed():
        if kind == "disk":  # checkpoints that are dropped meanwhile make room
            fill(filler, room)
        return run.said(" so all were ended", at) or failed(run, at)

    ended, _ = run.wait(noticed)
    last = run.steps()[-1]["step"]
    if kind == "cut":
        where.mend(rank)
    filler.unlink(missing_ok=True)
    back = run.wait(lambda: run.steps(ended))[0]
    said = named(run, kind, at)
    if said == "nothing" and kind == "damage" and back["step"] != damaged:
        said = "another checkpoint was complete before the process was killed"
    return {
        "kind": kind,
        "rank": rank,
        "ended_s": round(ended - at, 2),
        "again_s": round(back["time"] - at, 2),
        "from": back["step"],
        "lost": last - back["step"] + 1,
        "said": said,
    }


def named(run: Run, kind, at):
    """The line that names a fault; lines may come later than the step they precede."""
    end = time.monotonic() + LINE_S
    while time.monotonic() < end:
        for words in SAYS[kind]:
            if line := run.said(words, at):
                return line[1]
        time.sleep(0.05)
    return "nothing"


def failed(run: Run, at):
    return run.said("error: process", at)


def slowed(run: Run, where: Local | Box, rank):
    """Slow a link down for some steps, which the run has to bear."""
    at = time.time()
    before = run.steps()[-1]["step"]
    where.harm("slow", rank)
    after = run.wait(lambda: [r for r in run.steps(at) if r["step"] > before + 10])
    where.mend(rank)
    if run.said("restart ", at):
        raise SystemExit("a slow link has ended the run")
    return {
        "kind": "slow",
        "rank": rank,
        "step_s": round((after[0]["time"] - at) / 10, 3),
        "at": before,
    }


def damage(run: Run):
    """Change some bytes of the newest checkpoint.

    Returns:
        The step that would follow it; nothing where there is none yet.
    """
    folder = run.folder / "checkpoints"
    # A checkpoint has the number of its step as its name once it is whole.
    whole = [path for path in folder.glob("[0-9]*") if path.name.isdigit()]
    newest = max(whole, key=lambda path: int(path.name), default=None)
    if newest is None:
        return None
    files = [path for path in newest.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(b"damaged!")
    return int(newest.name) + 1


def fill(filler: Path, leave: int):
    """Take the room of a disk, but for some bytes, while others write on it."""
    with filler.open("ab", buffering=0) as file:
        # In MiB while that goes, then to within a page of what is to be left.
        for piece in (1 << 20, 1 << 12):
            free = os.statvfs(filler.parent)
            while free.f_bavail * free.f_bsize >= leave + piece:
                try:
                    file.write(bytes(piece))
                except OSError:
                    return
                free = os.statvfs(filler.parent)


def differences(run: Run, alone: Run, count):
    """What a run has that one left alone has not; nothing where they are equal."""
    mine, other = run.rows(), alone.rows()
    scores = [[(r["step"], r["loss"]) for r in x.rows("test")] for x in (run, alone)]
    return {
        "steps": [row["step"] for row in mine] != list(range(1, len(other) + 1)),
        "losses": [row["loss"] for row in mine] != [row["loss"] for row in other],
        "scores": scores[0] != scores[1],
        "samples": samples(run, alone, count, len(other)),
        "parameters": run.hash() != alone.hash(),
    }


def samples(run: Run, alone: Run, count, steps):
    """Hold what each process has read against the batches of the run left alone.

    Returns:
        What is wrong, in words.
    """
    whole = [record(alone, rank)[0] for rank in range(count)]
    for rank, batches in enumerate(whole):
        places = {tuple(ids): place for place, ids in enumerate(batches)}
        done = set()
        for attempt in record(run, rank):
            # What is read ahead of the end is in no batch of the run left alone.
            found = [places[ids] for ids in map(tuple, attempt) if ids in places]
            if found != [*range(min(found, default=0), max(found, default=-1) + 1)]:
                return f"rank {rank} has left out a batch, or read one twice"
            done |= set(found)
        if not done >= set(range(steps)):
            return f"rank {rank} has not read all batches"
    ids = [i for parts in zip(*whole) for part in parts for i in part]
    for start in range(0, BATCH * (steps - EPOCH) + 1, BATCH * EPOCH):
        if len(set(ids[start : start + BATCH * EPOCH])) != BATCH * EPOCH:
            return f"an epoch, at id {start}, lacks samples or repeats them"
    return ""


def record(run: Run, rank):
    """The batches that a rank has read, by its attempts."""
    files = run.read.glob(f"{rank}-*")
    return [[json.loads(x) for x in f.read_text().split("\n")[:-1]] for f in files]


def left(where: Local | Box, seen):
    """What outlives the runs: processes, and names of hosts."""
    now = {(p.pid, p.info["create_time"]) for p in psutil.process_iter(["create_time"])}
    return [*(pid for pid, _ in seen & now), *where.left()]
