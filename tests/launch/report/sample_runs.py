"""What else lies in a run's folder, as training, `compare` and `scale` write it."""

import functools
import json

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.local_shuffle.shuffle import PartialShuffle
from jaxdist.launch.training.job.shuffle_quality import measure_shuffle_quality


def numbers(name, predicted, measured, unit="s"):
    accurate = None if not measured else max(0, 1 - abs(predicted / measured - 1))
    return {
        "name": name,
        "unit": unit,
        "predicted": predicted,
        "measured": measured,
        "accurate": accurate,
    }


def cell(kind, stage, micro, start, end):
    return {"kind": kind, "stage": stage, "micro": micro, "start": start, "end": end}


LANES = [
    [cell("forward", 0, 0, 0.0, 0.01), cell("backward", 0, 0, 0.015, 0.02)],
    [cell("forward", 1, 0, 0.01, 0.012), cell("backward", 1, 0, 0.012, 0.015)],
]


def compared_of(sample):
    sample.plan = Plan(mesh=MeshShape(pipe=2))
    sample.lock["values"]["optim.accumulate"] = {"value": 1, "by": "command line"}
    return {
        "cluster": "mine",
        "step": numbers("step", 0.03, sample.run.step_s),
        "interval_s": [0.025, 0.035],
        "inside_interval": False,
        "terms": [
            numbers("compute", 0.02, 0.025),
            numbers("activations, pipe", 0.01, 0.0114),
            numbers("memory", 1e6, 2e6, "B"),
        ],
        "layers": [numbers("stem.conv", 0.01, 0.02), numbers("", 0.0, 0.005)],
        "memory_by_term": {"parameters": 1000, "temporaries": 5000},
        "misses": [
            {
                "term": "compute",
                "seconds": 0.005,
                "likely_cause": "a <slow> core",
                "remedy": "another",
            }
        ],
        "watched": {
            "devices": [
                {"device": 0, "steps": 4, "step_s": 0.04, "terms_s": {"compute": 1}}
            ]
        },
        "pipeline": {"planned": LANES, "measured": [LANES[0], []]},
    }


def collective(kind, axes, payload):
    known = {"kind": kind, "axes": axes, "count": 3, "wire": payload * 3 // 2}
    return known | {"ledger": payload, "program": payload}


LINKS = {
    "data": {"devices": 2, "level": "host", "bytes_per_s": 1e9, "alpha_s": 1e-4},
    "pipe": {"devices": 2, "level": "net", "bytes_per_s": 2.5e7, "alpha_s": 1e-3},
}


DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAAAAABX3VL4AAAADklEQVR4nGOMYmBiYAAAAdQAXtQYtZQA"
    "AAAASUVORK5CYII="
)
"""A picture of four pixels."""


def scored(**more):
    """Return what `jaxdist report` keeps of the samples that it has scored."""
    counts = {(0, 0): 30, (1, 1): 25, (1, 0): 4, (2, 2): 31}
    worst = {"id": 7, "label": 1, "predicted": 0, "loss": 3.25, "probability": 0.0388}
    return {
        "checkpoint": 674,
        "asked": 90,
        "samples": 90,
        "held_out": 360,
        "confusion": [
            {"label": a, "predicted": b, "samples": n} for (a, b), n in counts.items()
        ],
        "worst": [worst | {"picture": DOT}],
    } | more


def compiled(**more):
    """Return what a compiler says of a step, as `jaxdist compile --json` has it."""
    layer = {"seconds": 2e-5, "flops": 0, "bytes": 9, "utilisation": None}
    return {
        "experiment": "digits",
        "target": "tpu-v5e:2x4",
        "plan": "pipe 2 x data 2",
        "compiler": "libtpu 0.0.42.1",
        "options": {},
        "fits": True,
        "capacity_bytes": 16 * 2**30,
        "memory_bytes": 10_900_000,
        "memory_terms": {"parameters": 310_248, "optimizer": 310_252},
        "host_bytes": 0,
        "differences": [],
        "rewrites": [
            {
                "name": "sent in 16 bits",
                "kind": "collective-permute",
                "axes": ["pipe"],
                "planned": 64_000,
                "program": 32_000,
            }
        ],
        "layers": [
            layer | {"layer": "", "cycles": 137_176},
            layer | {"layer": "block1.norm1", "cycles": 36_459},
        ],
        "cycles": 173_635,
        "compute_s": 2.9e-4,
        "exposed_s": 3.7e-4,
        "host_copy_s": 0.0,
        "step_s": 6.6e-4,
        "mfu": 0.001,
        "collectives": [
            {
                "kind": "all-reduce",
                "axes": ["data"],
                "count": 30,
                "async_count": 2,
                "sent_bytes": 550_000,
                "hidden_bytes": 402_600,
            }
        ],
        "hidden_bytes": 402_600,
        "exposed_bytes": 147_400,
        "not_estimated": ["contention on links"],
        "compile_s": 19.0,
        "attention": "",
        "has_logit_chunks": False,
    } | more


