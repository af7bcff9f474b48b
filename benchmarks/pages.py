"""Makes docs/benchmarks.md, docs/results and a table of README.md from the results.

    python benchmarks/pages.py

The results are the files of benchmarks/results. A section a file: what it measures, the
command, date and machine, one table, notes. A test holds that the pages in the checkout
are what this makes.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MADE = "<!-- Made by `make results` from benchmarks/results: change those files. -->"

INTRO = """\
Measured figures by topic. Each table has its command, date and machine; the figures \
are also files, one a benchmark, in [benchmarks/results](../benchmarks/results). Peers \
are measured in the same process or the same minutes, in turn: compare ratios, not \
milliseconds between days. Of accelerators one H100 was measured; figures of others \
are their compilers'.

Ranges are the least and the most of the readings, ± is half of a 95 % interval of the \
mean, and an empty cell was not measured. To record a benchmark again see \
[CONTRIBUTING.md](../CONTRIBUTING.md#record-a-benchmark)."""


PAGES = {
    "step": (
        "Speed of a step",
        "What the framework costs beside a hand-written loop, and its kernels on CPUs.",
        (
            "overhead",
            "distribute",
            "first_step",
            "header",
            "maxima",
            "convolutions",
            "convolutions_step",
            "memory",
            "profile",
            "commands",
            "tests",
            "structure",
        ),
    ),
    "learning": (
        "Learning",
        "What trainings reach: whole ones, with compressed sums, with outer loops and "
        "without a flush.",
        (
            "accuracy",
            "characters",
            "to_accuracy",
            "reducers_digits",
            "reducers_characters",
            "reducers_fashion_mnist",
            "outer_words",
            "outer_digits",
            "language_training_characters",
            "language_training_tokens",
            "without_flush",
            "without_flush_rates",
            "vessels",
        ),
    ),
    "communication": (
        "Communication",
        "What sums cost: packing, shaped links, step lists and the automatic choice.",
        (
            "links",
            "links_64mib",
            "links_64mib_slow",
            "links_rounds",
            "compress",
            "regret",
            "overlap",
            "overlap_alone",
            "algorithms",
            "scaling",
        ),
    ),
    "pipelines": (
        "Pipelines",
        "Steps in stages: time, memory, compilation, and training on slow links.",
        (
            "pipelines_steps",
            "pipelines_ticks",
            "executed_eager",
            "zero_bubble",
            "pipelines_compile",
            "pipelines_memory",
            "flow_links",
            "flow_links_dense",
        ),
    ),
    "planning": (
        "Planning and prediction",
        "How long searches take, how well steps and memory are predicted, and what "
        "choices cost.",
        (
            "executed",
            "executed_best",
            "executed_regret",
            "plans",
            "plans_commands",
            "first_plan",
            "stages",
            "piper_graphs",
            "memory_predicted",
            "recalibrated",
            "adapt",
        ),
    ),
    "targets": (
        "Targets",
        "What the compilers of TPUs and GPUs make of steps, and what a GPU does; "
        "see [targets.md](../targets.md).",
        (
            "targets",
            "targets_long",
            "volumes",
            "target_curves",
            "gpu_step",
            "gpu_attention",
            "reference_step",
            "attention",
        ),
    ),
    "input": (
        "Input",
        "How fast samples come, from disks, slow origins and peers in trouble.",
        (
            "input_rate",
            "token_rate",
            "volume_reads",
            "wait",
            "ids",
            "input_links",
            "input_faults",
            "partial_shuffle",
            "shuffling_error",
        ),
    ),
    "faults": (
        "Faults and elastic runs",
        "What a fault costs on two shared cores, and what a run takes to go on. Random "
        "faults train the tiny network of `benchmarks/faults_net.py`.",
        (
            "faults_soak",
            "faults_kill",
            "faults_term",
            "faults_stop",
            "faults_false_alarms",
            "elastic",
            "sweep",
            "checkpoint_stall",
            "readers",
            "stragglers",
            "preflight",
            "testbed_cycles",
            "testbed_psum",
        ),
    ),
    "network": (
        "Networks",
        "What a simulation of networks gives; see [network.md](../network.md) and "
        "[algorithms.md](../algorithms.md).",
        (
            "network_design",
            "network_tables",
            "sparse_hosts",
            "network_simgrid",
            "network_scale",
        ),
    ),
    "published": (
        "Measurements of others",
        "Predictions of rows that others measured and published; see "
        "[oracle.md](../oracle.md) and [paradl.md](../paradl.md).",
        (
            "oracle_rows",
            "oracle_rows_one",
            "oracle_rows_several",
            "fsdp_rows",
            "paradl_rows",
            "paradl_networks",
            "intervals",
        ),
    ),
    "large_clusters": (
        "Figures of large clusters",
        "Predictions of figures that others printed for clusters that nobody here has; "
        "see [reproductions.md](../reproductions.md).",
        (
            "imagenet_hour",
            "horovod_scaling",
            "sparse_512",
            "shuffle_512",
            "out_of_core",
            "language_mfu",
        ),
    ),
    "guarantees": (
        "What tests hold",
        "What must hold exactly or to rounding, and the tests that hold it.",
        (
            "guarantees_layouts",
            "guarantees_sums",
            "guarantees_pipelines",
            "guarantees_input",
            "guarantees_network",
            "guarantees_faults",
        ),
    ),
}
"""{page: (title, introduction, its results)}: a file of the name makes a section."""

README_MARKS = (
    "<!-- results: make results -->",
    "<!-- end of results -->",
)
"""Between these lines of README.md stands the table of `README_ROWS`."""
SEEDS = "0", "1", "2"
SLOW = "100 Mbit"
LLAMA = "Llama 1B, fsdp 16, bfloat16, 2 x 2,048 tokens a device"
README_ROWS: tuple[Any, ...] = (
    (
        *("accuracy", "digits, held-out accuracy of seeds 0, 1, 2"),
        *("{}, {}, {} %", [(seed, "jaxdist") for seed in SEEDS]),
        *("hand-written jit loop: {}, {}, {} %",),
        [(seed, "hand-written loop") for seed in SEEDS],
    ),
    (
        *("executed_best", "a small VGG-16 at 100 Mbit, a step"),
        *("{} ms with what `jaxdist plan` chooses", [(SLOW, "best")]),
        *("data parallelism {} ms", [(SLOW, "data parallel")]),
    ),
    (
        *("targets", f"{LLAMA}, as its compilers make it"),
        # The kernel of attention counts at its peak rate.
        "TPU v5p: {} GB, estimated MFU at most {} %",
        [(f"{LLAMA}; tpu-v5p:2x2x4", f) for f in ("memory", "estimated MFU")],
        *("H100: {} GB", [(f"{LLAMA}; h100:2x8", "memory")]),
    ),
)
"""A row a result: its file, what it is, and figures of it by case and figure."""


def load_results():
    """{name: result} of all files, by name."""
    files = sorted(RESULTS.glob("*.json"))
    return {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in files}


def number(value):
    """Write a number with separators of thousands; texts stay as they are."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}"


def cell(one, with_unit, with_n):
    """Write a value with its spread."""
    spread = one["spread"] or {}
    unit = f" {one['unit']}" if with_unit and one["unit"] else ""
    between = " to ".join(map(number, spread.get("range", ())))
    readings = f"n = {one['n']}" if with_n and one["n"] else ""
    if one["value"] is None:  # only the least and the most are known
        text, inside = between + unit, [readings]
    else:
        text, inside = number(one["value"]) + unit, [between, readings]
    if "interval_95" in spread:
        text += f" ± {number(spread['interval_95'])}"
    said = "; ".join(filter(None, inside))
    return f"{text} ({said})" if said else text


def table(result):
    """Lay rows out as Markdown: a row a case, a column a figure."""
    rows = result["rows"]
    figures = list(dict.fromkeys(one["figure"] for one in rows))
    cases = list(dict.fromkeys(one["case"] for one in rows))
    counts = {case: {one["n"] for one in rows if one["case"] == case} for case in cases}
    varied = len({one["n"] for one in rows}) > 1
    with_n = varied and any(len(own) > 1 for own in counts.values())
    columns = []  # a title and the cells by case
    for figure in figures:
        own = [one for one in rows if one["figure"] == figure]
        units = {one["unit"] for one in own if not isinstance(one["value"], str)}
        title = figure or "measured"
        if len(units) == 1 and (unit := next(iter(units))):
            title += f", {unit}"
        cells = {one["case"]: cell(one, len(units) > 1, with_n) for one in own}
        goals = {one["case"]: one["goal"] for one in own if one["goal"]}
        columns.append((title, cells))
        if goals:
            columns.append(("goal", goals))
    if varied and not with_n:
        columns.append(
            ("n", {case: str(own.pop() or "") for case, own in counts.items()})
        )
    sources = {one["case"]: one["source"] for one in rows if "source" in one}
    if sources:
        columns.append(("source", sources))
    lines = [[result.get("case_name", "case"), *(title for title, _ in columns)]]
    lines.append(["---"] * len(lines[0]))
    lines += [[c, *(cells.get(c) or "" for _, cells in columns)] for c in cases]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine_line(machine):
    """Write a machine in one line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"Python {machine['python']}, jax {machine['jax']}"
    )


