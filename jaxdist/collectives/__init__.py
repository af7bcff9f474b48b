"""Sum and move arrays over a named axis, and count the bytes that travel."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.collectives.compress.sparse import OkTopK as OkTopK
    from jaxdist.collectives.compress.top_k_codec import TopKCodec as TopKCodec
    from jaxdist.collectives.primitives import all_reduce as all_reduce
    from jaxdist.collectives.primitives import psum as psum
    from jaxdist.collectives.registry import (
        ALL_REDUCE_ALGORITHMS as ALL_REDUCE_ALGORITHMS,
    )
    from jaxdist.collectives.registry import AutoAlgorithm as AutoAlgorithm
    from jaxdist.collectives.schedule_executor import run_schedule as run_schedule
    from jaxdist.collectives.schedule_traffic import (
        busiest_rank_bytes as busiest_rank_bytes,
    )
    from jaxdist.collectives.schedule_traffic import (
        schedule_payload_bytes as schedule_payload_bytes,
    )

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ALL_REDUCE_ALGORITHMS": "jaxdist.collectives.registry",
        "AutoAlgorithm": "jaxdist.collectives.registry",
        "OkTopK": "jaxdist.collectives.compress.sparse",
        "TopKCodec": "jaxdist.collectives.compress.top_k_codec",
        "all_reduce": "jaxdist.collectives.primitives",
        "busiest_rank_bytes": "jaxdist.collectives.schedule_traffic",
        "psum": "jaxdist.collectives.primitives",
        "run_schedule": "jaxdist.collectives.schedule_executor",
        "schedule_payload_bytes": "jaxdist.collectives.schedule_traffic",
    },
)
