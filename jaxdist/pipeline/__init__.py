"""Timelines of stages and microbatches, as tables, and the program that runs them."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.pipeline.pipedream_schedule import pipedream as pipedream
    from jaxdist.pipeline.sync_schedule import make_sync_schedule as make_sync_schedule

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "make_sync_schedule": "jaxdist.pipeline.sync_schedule",
        "pipedream": "jaxdist.pipeline.pipedream_schedule",
    },
)
