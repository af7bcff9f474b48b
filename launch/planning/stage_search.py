"""Stages as they are asked for: words and files of `jaxdist plan stages`, read."""

import math
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan import Plan
from jaxdist.core.profile import Profile
from jaxdist.core.text.parsing import parse_bandwidth, parse_bytes, parse_flop_rate
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.planner.stages.cost_conventions import COST_CONVENTIONS, CostConvention
from jaxdist.planner.stages.graph import LayerGraph
from jaxdist.planner.stages.graph_from_profile import (
    LayerTimeModel,
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
from jaxdist.planner.stages.partitioner import partition_graph
from jaxdist.planner.stages.pipedream_file import parse_pipedream_profile
from jaxdist.planner.stages.stage_plan import StagePlan, StageQuery, stages_to_plan

_CUT_MODES: Final = ("order", "any")


@dataclass(frozen=True, kw_only=True)
class StageSearchResult:
    """An answer with what it is of."""

    stage_plan: StagePlan
    """The stages."""
    profile: Profile | None
    """What they are stages of, where it is ours."""
    provenance: dict[str, str]
    """Where its numbers are from."""
    search_s: float
    """That the search took."""
    cluster: Cluster | None = None
    """The machines, where one says all of links and devices."""

    @property
    def plan(self) -> Plan | None:
        """What `jaxdist train` runs, where the network is ours."""
        return stages_to_plan(self.stage_plan) if self.profile else None


def search_stages(args: Namespace) -> StageSearchResult:
    """Read what was asked for, and search.

    Raises:
        BadInput: something of it cannot be.
    """
    cluster = _load_cluster(args)
    graph, profile = _read_graph(args, cluster)
    asked = StageQuery(
        graph=graph,
        levels=cluster_link_levels(cluster, args.workers)
        if cluster
        else _link_levels(args),
        cost_convention=_cost_convention(args),
        memory_budget=_memory_budget(args, cluster),
        straight_pipeline=args.straight,
        cuts="any"
        if _check_choice("--cuts", args.cuts, _CUT_MODES) == "any"
        else "order",
    )
    if args.output and profile is None:
        raise BadInput(
            f"{args.profile} is no network that could be trained here",
            rule="-o writes a plan for `jaxdist train`, whose cuts are blocks of ours",
            values=f"--profile {args.profile}, PipeDream's format",
            remedy=(
                "--json has the stages",
                "jaxdist profile vgg16 -o vgg16.json; --profile vgg16.json",
            ),
        )
    begun = time.perf_counter()
    found = partition_graph(asked)
    return StageSearchResult(
        stage_plan=found,
        profile=profile,
        provenance=_provenance(args, cluster, graph),
        search_s=time.perf_counter() - begun,
        cluster=cluster,
    )


def _read_graph(
    args: Namespace, cluster: Cluster | None
) -> tuple[LayerGraph, Profile | None]:
    """Read a profile of either kind; the second is None for PipeDream's.

    Raises:
        BadInput: there is none, or it is no profile.
    """
    if args.profile is None:
        raise BadInput(
            "no profile to cut into stages",
            rule="stages are cut from what each layer costs",
            remedy=(
                "--profile graph.txt, as PipeDream's profiler writes it",
                "jaxdist profile vgg16 -o vgg16.json; --profile vgg16.json",
            ),
        )
    text, rate = _read_text(Path(args.profile)), args.flops_rate
    name = Path(args.profile).name
    if text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        profile = parse_profile(text, name)
        return graph_from_profile(
            profile, name, _layer_time_model(rate, cluster, profile)
        ), profile
    if rate is not None:
        raise BadInput(
            "PipeDream's profiles have seconds, and no FLOPs",
            rule="--flops-rate is for blocks of our profiles that nobody measured",
            values=f"--flops-rate {rate}, --profile {args.profile}",
            remedy="no --flops-rate",
        )
    return parse_pipedream_profile(text, name), None


def _layer_time_model(
    rate: str | None, cluster: Cluster | None, profile: Profile
) -> LayerTimeModel | None:
    if rate is not None:
        return constant_rate_model(parse_flop_rate(rate, "--flops-rate"))
    return device_time_model(cluster.device, profile) if cluster else None


def _load_cluster(args: Namespace) -> Cluster | None:
    """Return the cluster, if there is one that says all of links and devices."""
    if args.cluster is None:
        return None
    for name in ("bandwidth", "levels", "flops_rate"):
        value = getattr(args, name)
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"--cluster and {option} contradict each other",
                rule="a cluster says its links, its levels and how fast a device is",
                values=f"--cluster {args.cluster} {option} {value}",
                remedy=(f"no {option}", "no --cluster"),
            )
    return load_cluster(args.cluster)


