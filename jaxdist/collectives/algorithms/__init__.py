"""All-reduce algorithms, as schedules of steps: a family of them in each file."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.collectives.algorithms.registry import make_schedule as make_schedule
    from jaxdist.collectives.algorithms.replay import (
        count_contributions as count_contributions,
    )
    from jaxdist.collectives.algorithms.schedule import (
        CollectiveSchedule as CollectiveSchedule,
    )
    from jaxdist.collectives.algorithms.schedule import ScheduleStep as ScheduleStep
    from jaxdist.collectives.algorithms.schedule import Transfer as Transfer

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "CollectiveSchedule": "jaxdist.collectives.algorithms.schedule",
        "ScheduleStep": "jaxdist.collectives.algorithms.schedule",
        "Transfer": "jaxdist.collectives.algorithms.schedule",
        "count_contributions": "jaxdist.collectives.algorithms.replay",
        "make_schedule": "jaxdist.collectives.algorithms.registry",
    },
)
