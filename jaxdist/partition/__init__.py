"""How a network is split over axes: each way's rule, and the traffic it makes."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.partition.block_padding import fit_block_padding as fit_block_padding

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fit_block_padding": "jaxdist.partition.block_padding",
    },
)
