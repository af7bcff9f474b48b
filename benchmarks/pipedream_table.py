"""PipeDream's Table 1 rebuilt: configuration, speed-ups and bytes, row by row.

    python benchmarks/pipedream_table.py

Layers: VGG16 as PipeDream's file has it, scaled to seconds of a V100 and to minibatches
of 32; Inception-v3 and S2VT as blocks of ours, FLOPs at a rate. Cluster B: V100s on 10
Gbit/s, nothing fitted. Cluster A: one bandwidth for devices as fast as V100s, fitted to
data parallelism of VGG16 on 8 machines, and the seconds of S2VT fitted to its own.
"""

import argparse
import itertools
from dataclasses import dataclass, replace
from pathlib import Path

from jaxdist.launch.training.job.abstract_model import (
    load_profile_config,
    profile_model,
)
from jaxdist.planner.stages.cost_conventions import CostConvention
from jaxdist.planner.stages.graph import LayerGraph
from jaxdist.planner.stages.graph_from_profile import (
    constant_rate_model,
    graph_from_profile,
)
from jaxdist.planner.stages.link_hierarchy import parse_link_levels
from jaxdist.planner.stages.partitioner import partition_graph
from jaxdist.planner.stages.pipedream_file import parse_pipedream_profile
from jaxdist.planner.stages.stage_plan import StageQuery

FILE = Path(__file__).parents[1] / "tests/planner/stages/pipedream/vgg16.txt"
FILE_BATCH = 64
V100 = {"vgg16": 0.008245589, "resnet50": 0.003119502}
"""Seconds a sample, forward and backward, measured on a V100 in float32 (ParaDL, HPDC
2021, its public constants)."""
BATCH = 32
CLUSTER_B = 1.25e9
FITTED = {"vgg16": (8, 2.35), "s2vt": (4, 1.10)}
"""Machines of cluster A, and how much faster data parallelism is there than one."""


@dataclass(frozen=True)
class Row:
    """A row as printed."""

    network: str
    machines: int
    cluster: str
    data_parallel: float
    config: str
    over_one: float
    over_data_parallel: float
    saved: float


ROWS = (
    Row("vgg16", 4, "A", 1.47, "2-1-1", 3.14, 2.13, 0.90),
    Row("vgg16", 8, "A", 2.35, "7-1", 7.04, 2.99, 0.95),
    Row("vgg16", 16, "A", 3.28, "9-5-1-1", 9.86, 3.00, 0.91),
    Row("vgg16", 8, "B", 1.36, "7-1", 6.98, 5.12, 0.95),
    Row("inception_v3", 8, "A", 7.66, "8", 7.66, 1.00, 0.0),
    Row("inception_v3", 8, "B", 4.74, "7-1", 6.88, 1.45, 0.47),
    Row("s2vt", 4, "A", 1.10, "2-1-1", 3.34, 3.01, 0.95),
)


def scaled(graph: LayerGraph, seconds, size):
    """Return a graph with times and activations multiplied."""
    nodes = (
        replace(
            node,
            forward=node.forward * seconds,
            backward=node.backward * seconds,
            output=node.output * size,
            kept=node.kept * size,
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def total(graph: LayerGraph, what):
    return sum(getattr(node, what) for node in graph.nodes)


def profile(name, batch):
    return profile_model(*load_profile_config(name, (f"batch={batch}",)))


def vgg16():
    """PipeDream's profile of 64 samples as of 32 on a V100."""
    graph = parse_pipedream_profile(FILE.read_text(), "vgg16")
    seconds = V100["vgg16"] * BATCH / total(graph, "seconds")
    return scaled(graph, seconds, BATCH / FILE_BATCH)


def inception():
    """Our blocks, at the FLOP/s that a V100 reaches on ResNet-50."""
    like = profile("resnet50", BATCH)
    rate = like.flops / (V100["resnet50"] * BATCH)
    print(f"FLOP/s of a V100 on ResNet-50: {rate / 1e12:.2f}e12")
    return graph_from_profile(
        profile("inception_v3", BATCH), "inception_v3", constant_rate_model(rate)
    )


def s2vt():
    """Our LSTMs and words, for clips of 80 frames' features that were made before."""
    whole = graph_from_profile(profile("s2vt", 80), "s2vt", constant_rate_model(1e12))
    nodes = whole.nodes[1:]
    names = [node.name for node in nodes]
    return LayerGraph(
        source="s2vt", nodes=nodes, edges=tuple(itertools.pairwise(names))
    )


def of_sum(machines, graph: LayerGraph):
    """Return bytes of a ring sum over machines, as its form counts them."""
    return 4 * (machines - 1) / machines * total(graph, "parameters")


def fitted(graphs):
    """Return cluster A's bandwidth for V100s, and S2VT at the speed of its own row."""
    machines, faster = FITTED["vgg16"]
    # P machines do P minibatches in the time of one sum, behind which compute hides.
    seconds = machines * total(graphs["vgg16"], "seconds") / faster
    rate = of_sum(machines, graphs["vgg16"]) / seconds
    machines, faster = FITTED["s2vt"]
    took = faster / machines * of_sum(machines, graphs["s2vt"]) / rate
    slower = took / total(graphs["s2vt"], "seconds")
    return rate, scaled(graphs["s2vt"], slower, 1.0)


def rebuilt(row: Row, graph: LayerGraph, bandwidth, overlap):
    on = parse_link_levels(row.machines, (), (bandwidth,))
    found = partition_graph(
        StageQuery(
            graph=graph, levels=on, cost_convention=CostConvention(overlap=overlap)
        )
    )
    assert found.relative_bytes is not None
    one, all_ = found.single_device_seconds, found.data_parallel_seconds
    return (
        f"{one / all_:.2f}x",
        found.config,
        f"{one / found.seconds:.2f}x",
        f"{all_ / found.seconds:.2f}x",
        f"{100 * (1 - found.relative_bytes):.0f} %",
    )


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    graphs = {"vgg16": vgg16(), "inception_v3": inception(), "s2vt": s2vt()}
    rate, graphs["s2vt"] = fitted(graphs)
    print(f"cluster A, for a V100: {8 * rate / 1e9:.1f} Gbit/s of 25")
    for name, graph in graphs.items():
        print(
            f"{name}: {total(graph, 'seconds'):.3f} s a minibatch, "
            f"{total(graph, 'parameters') / 1e6:.0f} MB of parameters"
        )
    for overlap in (1.0, 0.5, 0.0):
        print(f"\noverlap {overlap:g}")
        for row in ROWS:
            bandwidth = CLUSTER_B if row.cluster == "B" else rate
            printed = (
                f"{row.data_parallel:.2f}x",
                row.config,
                f"{row.over_one:.2f}x",
                f"{row.over_data_parallel:.2f}x",
                f"{100 * row.saved:.0f} %",
            )
            ours = rebuilt(row, graphs[row.network], bandwidth, overlap)
            both = " | ".join(f"{a}, {b}" for a, b in zip(printed, ours))
            print(f"| {row.network} | {row.machines} ({row.cluster}) | {both} |")


if __name__ == "__main__":
    main()
