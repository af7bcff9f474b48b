"""Networks compiled for machines that are not here: memory, collectives, estimates.

    python benchmarks/targets.py                      # with jaxdist[tpu,cuda12]
    python benchmarks/targets.py --only resnet50
    python benchmarks/targets.py --long               # tokens split over chips

Each step is compiled by the real compiler of its target, in a process of its own, and
its program is held against the plan. A step that differs from its plan, or that does
not fit where it should, ends the benchmark with an error.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from record import add_record_option, row, write_result

EIGHT, SIXTEEN = ("tpu-v5p:2x2x2", "h100:1x8"), ("tpu-v5p:2x2x4", "h100:2x8")
GPT2 = ("gpt2_small", "data.name=synthetic", "precision=bfloat16")
LLAMA = (
    *("llama", "data.name=synthetic", "precision=bfloat16", "data.batch=32"),
    *("plan.mesh.data=1", "plan.mesh.fsdp=16"),
)
LLAMA_8B = (
    *("llama", "data.name=synthetic", "precision=bfloat16"),
    *("data.batch=64", "data.context=8192", "model.context=8192", "model.depth=32"),
    *("model.embed=4096", "model.heads=32", "model.kv_heads=8", "model.hidden=14336"),
    *("plan.mesh.data=1", "plan.mesh.fsdp=64"),
)
LONG_GPT2 = (*GPT2, "data.batch=512", "plan.mesh.data=2", "plan.mesh.fsdp=4")
STEPS: dict[str, tuple[Any, ...]] = {
    "ResNet-50, data 8, bfloat16, 256 images a device": (
        EIGHT,
        *("resnet50", "data.name=synthetic", "precision=bfloat16"),
        *("data.batch=2048", "plan.mesh.data=8"),
    ),
    "GPT-2 small, fsdp 8, bfloat16, 8 x 1,024 tokens a device": (
        EIGHT,
        *(*GPT2, "data.batch=64", "plan.mesh.data=1", "plan.mesh.fsdp=8"),
    ),
    "GPT-2 small, data 2 x fsdp 4, bfloat16, 64 x 1,024 tokens a device": (
        EIGHT[1:],
        *LONG_GPT2,
    ),
    "GPT-2 small, 64 x 1,024 tokens a device, blocks computed again": (
        EIGHT[1:],
        *(*LONG_GPT2, "plan.remat=true"),
    ),
    "GPT-2 small, 64 x 1,024 tokens a device, logits whole": (
        EIGHT[1:],
        *(*LONG_GPT2, "plan.logits=whole"),
    ),
    "2 blocks of Llama 1B, fsdp 16, bfloat16, 2 x 2,048 tokens a device": (
        SIXTEEN,
        *(*LLAMA, "model.depth=2"),
    ),
    "Llama 1B, fsdp 16, bfloat16, 2 x 2,048 tokens a device": (SIXTEEN, *LLAMA),
    "Llama 8B, fsdp 64, bfloat16, 8,192 tokens a device": (
        ("tpu-v5p:4x4x4",),
        *LLAMA_8B,
    ),
}
"""The targets of each step, and its words."""
LLAMA_3_8B = (
    *("llama", "data.name=synthetic", "precision=bfloat16", "model.vocabulary=128256"),
    *("model.depth=32", "model.heads=32", "model.kv_heads=8", "model.embed=4096"),
    *("model.hidden=14336", "model.tied_head=false", "plan.mesh.data=1"),
    "plan.context=ring",
)
LONG_STEPS: dict[str, tuple[Any, ...]] = {
    "Llama 3 8B, 16 x 32,768 tokens, context 4 x fsdp 16": (
        ("tpu-v5p:4x4x4",),
        *(*LLAMA_3_8B, "data.context=32768", "model.context=32768", "data.batch=16"),
        *("plan.mesh.context=4", "plan.mesh.fsdp=16"),
    ),
    "Llama 3 8B, 4 x 131,072 tokens, context 16 x fsdp 4": (
        ("tpu-v5p:4x4x4",),
        *(*LLAMA_3_8B, "data.context=131072", "model.context=131072", "data.batch=4"),
        *("plan.mesh.context=16", "plan.mesh.fsdp=4"),
    ),
}
"""The same of long samples, whose keys and values go round a ring of chips."""


def compile_step(words: Sequence[str], target: str) -> dict[str, Any]:
    """Return what `jaxdist compile --json` says."""
    command = [sys.executable, "-m", "jaxdist.launch", "compile", *words]
    done = subprocess.run(
        [*command, "--target", target, "--fresh", "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    if not done.stdout:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows_of(case: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the figures of one step on one target."""
    sent = found["hidden_bytes"] + found["exposed_bytes"]
    ring = [
        own
        for own in found["collectives"]
        if own["kind"] == "collective-permute" and own["axes"] == ["context"]
    ]
    figures = [
        ("memory", found["memory_bytes"] / 1e9, "GB"),
        ("differences from the plan", len(found["differences"]), ""),
        ("bytes that a device sends", sent / 1e6, "MB"),
        ("of these beside computing", 100 * found["hidden_bytes"] / max(1, sent), "%"),
        ("compilation", found["compile_s"], "s"),
    ]
    if ring:
        left = 1 - found["memory_bytes"] / found["capacity_bytes"]
        moved, hidden = (
            sum(x[k] for x in ring) for k in ("sent_bytes", "hidden_bytes")
        )
        figures += [
            ("memory left", 100 * left, "%"),
            ("of the ring's bytes beside computing", 100 * hidden / moved, "%"),
        ]
    if found["step_s"] is not None:
        figures += [
            ("estimated step", 1e3 * found["step_s"], "ms"),
            ("estimated MFU", 100 * found["mfu"], "%"),
        ]
    return [row(case, value, unit, figure=name) for name, value, unit in figures]


def main() -> int:
    """Compile, print, and fail where a program is not its plan's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="steps whose words have this one")
    parser.add_argument("--long", action="store_true", help="steps of long samples")
    add_record_option(parser)
    args = parser.parse_args()
    rows, wrong = [], 0
    steps = LONG_STEPS if args.long else STEPS
    for title, (targets, *words) in steps.items():
        if args.only not in " ".join(words):
            continue
        for target in targets:
            found = compile_step(words, target)
            wrong += not found["fits"] or bool(found["differences"])
            for each in rows_of(f"{title}; {target}", found):
                print(each["case"], each["figure"], each["value"], each["unit"])
                rows.append(each)
            for difference in found["differences"]:
                print(difference, file=sys.stderr)
    if args.record:
        write_result("targets_long" if args.long else "targets", rows)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
