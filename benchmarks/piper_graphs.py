"""Piper's public graphs: read, planned within their memory, held against all plans.

    python benchmarks/piper_graphs.py FOLDER [--chains N]

FOLDER has `inputs/*.json` of github.com/msr-fiddle/piper (commit d7fc8cf). Each is
planned as it is, and where less memory decides. Then N chains of two to five nodes that
are neighbours are cut out of each, with devices, links and memory drawn at random, and
planned beside every plan there is.
"""

import argparse
import copy
import itertools
import json
import math
import random
import runpy
import time
from pathlib import Path
from typing import Any

from record import add_record_option, row, write_result

from jaxdist.core.errors import BadInput
from jaxdist.planner.stages.option_graph import OptionStageQuery
from jaxdist.planner.stages.option_search import partition_options
from jaxdist.planner.stages.piper_file import parse_piper_graph

# All plans are gone through by a test, which shares no code with the search.
LAW = Path(__file__).parents[1] / "tests/planner/stages/test_options_brute_force.py"
TIGHTER = {
    "bert32a100": ((10, 8.0), (32, 2.0)),
    "gnmt": ((4, 1.2),),
    "resnet": ((8, 8.0), (10, 3.0)),
}
"""Devices, and GiB of each."""


def ask(tree, name, **changes) -> OptionStageQuery:
    graph = parse_piper_graph(tree, name)
    given = {
        "devices": graph.devices,
        "bandwidth": graph.bandwidth,
        "memory": graph.memory,
        "microbatches": graph.microbatches,
    }
    return OptionStageQuery(graph=graph, **given | changes)


def chain(tree, rng):
    """Cut a chain of neighbours out of a graph, in the order of its nodes."""
    graph = parse_piper_graph(tree, "whole")
    names = [graph.layers.nodes[i].name for i in graph.layers.order]
    size = rng.randint(2, 5)
    start = rng.randint(0, len(names) - size)
    ids = [int(name) for name in names[start : start + size]]
    costs = {
        (e["sourceId"], e["destId"]): e["communicationCost"] for e in tree["edges"]
    }
    nodes = []
    for place, number in enumerate(ids):
        node = copy.deepcopy(next(n for n in tree["nodes"] if n["id"] == number))
        for way in itertools.chain(*node["TMPCs"].values()):
            for field, others in (
                ("syncTimeFw", ids[max(0, place - 1) : place]),
                ("syncTimeBw", ids[place + 1 : place + 2]),
            ):
                way[field] = {str(n): way[field].get(str(n), 0.0) for n in others}
        nodes.append(node)
    most = sum(
        2 * max(way["memoryUsageA"] + way["memoryUsageB"] for way in n["TMPCs"]["1"])
        for n in nodes
    )
    return {
        "maxDevices": rng.randint(1, 5),
        "bandwidth": rng.choice([25e9, 1e9]),
        "mbsInBatch": rng.choice([4, 8, 12, tree["mbsInBatch"]]),
        "maxMemoryPerDevice": 1 + most * rng.uniform(0.2, 1.2),
        "nodes": nodes,
        # Neighbours in the order may have no edge in the graph: they get a small one.
        "edges": [
            {"sourceId": a, "destId": b, "communicationCost": costs.get((a, b), 1e6)}
            for a, b in itertools.pairwise(ids)
        ],
    }


def agrees(tree, brute):
    """Return whether the search finds what all plans have, or neither has one."""
    expected = brute(tree, True)
    try:
        found = partition_options(ask(tree, "chain")).seconds
    except BadInput:
        found = math.inf
    return found == expected or math.isclose(found, expected, rel_tol=1e-9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chains", type=int, default=60)
    add_record_option(parser)
    args = parser.parse_args()
    brute, rows = runpy.run_path(str(LAW))["brute"], []
    for path in sorted(args.folder.glob("*.json")):
        tree = json.loads(path.read_text())
        settings: list[dict[str, Any]] = [{}]
        for devices, gib in TIGHTER.get(path.stem, ()):
            settings.append({"devices": devices, "memory": gib * 2**30})
        for changes in settings:
            asked = ask(tree, path.name, **changes)
            begun = time.perf_counter()
            found = partition_options(asked)
            took = time.perf_counter() - begun
            largest = max(stage.memory for stage in found.stages)
            assert largest <= asked.memory
            stages = "-".join(f"{s.replicas}x{s.tensor}" for s in found.stages)
            limit = asked.memory / 2**30
            case = f"{path.stem}, {asked.devices} devices of {limit:.3g} GiB"
            print(f"{case}: {stages}, {found.seconds:.6g} s, {took:.2f} s")
            rows += [
                row(case, took, "s", figure="search", n=1),
                row(case, len(found.stages), "stages", figure="plan"),
                row(case, largest / asked.memory, "of the limit", figure="memory"),
            ]
        equal = sum(
            agrees(chain(tree, random.Random(seed)), brute)
            for seed in range(args.chains)
        )
        print(f"{path.stem}: {equal} of {args.chains} chains equal to all plans")
        rows.append(row(path.stem, equal, f"of {args.chains}", figure="chains equal"))
    if args.record:
        write_result(
            "piper_graphs",
            rows,
            title="Graphs of Piper's",
            measures="The three public inputs of Piper (github.com/msr-fiddle/piper), "
            "planned as they are and with less memory: seconds of a search, stages, "
            "and memory of the fullest device; and chains cut out of them, with "
            "devices and memory at random, that are planned as fast as the fastest of "
            "all plans.",
            case_name="graph",
        )


if __name__ == "__main__":
    main()
