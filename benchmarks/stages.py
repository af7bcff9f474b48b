"""How long PipeDream's partitioner takes, by graph, devices and places to cut.

    taskset -c 0 python benchmarks/stages.py

A residual network of 350 nodes and a translation network like GNMT with eight layers on
either side (96 nodes), both made here; PipeDream's own graphs from its files. The best
of three searches, each from the graph on.
"""

import argparse
import random
import time
from pathlib import Path

from record import add_record_option, row, write_result

from jaxdist.planner.stages.cost_conventions import COST_CONVENTIONS
from jaxdist.planner.stages.graph import LayerGraph, Node
from jaxdist.planner.stages.link_hierarchy import parse_link_levels
from jaxdist.planner.stages.memory import MemoryBudget
from jaxdist.planner.stages.partitioner import partition_graph
from jaxdist.planner.stages.pipedream_file import parse_pipedream_profile
from jaxdist.planner.stages.stage_plan import StageQuery

FILES = Path(__file__).parents[1] / "tests/planner/stages/pipedream"
RATES = 12e9, 1.25e9


class Made:
    """A graph while it is made."""

    def __init__(self, name, seed=0):
        self.name, self.rng, self.nodes, self.edges = name, random.Random(seed), [], []

    def add(self, *makers, ms=0.0, mb=6.0, weights=0.0):
        """Add a node that reads others, and return its name."""
        took = ms * self.rng.uniform(0.7, 1.3) / 1e3
        name = f"node{len(self.nodes) + 1}"
        size = mb * 1e6
        self.nodes.append(
            Node(
                name=name,
                forward=took / 3,
                backward=took * 2 / 3,
                output=size,
                kept=size,
                parameters=weights * 1e6,
            )
        )
        self.edges += [(maker, name) for maker in makers]
        return name

    def graph(self):
        return LayerGraph(
            source=self.name, nodes=tuple(self.nodes), edges=tuple(self.edges)
        )


def residual(nodes=350):
    """Blocks of three convolutions with norms, each beside a shortcut."""
    made = Made("residual")
    last = made.add(ms=4, mb=200, weights=0.1)
    while len(made.nodes) < nodes - 3:
        place = len(made.nodes) / nodes
        wide = 200 * 0.5 ** int(4 * place)
        start = last
        for _ in range(min(3, (nodes - 3 - len(made.nodes)) // 3) or 1):
            last = made.add(last, ms=4, mb=wide, weights=0.3 * 4 ** int(4 * place) / 3)
            last = made.add(last, ms=0.7, mb=wide)
            last = made.add(last, ms=0.4, mb=wide)
        last = made.add(last, start, ms=0.1, mb=wide)
    for weights in (0, 8):
        last = made.add(last, ms=0.5, mb=1, weights=weights)
    while len(made.nodes) < nodes:
        last = made.add(last, ms=0.2, mb=1)
    return made.graph()


def translation(layers=8):
    """LSTMs with shortcuts on either side, and attention that all of the right read."""
    made = Made("translation")
    lengths, hidden = (made.add(mb=0) for _ in range(2))
    last = made.add(ms=7, weights=132)
    last = made.add(made.add(last, lengths, ms=9, mb=12.6, weights=67), ms=0.3, mb=12.6)
    for layer in range(layers - 1):
        cell = made.add(last, ms=7, mb=6.5, weights=50 if layer == 0 else 34)
        out, _ = made.add(cell), made.add(cell, mb=0.1)
        last = made.add(made.add(out, *[last] * (layer > 0)), ms=0.2)
    words = made.add(made.add(ms=0.4, weights=132), ms=0.1)
    attention = made.add(words, last, lengths, hidden, ms=12, mb=13, weights=60)
    first, context = made.add(attention), made.add(attention)
    last = made.add(made.add(first, ms=0.2), context)
    for layer in range(layers - 1):
        own = made.add(hidden, mb=0)
        cell = made.add(last, own, ms=9, mb=6.5, weights=50)
        out, _ = made.add(cell), made.add(cell, mb=0.1)
        both = made.add(out, last) if layer else out
        last = made.add(made.add(both, ms=0.2), context)
    made.add(last, ms=7, mb=194, weights=132)
    return made.graph()


def measured(graph: LayerGraph, sizes, **how):
    """Print the seconds of a search and what it found; return the recorded row."""
    rates = RATES[-len(sizes) :]
    seconds = []
    for _ in range(3):
        asked = StageQuery(
            graph=graph, levels=parse_link_levels(None, sizes, rates), **how
        )
        begun = time.perf_counter()
        found = partition_graph(asked)
        seconds.append(time.perf_counter() - begun)
    what = f"{graph.source} ({len(graph.nodes)}), {'x'.join(map(str, sizes))}"
    more = ", ".join(
        [
            f"{found.cut_point_count} places",
            *(["any cuts"] * (asked.cuts == "any")),
            *(
                [f"{asked.memory_budget.limit / 1e9:g} GB"]
                * asked.memory_budget.is_limited
            ),
            f"overlap {asked.cost_convention.overlap:g}",
        ]
    )
    print(f"{what}, {more}: {min(seconds):.3f} s, {found.config}", flush=True)
    return row(f"{what}, {more}", min(seconds), "s", n=len(seconds))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_record_option(parser)
    args = parser.parse_args()
    large, talk = residual(), translation()
    files = [
        parse_pipedream_profile((FILES / f"{name}.txt").read_text(), name)
        for name in ("vgg16", "resnet50", "gnmt")
    ]
    rows = [measured(large, sizes) for sizes in ((4, 4), (8, 2), (2, 8), (16,))]
    rows += [
        measured(large, (4, 4), cost_convention=COST_CONVENTIONS["sum"]),
        measured(large, (4, 4), memory_budget=MemoryBudget(limit=16e9)),
        measured(large, (4, 4), cuts="any"),
    ]
    for sizes in ((4, 4), (16,)):
        rows += [
            measured(talk, sizes),
            measured(talk, sizes, cuts="any"),
            measured(talk, sizes, cuts="any", cost_convention=COST_CONVENTIONS["sum"]),
        ]
    for graph in files:
        rows += [measured(graph, (16,)), measured(graph, (16,), cuts="any")]
    if args.record:
        write_result("stages", rows)


if __name__ == "__main__":
    main()
