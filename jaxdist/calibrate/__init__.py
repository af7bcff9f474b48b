"""Fit the few free constants of predictions to measured rows, and score the others."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.calibrate.reduction_timings import (
        measure_reduction_link as measure_reduction_link,
    )

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "measure_reduction_link": "jaxdist.calibrate.reduction_timings",
    },
)
