"""Loss and bytes of optimizers and outer loops on small language models.

    python benchmarks/language_training.py characters --text input.txt
    python benchmarks/language_training.py tokens --text input.txt
    python benchmarks/language_training.py tokens --text input.txt --tune

Each row trains the same Transformer of one block on as many samples in as many steps,
on two fake devices: AdamW and Muon as shards of one batch, DiLoCo and SparseLoCo as two
replicas of AdamW that average every 10 steps. `characters` has windows of one text,
`tokens` windows that its parts between blank lines share, as tokens of a vocabulary of
512. What is scored are the held-out parts; of outer loops the outer parameters after a
whole number of periods. Bytes are those that a device sends by the step, by formula,
which a run holds its compiled programs to.

Learning rates are the best of three for AdamW and for Muon, and outer rates the best of
three for DiLoCo and for SparseLoCo, which have AdamW's rate; all on a seed that is not
scored. `--tune` prints them. Runs that are done are not repeated.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
from pathlib import Path
from typing import Any

from outer import samples_of
from record import add_record_option, row, write_result
from reducers import interval

STEPS = 600
SAME = (
    *("data.eval_batch=512", "model.depth=1", "model.embed=64", "model.hidden=192"),
    *("model.heads=2", "model.kv_heads=2", "checkpoint.every_steps=100000"),
)
TASKS = {
    "characters": ("data.context=32", "data.stride=32", "data.batch=32"),
    "tokens": ("data.context=64", "data.batch=16"),
}
APART = ("plan.mesh.data=1", "plan.mesh.replica=2", "plan.outer.sync_interval=10")
ROWS = {
    "AdamW": (),
    "Muon": ("optim.name=muon",),
    "DiLoCo": APART,
    "SparseLoCo": (
        *(*APART, "plan.outer.compressor=chunked_top_k", "plan.outer.momentum=0"),
        "plan.outer.density=0.03125",
    ),
}
RATES = (0.003, 0.01, 0.03)
OUTER_RATES = {
    "DiLoCo": ((0.7, 0.9), (0.7, 0.5), (1.0, 0.5)),
    "SparseLoCo": ((0.7,), (1.0,), (1.4,)),
}
"""Outer rates, for DiLoCo with a momentum each."""
KEYS = ("optim.lr", "plan.outer.learning_rate", "plan.outer.momentum")
TUNE_SEED = 100
MEASURES = {
    task: f"Held-out loss of a Transformer of one block and 64 features on {what}, "
    f"{STEPS} steps of 1,024 tokens, 2 fake devices: AdamW and Muon with data 2, "
    "DiLoCo and SparseLoCo (1/32 of each chunk, 2 bits) as 2 replicas of AdamW with "
    "10 steps a period. Bytes are those that a device sends, by formula. Intervals are "
    "of differences seed by seed."
    for task, what in (
        ("characters", "the characters of tinyshakespeare, windows of 32"),
        ("tokens", "tinyshakespeare, 512 kinds of tokens, packed windows of 64"),
    )
}
BEST = {
    "characters": {
        "AdamW": (0.01,),
        "Muon": (0.03,),
        "DiLoCo": (0.01, 0.7, 0.5),
        "SparseLoCo": (0.01, 1.0),
    },
    "tokens": {
        "AdamW": (0.003,),
        "Muon": (0.03,),
        "DiLoCo": (0.003, 0.7, 0.5),
        "SparseLoCo": (0.003, 1.4),
    },
}
"""The best of `--tune`: values of `KEYS`."""


def prepared(task: str, text: Path, folder: Path) -> list[str]:
    """Return the words that name a task's samples."""
    if task == "characters":
        return [f"data.path={text}"]
    if not (folder / "data" / "speeches").exists():
        call(
            *("prepare", "text", str(text), "--separator", r"\n\n", "--name"),
            *("speeches", "--dir", str(folder / "data"), "--vocabulary", "512"),
        )
    return [f"data.name=tokens:{folder / 'data' / 'speeches'}"]