def section(result, usual):
    """Write the section of one result."""
    yield f"## {result['title']}\n"
    yield f"{result['measures']}\n"
    if result["not_run"]:
        yield f"<!-- not run: {result['not_run']} -->"
    yield f"```bash\n{result['command']}\n```\n"
    said = [result["date"]]
    if result["machine"] != usual:
        said.append(machine_line(result["machine"]))
    if result["conditions"]:
        said.append(result["conditions"])
    counts = {one["n"] for one in result["rows"]}
    if len(counts) == 1 and (n := counts.pop()):
        said.append(f"{n} readings each")
    goal = f" Goal: {result['goal']}." if result["goal"] else ""
    yield f"{'; '.join(said)}.{goal}\n"
    yield f"{table(result)}\n"
    yield from (f"{note}\n" for note in result["notes"])


def usual_machine(results):
    """Return the machine of most results, which pages name once."""
    machines = Counter(json.dumps(r["machine"]) for r in results.values())
    return json.loads(machines.most_common(1)[0][0])


def make_pages():
    """{path: text} of the index and of every page."""
    results = load_results()
    usual = usual_machine(results)
    machine = f"Machine, where nothing else is said: {machine_line(usual)}."
    index = [f"# Benchmarks\n\n{MADE}\n\n{INTRO}\n\n{machine}\n"]
    made: dict[Path, str] = {}
    for name, (title, intro, names) in PAGES.items():
        head = f"## [{title}](results/{name}.md)"
        index.append(f"{head}\n\n{intro.replace('](../', '](')}\n")
        index.append("| table | measured | date |\n|---|---|---|")
        parts = [f"# {title}\n\n{MADE}\n\n{intro} {machine}\n"]
        for key in names:
            result = results[key]
            anchor = slug(result["title"])
            link = f"[{result['title']}](results/{name}.md#{anchor})"
            first, *_ = re.split(r"[.:;](?: |$)", result["measures"])
            measures = first.replace("](../", "](")
            index.append(f"| {link} | {measures} | {result['date']} |")
            parts += section(result, usual)
        index.append("")
        path = ROOT / "docs" / "results" / f"{name}.md"
        made[path] = "\n".join(parts).rstrip() + "\n"
    made[ROOT / "docs" / "benchmarks.md"] = "\n".join(index).rstrip() + "\n"
    return made


