"""Cuts a network into the stages of a pipeline: `jaxdist plan stages`."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.core.profile import Profile
from jaxdist.core.text.parsing import parse_bandwidth, parse_bytes, parse_flop_rate
from jaxdist.core.text_encoding import decode_text
from jaxdist.launch.planning.option_stages import (
    OptionSearchResult,
    search_option_stages,
)
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.planner.stages.cost_conventions import COST_CONVENTIONS, CostConvention
from jaxdist.planner.stages.graph import LayerGraph
from jaxdist.planner.stages.graph_from_profile import (
    constant_rate_model,
    device_time_model,
    graph_from_profile,
    parse_profile,
)
from jaxdist.planner.stages.link_hierarchy import (
    LinkLevel,
    cluster_link_levels,
    parse_link_levels,
)
from jaxdist.planner.stages.memory import MEMORY_MODELS, MemoryBudget
from jaxdist.planner.stages.option_graph import OptionGraph
from jaxdist.planner.stages.partitioner import partition_graph
from jaxdist.planner.stages.pipedream_file import parse_pipedream_profile
from jaxdist.planner.stages.piper_file import parse_piper_graph, read_piper_tree
from jaxdist.planner.stages.stage_plan import StagePlan, StageQuery, stages_to_plan

_CUT_MODES: Final = ("order", "any")


@dataclass(frozen=True, kw_only=True)
class StagePlanQuery:
    """What `jaxdist plan stages` takes; quantities are text with their units."""

    profile: Path | None = None
    """File: what `jaxdist profile NAME -o FILE` writes, PipeDream's `graph.txt`, or a
    graph of Piper's, which then says devices, bandwidth, memory and microbatches."""
    workers: int | None = None
    """Devices in all."""
    levels: tuple[int, ...] | None = None
    """Devices of a group, groups of the next level, ...: innermost first."""
    bandwidth: str | None = None
    """Of a link; with `levels` one for each, with commas between them."""
    cluster: str | None = None
    """Name or file; stands for `levels`, `bandwidth` and `flops_rate`."""
    memory: str | None = None
    """Bytes of a device; the cluster's by default, and no limit without a cluster."""
    memory_model: str | None = None
    """How bytes are counted: `in-flight` (the default) or `upstream`."""
    straight: bool = False
    """Whether no stage has replicas."""
    overlap: float | None = None
    """Part of the shorter of compute and all-reduce that is hidden, 0 to 1."""
    cost_convention: str | None = None
    """Name of a cost convention instead of `overlap`."""
    cuts: str | None = None
    """`order`: between neighbours in one order of the nodes; `any`: around any set. By
    default `order`, and of Piper's graphs `any` where there are few enough places."""
    microbatches: int | None = None
    """Of a batch, instead of what a graph of Piper's says."""
    flops_rate: str | None = None
    """FLOP/s of a device, for blocks of our profiles without measured seconds."""
    output: Path | None = None
    """File for the plan; what cannot be trained is then refused."""


