"""Data to the devices, in an order that survives anything.

`loader` and `sampler` serve any training loop; their names, and those of the ways to
shuffle, are lazy: importing the package costs nothing until one is used.
"""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

# Type checkers see plain imports; at run time `__getattr__` imports one when it is
# used. Submodules are not named like `loader` and `sampler`: an imported submodule
# becomes an attribute of its package, and would stand in place of the function.
if TYPE_CHECKING:
    from jaxdist.core.plan.shuffle import Global as Global
    from jaxdist.core.plan.shuffle import Local as Local
    from jaxdist.core.plan.shuffle import Partial as Partial
    from jaxdist.input.array_record import ArrayRecordSource as ArrayRecordSource
    from jaxdist.input.augmentation import Augmentation as Augmentation
    from jaxdist.input.clips import decode_caption as decode_caption
    from jaxdist.input.config import DataConfig as DataConfig
    from jaxdist.input.data_loader import loader as loader
    from jaxdist.input.data_sampler import sampler as sampler
    from jaxdist.input.device_feed import eval_feed as eval_feed
    from jaxdist.input.device_feed import train_feed as train_feed
    from jaxdist.input.local_shuffle.setup import Keep as Keep
    from jaxdist.input.mixture import Mixture as Mixture
    from jaxdist.input.order import GlobalShuffleOrder as GlobalShuffleOrder
    from jaxdist.input.prefetch import Workers as Workers
    from jaxdist.input.registry import open_data as open_data
    from jaxdist.input.sources import ArraySource as ArraySource

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ArrayRecordSource": "jaxdist.input.array_record",
        "ArraySource": "jaxdist.input.sources",
        "Augmentation": "jaxdist.input.augmentation",
        "DataConfig": "jaxdist.input.config",
        "Global": "jaxdist.core.plan.shuffle",
        "GlobalShuffleOrder": "jaxdist.input.order",
        "Keep": "jaxdist.input.local_shuffle.setup",
        "Local": "jaxdist.core.plan.shuffle",
        "Mixture": "jaxdist.input.mixture",
        "Partial": "jaxdist.core.plan.shuffle",
        "Workers": "jaxdist.input.prefetch",
        "decode_caption": "jaxdist.input.clips",
        "eval_feed": "jaxdist.input.device_feed",
        "loader": "jaxdist.input.data_loader",
        "open_data": "jaxdist.input.registry",
        "sampler": "jaxdist.input.data_sampler",
        "train_feed": "jaxdist.input.device_feed",
    },
)
