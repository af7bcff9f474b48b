"""Networks, each a chain of named blocks, unaware of parallelism."""

from typing import TYPE_CHECKING

from jaxdist.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxdist.core.block_protocol import AttentionInputs as AttentionInputs
    from jaxdist.core.block_protocol import ColumnRowPair as ColumnRowPair
    from jaxdist.core.block_protocol import ResidualStream as ResidualStream
    from jaxdist.core.block_protocol import SingleLayerBlock as SingleLayerBlock
    from jaxdist.models.config import ModelConfig as ModelConfig
    from jaxdist.models.conv_blocks import Chain as Chain
    from jaxdist.models.registry import model_factory as model_factory

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "AttentionInputs": "jaxdist.core.block_protocol",
        "Chain": "jaxdist.models.conv_blocks",
        "ColumnRowPair": "jaxdist.core.block_protocol",
        "ModelConfig": "jaxdist.models.config",
        "ResidualStream": "jaxdist.core.block_protocol",
        "SingleLayerBlock": "jaxdist.core.block_protocol",
        "model_factory": "jaxdist.models.registry",
    },
)
