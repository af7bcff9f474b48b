"""PipeDream's partitioner: stages and their replicas for a graph."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.planner.stages.link_hierarchy import (
        parse_link_levels as parse_link_levels,
    )
    from jaxdist.planner.stages.partitioner import partition_graph as partition_graph
    from jaxdist.planner.stages.pipedream_file import (
        parse_pipedream_profile as parse_pipedream_profile,
    )
    from jaxdist.planner.stages.stage_plan import StageQuery as StageQuery

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "StageQuery": "jaxdist.planner.stages.stage_plan",
        "parse_link_levels": "jaxdist.planner.stages.link_hierarchy",
        "parse_pipedream_profile": "jaxdist.planner.stages.pipedream_file",
        "partition_graph": "jaxdist.planner.stages.partitioner",
    },
)