def moves(sample):
    """Let the run say what its step moves, by collective."""
    sums = {"all-reduce, data": 548_310, "activations, pipe": 96_000}
    moved = collective("all-reduce", ["data"], 365_540)
    on = collective("collective-permute", ["pipe"], 64_000)
    vars(sample.run).update(bytes_by_collective=sums, collectives=[moved, on])


def drifts(start):
    """Lines of a link that was cut, and of a drift that nothing was found for."""
    choice = {"stays": "pipe 2 x data 2", "other": "pipe 4", "gain": 1.93}
    drift = {"kind": "drift", "since": 27, "step": 34, "seconds": 2.1, "before": 0.7}
    why = "the link of rank 2 carries 6.13 MB/s, 63.2 MB/s at the start"
    reason = {"kind": "reason", "step": 34, "why": why, "predicted": 2.1}
    plan = {
        "kind": "plan",
        "step": 53,
        "search": 27.0,
        "saved_s": 600.0,
        "costs_s": 40.0,
    }
    again = {"kind": "drift", "since": 88, "step": 95, "seconds": 0.9, "before": 0.6}
    rows = drift, reason, plan | choice, again
    return [row | {"time": start + 10 * n} for n, row in enumerate(rows)]


def sits_again(sample, step, *, behind=0, gap=20.0):
    """Let a run have been started again after a step, some of its last made twice."""
    for row in (*sample.train, *sample.tests, *sample.spans):
        moves_on = row["step"] > step
        key = "time" if "kind" in row else "start"
        row[key] += gap * moves_on
    place = next(n for n, s in enumerate(sample.spans) if s["step"] > step)
    before, after = sample.spans[:place], sample.spans[place:]
    again = [s for s in before if s["name"] == "compute" and s["step"] > step - behind]
    start = after[0]["start"] - 5.0
    begun = {"name": "compile", "start": start, "step": 0}
    made = [s | {"start": start + 3 + 0.04 * n} for n, s in enumerate(again)]
    opened = [begun | {"begin": True}, begun | {"seconds": 3.0}]
    sample.spans = [*before, *opened, *made, *after]
    return before[-1]["start"]


@functools.cache
def exchanged(samples=1437):
    """Return what a run writes of an order that exchanges a tenth."""
    from jaxdist.input.local_shuffle.partial import PartialShuffleOrder

    shuffle = PartialShuffle.from_fraction(samples=samples, partitions=16, q=0.1)
    order = PartialShuffleOrder(shuffle=shuffle, batch=64)
    return measure_shuffle_quality(order, Labelled(samples), 30)


class Labelled:
    """Samples in the order of their labels."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def get(self, ids):
        return {"label": 10 * ids // self.count}


def study(experiment="digits"):
    """Return a scaling study of two ways to sum."""
    rates = {(1, "none"): 1443, (2, "ring"): 1984, (4, "ring"): 2268}
    rates |= {(2, "int8"): 2330, (4, "int8"): 2863}
    runs = [
        {
            "run": f"p{processes}-{way}",
            "processes": processes,
            "batch": 64,
            "reduce": way,
            "input": "real",
            "samples_per_s": rate,
            "samples_per_s_p5": 0.8 * rate,
            "samples_per_s_p95": 1.1 * rate,
            "efficiency": rate / processes / 1443,
            "bytes_sent": 100_000 * (processes - 1),
        }
        for (processes, way), rate in rates.items()
    ]
    shares = [{"processes": 4, "serial": 0.1, "parallel": 0.6, "communication": 0.3}]
    fit = {"reduce": "ring", "input": "real", "points": 3, "furthest": 0.12}
    return {
        "experiment": experiment,
        "scaling": "strong",
        "place": {"name": "loopback", "rate": None, "cores": 2},
        "runs": runs,
        "fits": [fit | {"fitted": True, "shares": shares}, {"fitted": False}],
    }


def put_everything(sample, compared):
    """Write a run of which all is known, and return its folder."""
    moves(sample)
    sample.plan = Plan(mesh=MeshShape(pipe=2, data=2))
    sits_again(sample, 200, behind=12)
    ended = sits_again(sample, 400)
    folder = sample.write()
    lines = "".join(json.dumps(row) + "\n" for row in drifts(ended - 20))
    sample.put("drift.jsonl", lines)
    sample.put("compared.json", json.dumps(compared | {"links": LINKS}))
    sample.put("shuffle.json", json.dumps(exchanged()))
    sample.put("samples.json", json.dumps(scored()))
    sample.put("compiled.json", json.dumps(compiled()))
    beside = folder.parent / "digits-scale"
    beside.mkdir()
    (beside / "scale.json").write_text(json.dumps(study()))
    return folder