def _provenance(
    args: Namespace, cluster: Cluster | None, graph: LayerGraph
) -> dict[str, str]:
    """Say where times, links and memory are from."""
    found = {"times": graph.origin, "links": "given"}
    if args.memory is not None:
        found["memory"] = "given"
    if cluster:
        links = (level.bandwidth.origin for level in cluster.levels)
        found["links"] = "; ".join(dict.fromkeys(links))
        found.setdefault("memory", cluster.device.memory.origin)
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        here = [str(p) for p in path.parent.glob("*") if p.is_file()]
        near = did_you_mean(str(path), here)
        raise BadInput(
            f"no file {path}",
            values=f"looked in {path.parent.resolve()}",
            remedy=f"did you mean {near}?"
            if near
            else f"of a network of ours: jaxdist profile {path.stem} -o FILE",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} cannot be read",
            rule="a profile is a text file",
            values=str(error),
            remedy="--profile graph.txt",
        ) from error


def _link_levels(args: Namespace) -> tuple[LinkLevel, ...]:
    if args.bandwidth is None:
        raise BadInput(
            "no bandwidth between devices",
            rule="stages are planned for links of a bandwidth",
            remedy=("--bandwidth 10gbit", "--cluster NAME, as in docs/clusters.md"),
        )
    rates = [parse_bandwidth(word, "--bandwidth") for word in args.bandwidth.split(",")]
    return parse_link_levels(args.workers, args.levels or (), rates)


def _cost_convention(args: Namespace) -> CostConvention:
    named = COST_CONVENTIONS[
        _check_choice("--form", args.form or "max", tuple(COST_CONVENTIONS))
    ]
    if args.overlap is None:
        return named
    if args.form is None:
        return CostConvention(overlap=args.overlap)
    raise BadInput(
        "a form has an overlap of its own",
        rule="--form max is --overlap 1, and --form sum is --overlap 0",
        values=f"--form {args.form} --overlap {args.overlap:g}",
        remedy=(f"--overlap {args.overlap:g}", f"--form {args.form}"),
    )


def _memory_budget(args: Namespace, cluster: Cluster | None) -> MemoryBudget:
    model = _check_choice(
        "--memory-model", args.memory_model or MEMORY_MODELS[0], MEMORY_MODELS
    )
    if args.memory is None and cluster is None and args.memory_model:
        raise BadInput(
            "no memory to count against",
            rule="--memory-model says how bytes are counted against --memory",
            values=f"--memory-model {args.memory_model}, no --memory",
            remedy="--memory 16GB",
        )
    limit = cluster.device.memory.value if cluster else math.inf
    if args.memory is not None:
        limit = parse_bytes(args.memory, "--memory")
    return MemoryBudget(
        limit=limit, model="upstream" if model == "upstream" else "in-flight"
    )


def _check_choice(option: str, word: str, known: Sequence[str]) -> str:
    if word in known:
        return word
    near = did_you_mean(word, known)
    raise BadInput(
        f"no {option} {word}",
        rule=f"{option} is one of {', '.join(known)}",
        remedy=f"did you mean {near}?" if near else f"{option} {known[0]}",
    )