@dataclass(frozen=True, kw_only=True)
class StageSearchResult:
    """An answer with what it is of."""

    query: StagePlanQuery
    stage_plan: StagePlan
    """The stages."""
    profile: Profile | None
    """What they are stages of, where the profile is ours."""
    provenance: dict[str, str]
    """Where its numbers are from."""
    search_s: float
    """Seconds that the search took."""
    cluster: Cluster | None = None
    """The machines, where `query` names a cluster."""

    @property
    def plan(self) -> Plan | None:
        """What `jaxdist train` runs, where the network is ours."""
        return stages_to_plan(self.stage_plan) if self.profile else None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, in seconds and bytes."""
        answer, asked = self.stage_plan, self.stage_plan.query
        limit = asked.memory_budget.limit
        return {
            "profile": asked.graph.source,
            "origins": self.provenance,
            "workers": asked.devices,
            "levels": [tier.size for tier in asked.levels],
            "bandwidth": [tier.bandwidth for tier in asked.levels],
            "overlap": asked.cost_convention.overlap,
            "sync": asked.cost_convention.sync,
            "memory_limit": limit if math.isfinite(limit) else None,
            "memory_model": asked.memory_budget.model,
            "config": answer.config,
            "replicas": list(answer.replicas),
            "cuts": list(answer.cuts),
            "splits": [stage.after for stage in answer.stages],
            "seconds": answer.seconds,
            "stage_seconds": [stage.seconds for stage in answer.stages],
            "cut_seconds": [stage.cut for stage in answer.stages[1:]],
            "speedup_over_one": answer.single_device_seconds / answer.seconds,
            "speedup_over_data_parallel": answer.data_parallel_seconds / answer.seconds,
            "bytes": answer.sent_bytes,
            "bytes_over_data_parallel": answer.relative_bytes,
            "faster_with_fewer": answer.faster_subset,
            "noam": answer.stages[0].in_flight,
            "in_flight": [stage.in_flight for stage in answer.stages],
            "memory_bytes": [stage.memory for stage in answer.stages],
            "stages": [asdict(stage) for stage in answer.stages],
            "search_seconds": self.search_s,
        }


def search_stages(query: StagePlanQuery) -> StageSearchResult | OptionSearchResult:
    """Find the stages of a network whose slowest takes the least time.

    Raises:
        BadInput: an option or a file that cannot be, or no stages fit.
    """
    cluster = None
    if query.cuts is not None:
        _check_choice("--cuts", query.cuts, _CUT_MODES)
    if query.cluster is not None:
        for option, value in (
            ("--bandwidth", query.bandwidth),
            ("--levels", query.levels),
            ("--flops-rate", query.flops_rate),
        ):
            if value is not None:
                raise BadInput(
                    f"--cluster and {option} contradict each other",
                    rule="a cluster says its links, its levels and how fast a device "
                    "is",
                    values=f"--cluster {query.cluster} {option} {value}",
                    remedy=(f"no {option}", "no --cluster"),
                )
        cluster = load_cluster(query.cluster)
        cluster.only_device("jaxdist plan stages")
    graph, profile = _read_graph(query, cluster)
    if isinstance(graph, OptionGraph):
        return search_option_stages(query, graph)
    return _search_layer_stages(query, graph, profile, cluster)


def _search_layer_stages(
    query: StagePlanQuery,
    graph: LayerGraph,
    profile: Profile | None,
    cluster: Cluster | None,
) -> StageSearchResult:
    """Find the stages of a profile of PipeDream's or ours.

    Raises:
        BadInput: an option that cannot be, or no stages fit.
    """
    if query.microbatches is not None:
        raise BadInput(
            "--microbatches is for Piper's graphs",
            rule="stages of other profiles are planned for minibatches without end",
            values=f"--microbatches {query.microbatches}, --profile {query.profile}",
            remedy="no --microbatches",
        )
    if cluster:
        # Devices are taken as neighbours: inner levels are filled first.
        levels = cluster_link_levels(cluster, query.workers)
    else:
        levels = _read_levels(query)

    # A form is a published name for an overlap and for what a sum costs.
    form = _check_choice(
        "--cost-convention", query.cost_convention or "max", tuple(COST_CONVENTIONS)
    )
    costs = COST_CONVENTIONS[form]
    if query.overlap is not None and query.cost_convention is not None:
        raise BadInput(
            "a cost convention has an overlap of its own",
            rule="--cost-convention max is --overlap 1, and --cost-convention sum is "
            "--overlap 0",
            values=f"--cost-convention {query.cost_convention} "
            f"--overlap {query.overlap:g}",
            remedy=(
                f"--overlap {query.overlap:g}",
                f"--cost-convention {query.cost_convention}",
            ),
        )
    # An overlap between those of the published conventions.
    if query.overlap is not None:
        costs = CostConvention(overlap=query.overlap)

    model = query.memory_model or MEMORY_MODELS[0]
    _check_choice("--memory-model", model, MEMORY_MODELS)
    limit = cluster.device.memory.value if cluster else math.inf
    if query.memory is not None:
        limit = parse_bytes(query.memory, "--memory")
    elif cluster is None and query.memory_model:
        raise BadInput(
            "no memory to count against",
            rule="--memory-model says how bytes are counted against --memory",
            values=f"--memory-model {query.memory_model}, no --memory",
            remedy="--memory 16GB",
        )
    asked = StageQuery(
        graph=graph,
        levels=levels,
        cost_convention=costs,
        memory_budget=MemoryBudget(
            limit=limit, model="upstream" if model == "upstream" else "in-flight"
        ),
        straight_pipeline=query.straight,
        cuts="any" if query.cuts == "any" else "order",
    )
    # Nodes of a foreign profile are no blocks of a network here, at which a plan cuts.
    if query.output and profile is None:
        raise BadInput(
            f"{query.profile} is no network that could be trained here",
            rule="-o writes a plan for `jaxdist train`, whose cuts are blocks of ours",
            values=f"--profile {query.profile}, PipeDream's format",
            remedy=(
                "--json has the stages",
                "jaxdist profile vgg16 -o vgg16.json; --profile vgg16.json",
            ),
        )
    # Reading a profile is no part of the search.
    begun = time.perf_counter()
    found = partition_graph(asked)
    took = time.perf_counter() - begun

    provenance = {"times": graph.origin, "links": "given"}
    if query.memory is not None:
        provenance["memory"] = "given"
    if cluster:
        origins = (level.bandwidth.origin for level in cluster.levels)
        provenance["links"] = "; ".join(dict.fromkeys(origins))
        provenance.setdefault("memory", cluster.device.memory.origin)
    return StageSearchResult(
        query=query,
        stage_plan=found,
        profile=profile,
        provenance=provenance,
        search_s=took,
        cluster=cluster,
    )


def _read_graph(
    query: StagePlanQuery, cluster: Cluster | None
) -> tuple[LayerGraph | OptionGraph, Profile | None]:
    """Read a profile of any kind; the second is None for all but ours.

    Raises:
        BadInput: there is none, or it is no profile.
    """
    path, rate = query.profile, query.flops_rate
    if path is None:
        raise BadInput(
            "no profile to cut into stages",
            rule="stages are cut from what each layer costs",
            remedy=(
                "--profile graph.txt, as PipeDream's profiler writes it",
                "--profile graph.json, of Piper's form",
                "jaxdist profile vgg16 -o vgg16.json; --profile vgg16.json",
            ),
        )
    try:
        text = decode_text(path.read_bytes(), path)
    except FileNotFoundError as error:
        near = did_you_mean(
            str(path), [str(p) for p in path.parent.glob("*") if p.is_file()]
        )
        raise BadInput(
            f"no file {path}",
            values=f"looked in {path.parent.resolve()}",
            remedy=f"did you mean {near}?"
            if near
            else f"of a network of ours: jaxdist profile {path.stem} -o FILE",
        ) from error
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read",
            rule="a profile is a text file",
            values=str(error),
            remedy="--profile graph.txt",
        ) from error
    # Ours and Piper's are JSON, PipeDream's are lines of nodes and edges. Editors may
    # have put a byte order mark in front.
    if text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        if (tree := read_piper_tree(text)) is not None:
            return parse_piper_graph(tree, path.name), None
        profile = parse_profile(text, path.name)
        # Blocks that nobody measured: by the cluster's device, or at a constant rate,
        # which is refused beside a cluster.
        times = device_time_model(cluster.device, profile) if cluster else None
        if rate is not None:
            times = constant_rate_model(parse_flop_rate(rate, "--flops-rate"))
        return graph_from_profile(profile, path.name, times), profile
    if rate is not None:
        raise BadInput(
            "PipeDream's profiles have seconds, and no FLOPs",
            rule="--flops-rate is for blocks of our profiles that nobody measured",
            values=f"--flops-rate {rate}, --profile {path}",
            remedy="no --flops-rate",
        )
    return parse_pipedream_profile(text, path.name), None


def _read_levels(query: StagePlanQuery) -> tuple[LinkLevel, ...]:
    if query.bandwidth is None:
        raise BadInput(
            "no bandwidth between devices",
            rule="stages are planned for links of a bandwidth",
            remedy=("--bandwidth 10gbit", "--cluster NAME, as in docs/clusters.md"),
        )
    words = query.bandwidth.split(",")
    rates = [parse_bandwidth(word, "--bandwidth") for word in words]
    return parse_link_levels(query.workers, query.levels or (), rates)


def _check_choice(option: str, word: str, known: Sequence[str]) -> str:
    if word in known:
        return word
    near = did_you_mean(word, known)
    raise BadInput(
        f"no {option} {word}",
        rule=f"{option} is one of {', '.join(known)}",
        remedy=f"did you mean {near}?" if near else f"{option} {known[0]}",
    )
