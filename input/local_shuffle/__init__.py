"""Partial local shuffling: samples a host stores, and those it exchanges."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.input.local_shuffle.flight import PeerClient as PeerClient
    from jaxdist.input.local_shuffle.flight import PeerServer as PeerServer
    from jaxdist.input.local_shuffle.partial import (
        order_from_config as order_from_config,
    )
    from jaxdist.input.local_shuffle.source import (
        make_local_shuffle_source as make_local_shuffle_source,
    )

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "PeerClient": "jaxdist.input.local_shuffle.flight",
        "PeerServer": "jaxdist.input.local_shuffle.flight",
        "make_local_shuffle_source": "jaxdist.input.local_shuffle.source",
        "order_from_config": "jaxdist.input.local_shuffle.partial",
    },
)
