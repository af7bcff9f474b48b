"""What an outer loop saves in bytes and costs in loss, beside data parallelism.

    python benchmarks/outer.py [words] [digits] [--text FILE] [--seeds 1] [--rows ...]

Each row trains the same network from the same weights on as many samples, on two fake
devices: as shards of one batch (`data 2`), or as two replicas with an outer loop.
`words` is the tiny Transformer on the characters of a text, by default the help texts
that come with every Python; `digits` is ResNet-8 on handwriting. Sorted hosts have a
half of the samples each, in the order of the text or of the labels, and exchange
nothing, or with q = 0.1 a tenth an epoch. Bytes are those that a device sends by
the step in the compiled programs, and what is scored are the outer parameters after a
whole number of periods. Runs that are done are not repeated.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TOGETHER = ("plan.mesh.data=2",)
APART = ("plan.mesh.data=1", "plan.mesh.replica=2", "plan.outer.sync_interval=50")
# A little less than the published 0.9: there are few outer steps.
DILOCO = (*APART, "plan.outer.momentum=0.8")
SORTED = "plan.shuffle.partitions=2"
ROWS = {
    "data 2": TOGETHER,
    "DiLoCo 50": DILOCO,
    "DiLoCo 50, published": APART,
    "DiLoCo 50, 2 fragments": (*DILOCO, "plan.outer.fragments=2"),
    "DiLoCo 50, int8": (*DILOCO, "plan.outer.compressor=int8"),
    "local SGD 50": (*APART, "plan.outer.learning_rate=1", "plan.outer.momentum=0"),
    "data 2, sorted": (*TOGETHER, SORTED, "plan.shuffle.exchange_fraction=0"),
    "DiLoCo 50, sorted": (*DILOCO, SORTED, "plan.shuffle.exchange_fraction=0"),
    "DiLoCo 50, sorted, q 0.1": (*DILOCO, SORTED, "plan.shuffle.exchange_fraction=0.1"),
}
TASKS = {
    "words": (
        *("characters", "data.context=16", "data.stride=16", "data.batch=64"),
        *("model.size=tiny", "model.depth=1", "model.heads=4", "model.kv_heads=2"),
        *("model.embed=32", "model.hidden=64", "optim.lr=0.01"),
    ),
    "digits": ("digits", "model.width=8", "plan.mesh.spatial_h=1"),
}
STEPS = {"words": 10_000, "digits": 650}


def python_text(folder: Path) -> Path:
    """Write the help texts of this Python into a file."""
    from pydoc_data.topics import topics

    path = folder / "python-topics.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(topics[name] for name in sorted(topics)))
    return path


def command(verb: str, words: list[str]) -> dict[str, Any]:
    """Run a command of jaxdist and read its JSON."""
    full = [sys.executable, "-m", "jaxdist.launch", verb, *words, "--json"]
    done = subprocess.run(full, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def trained(folder: Path, name: str, words: list[str]) -> dict[str, Any]:
    """Train once, or read what an earlier call has trained; with its metered bytes."""
    found = folder / f"{name}.json"
    if not found.exists():
        metered = command("bytes", words)
        sent = metered.get("mean", metered["total"])["compiled"]
        run = command("train", [*words, f"run.dir={folder}", f"run.name={name}"])
        found.write_text(json.dumps({**run, "sent": sent}))
    return json.loads(found.read_text())


def samples_of(words: list[str]) -> tuple[int, int]:
    """Return the training samples of an experiment, and those of a step."""
    from jaxdist.input.registry import open_data
    from jaxdist.launch.config.resolve import resolve_config
    from jaxdist.launch.training.job.batch_spec import feature_spec

    config = resolve_config(words[0], words[1:]).config
    return len(open_data(config.data, feature_spec(config))[0]), config.data.batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", nargs="*", default=[], help="key=value for every row")
    parser.add_argument("--folder", type=Path, default=Path("runs/outer"))
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    given = parser.parse_args()
    for task in given.tasks or TASKS:
        words, steps = [*TASKS[task]], given.steps or STEPS[task]
        if task == "words":
            words.append(f"data.path={given.text or python_text(given.folder)}")
        samples, batch = samples_of(words)
        # Half a sample less: the number of steps is rounded up.
        words += [f"epochs={(steps * batch - 0.5) / samples}", *given.set]
        for seed in range(given.seeds):
            first: dict[str, Any] = {}
            for row in given.rows:
                by_label = "sorted" in row and task == "digits"
                asked = [*words, *ROWS[row], *["data.order=label"] * by_label]
                name = f"{task}-{row.replace(', ', '-').replace(' ', '')}-{seed}"
                run = trained(given.folder, name, [*asked, f"seed={seed}"])
                first = first or run
                print(
                    f"{task:6} {seed}  {row:25} loss {run['loss']:.4f} "
                    f"({100 * (run['loss'] / first['loss'] - 1):+7.2f} %)  "
                    f"accuracy {100 * run['accuracy']:6.2f} %  "
                    f"{run['sent']:>9,.0f} bytes a step "
                    f"({first['sent'] / run['sent']:.1f}x fewer)  "
                    f"{run['steps']} steps, {run['step_s'] * 1e3:.0f} ms each",
                    flush=True,
                )


if __name__ == "__main__":
    main()