def call(*words: str) -> None:
    """Run a command of jaxdist in this process."""
    from jaxdist.launch.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(list(words))
    if code:
        raise SystemExit(said.getvalue())


def trained(
    folder: Path, task: str, words: list[str], name: str, rates: Any, seed: int
) -> dict[str, Any]:
    """Train once, or read what an earlier call has trained."""
    run = "-".join([task, name, *map(str, rates), str(seed)])
    summary = folder / run / "summary.json"
    # A run that was interrupted has a summary, too, and goes on.
    if not summary.exists() or json.loads(summary.read_text())["status"] != "done":
        given = [f"{key}={rate}" for key, rate in zip(KEYS, rates, strict=False)]
        where = [f"run.dir={folder}", f"run.name={run}", f"seed={seed}", "--json"]
        call("train", *words, *ROWS[name], *given, *where)
    return json.loads(summary.read_text())


def tune(folder: Path, task: str, words: list[str]) -> None:
    """Print the loss of every row at the rates of its grid."""
    best: tuple[float, ...] = ()
    for name in ROWS:
        tried: dict[tuple[float, ...], float] = {}
        own: list[tuple[float, ...]] = [(rate,) for rate in RATES]
        if name in OUTER_RATES:
            own = [(*best, *outer) for outer in OUTER_RATES[name]]
        for rates in own:
            run = trained(folder, task, words, name, rates, TUNE_SEED)
            tried[rates] = run["loss"]
            print(f"{task} {name:11} {rates}  {run['loss']:.4f}", flush=True)
        if name == "AdamW":
            best = min(tried, key=tried.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/language_training"))
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--tune", action="store_true", help="try all rates of the grid")
    add_record_option(parser)
    given = parser.parse_args()
    # Seeds of a row have one program.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(given.folder / "cache"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    folder = given.folder.resolve()
    task = given.task
    words = ["characters", *TASKS[task], *SAME, *prepared(task, given.text, folder)]
    samples, batch = samples_of(words)
    words.append(f"epochs={(STEPS * batch - 0.5) / samples}")

    if given.tune:
        tune(folder, task, words)
        return
    losses: dict[str, list[float]] = {}
    made = []
    for name in given.rows:
        rates = BEST[task][name]
        runs = [
            trained(folder, task, words, name, rates, seed)
            for seed in range(given.seeds)
        ]
        losses[name] = own = [run["loss"] for run in runs]
        sent = sum(runs[0]["bytes_by_collective"].values())
        words_of = ("rate", "outer rate", "outer momentum")
        parts = zip(words_of, rates, strict=False)
        case = ", ".join([name, *(f"{word} {rate}" for word, rate in parts)])
        mean, n = statistics.mean(own), len(own)
        made.append(row(case, mean, "nats", figure="held-out loss", readings=own))
        made.append(row(case, sent, "B", figure="a step and device", n=n))
        beside = {"Muon": "AdamW", "DiLoCo": "AdamW", "SparseLoCo": "DiLoCo"}.get(name)
        line = f"{case:45} loss {mean:.4f} ({min(own):.4f} to {max(own):.4f})"
        if beside in losses:
            pairs = zip(own, losses[beside], strict=True)
            more = [100 * (a / b - 1) for a, b in pairs]
            half, part = interval(more), statistics.mean(more)
            figure = f"loss, more than {beside}"
            made.append(row(case, part, "%", figure=figure, interval_95=half, n=n))
            line += f", {part:+.2f} % ± {half or 0:.2f} of {beside}"
        print(f"{line}, {sent:,} bytes a step", flush=True)
    if given.record:
        write_result(
            f"language_training_{task}",
            made,
            title=f"Optimizers and outer loops on {task}",
            measures=MEASURES[task],
            not_run="some minutes, and a text that is not in the checkout",
            case_name="training",
        )


if __name__ == "__main__":
    main()