def readme_table(results):
    """Return the table of README.md: figures of results, with their dates."""
    lines = ["| what | result | beside it | date |", "|---|---|---|---|"]
    for name, what, *parts in README_ROWS:
        rows = {(row["case"], row["figure"]): row for row in results[name]["rows"]}
        texts = []
        for text, figures in zip(parts[::2], parts[1::2], strict=True):
            # Ranges are those of the pages; a ratio says nothing without its own.
            bare = len(figures) > 1 or text != "{}"
            shown = (
                number(rows[one]["value"]) if bare else cell(rows[one], False, False)
                for one in figures
            )
            texts.append(text.format(*shown))
        lines.append(f"| {' | '.join((what, *texts, results[name]['date']))} |")
    return "\n".join(lines)


def make_readme(text, results):
    """Return the text of README.md with its table of results."""
    begin, end = README_MARKS
    before, rest = text.split(begin)
    _, behind = rest.split(end)
    return f"{before}{begin}\n\n{readme_table(results)}\n{end}{behind}"


def slug(title):
    """Return the anchor that a heading has."""
    kept = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def main():
    pages = make_pages()
    (ROOT / "docs" / "results").mkdir(exist_ok=True)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(make_readme(text, load_results()), encoding="utf-8")


if __name__ == "__main__":
    main()
