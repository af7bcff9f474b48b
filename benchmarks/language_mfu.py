"""Estimated MFU of the plans that `jaxdist plan` chooses, beside published figures.

    python benchmarks/language_mfu.py                      # all four, minutes
    python benchmarks/language_mfu.py --only mixtral

Llama 3 8B and Mixtral 8x7B on 64 chips of TPU v5p (a v5p-128) and on 64 H100, whose
files are data sheets: nothing here was measured or fitted. MFU is that of `jaxdist plan
--json` and `jaxdist compile`: FLOPs of the network, scores of attention counted whole,
over the peak of the devices (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).
"""

import argparse
import sys
from typing import Any

from record import add_record_option, row, write_result

from jaxdist.launch.planning.layout_search import PlanQuery, search_layouts

DEVICES = 64
CLUSTERS = {"TPU v5p": "tpu-v5p", "H100": "dgx-h100"}
WORDS = ("data.name=synthetic", "precision=bfloat16")
NETWORKS: dict[str, tuple[str, ...]] = {
    # Grattafiori et al. 2024, arXiv:2407.21783, table 3.
    "Llama 3 8B, 128 x 8,192 tokens": (
        *("llama", "model.depth=32", "model.heads=32", "model.kv_heads=8"),
        *("model.embed=4096", "model.hidden=14336", "model.vocabulary=128256"),
        *("model.tied_head=false", "data.context=8192", "data.batch=128"),
    ),
    "Mixtral 8x7B, 256 x 4,096 tokens, capacity 1.25": (
        *("mixtral", "model.capacity_factor=1.25", "data.context=4096"),
        "data.batch=256",
    ),
}
GOALS = {"llama": "60 or more", "mixtral": "45 or more"}
"""Of the MFU, by experiment."""

BLOCKS, FEATURES = 32, 4096
"""Of both networks."""
H100_FLOPS = 989.4e12
"""Peak in bfloat16, by which a figure that was published as FLOP/s becomes MFU."""
MAXTEXT = "github.com/AI-Hypercomputer/maxtext"
PUBLISHED: tuple[tuple[str, float | None, float, str], ...] = (
    (
        "MaxText, 32B, 64 TPU v5p",
        *(328.0, 71.47, f"{MAXTEXT}, MaxText/configs/v5p/README.md"),
    ),
    (
        "MaxText, Llama 2 70B, 64 TPU v5p",
        *(None, 65.0, f"{MAXTEXT}, getting_started/Run_Llama2.md"),
    ),
    (
        "MaxText, Mixtral 8x7B, 64 TPU v5p",
        *(251.94, 54.89, f"{MAXTEXT}, end_to_end/tpu/mixtral/Run_Mixtral.md"),
    ),
    (
        "MaxText, Mixtral 8x7B, 256 TPU v5p, 4,096 tokens",
        None,
        52.56,
        "maxtext.readthedocs.io, Optimized models tiering",
    ),
    (
        "MaxText, Llama 2 7B, 64 H100",
        409.0,
        100 * 409e12 / H100_FLOPS,
        f"{MAXTEXT}, MaxText/configs/a3/llama_2_7b/README.md; of 989.4 TFLOP/s",
    ),
    (
        "Megatron Core, Mixtral 8x22B, H100, the best published",
        *(None, 49.3, "Liu et al. 2025, arXiv:2504.14960"),
    ),
)
"""What it is, TFLOP/s of a device, MFU in per cent, and where it is printed."""


def unseen_score_flops(samples: int, tokens: int) -> int:
    """Return the FLOPs of scores of later tokens, which causal attention need not see.

    Of 12 x blocks x features x tokens for each token (Chowdhery et al. 2022) it is a
    half: two products forward and four backward, over the scores above the diagonal.

    Args:
        samples: of a step.
        tokens: of a sample.
    """
    return 6 * BLOCKS * FEATURES * samples * tokens**2


def estimate(case: str, words: tuple[str, ...], cluster: str) -> list[dict[str, Any]]:
    """Return the figures of the first plan of a network on a cluster."""
    query = PlanQuery(
        experiment=words[0],
        overrides=(*words[1:], *WORDS),
        cluster=cluster,
        devices=(DEVICES,),
    )
    found = search_layouts(query)
    best = found.ranking.plans[0]
    made = best.prediction
    if not made.fits or made.mfu is None:
        raise SystemExit(f"{case}: the first plan, {best.plan.label}, does not fit")
    flops = found.describer.profile.model_flops
    data = found.resolved.config.data
    seen = 1 - unseen_score_flops(data.batch, data.context) / flops
    # The shortest steps of the interval are shorter than the peak allows.
    slow, fast = (min(1.0, made.mfu * made.step_s / s) for s in made.interval_s[::-1])
    figures = [
        row(case, best.plan.label, "", figure="first plan"),
        row(case, made.step_s, "s", figure="step", readings=made.interval_s),
        row(case, made.memory_bytes / 1e9, "GB", figure="memory"),
        row(case, flops / 1e15, "PFLOP", figure="model FLOPs"),
        row(
            case, flops / made.step_s / DEVICES / 1e12, "TFLOP/s", figure="of a device"
        ),
        row(case, 100 * made.mfu, "%", figure="MFU", readings=[100 * slow, 100 * fast])
        | {"goal": GOALS[words[0]]},
        row(case, 100 * seen * made.mfu, "%", figure="MFU, half of the scores"),
    ]
    for one in figures:
        print(f"{case}: {one['figure']} {one['value']} {one['unit']} {one['spread']}")
    terms = {term: round(s, 3) for term, s in made.terms_s.items() if s > 1e-3}
    print(f"{case}: {terms}, {made.interval.basis}", flush=True)
    source = "estimated here"
    return [one | {"n": None, "source": source} for one in figures]


def main() -> int:
    """Plan, print, and record where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="networks whose words have this one")
    add_record_option(parser)
    args = parser.parse_args()
    rows = []
    for network, words in NETWORKS.items():
        for device, cluster in CLUSTERS.items():
            if args.only in " ".join(words):
                case = f"{network}, {DEVICES} {device}"
                rows += estimate(case, words, cluster)
    for case, speed, mfu, source in PUBLISHED:
        if speed is not None:
            found = row(case, speed, "TFLOP/s", figure="of a device")
            rows.append(found | {"source": source})
        rows.append(row(case, mfu, "%", figure="MFU") | {"source": source})
    if args.record:
        write_result("language_mfu", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
