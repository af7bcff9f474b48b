"""Stages of a pipeline for a graph: PipeDream's partitioner, and Piper's options."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.planner.stages.link_hierarchy import (
        parse_link_levels as parse_link_levels,
    )
    from jaxdist.planner.stages.option_graph import (
        OptionStageQuery as OptionStageQuery,
    )
    from jaxdist.planner.stages.option_search import (
        partition_options as partition_options,
    )
    from jaxdist.planner.stages.partitioner import partition_graph as partition_graph
    from jaxdist.planner.stages.pipedream_file import (
        parse_pipedream_profile as parse_pipedream_profile,
    )
    from jaxdist.planner.stages.piper_file import parse_piper_graph as parse_piper_graph
    from jaxdist.planner.stages.stage_plan import StageQuery as StageQuery

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "OptionStageQuery": "jaxdist.planner.stages.option_graph",
        "StageQuery": "jaxdist.planner.stages.stage_plan",
        "parse_link_levels": "jaxdist.planner.stages.link_hierarchy",
        "parse_pipedream_profile": "jaxdist.planner.stages.pipedream_file",
        "parse_piper_graph": "jaxdist.planner.stages.piper_file",
        "partition_graph": "jaxdist.planner.stages.partitioner",
        "partition_options": "jaxdist.planner.stages.option_search",
    },
)
