"""Layers that read from the trace which axes are manual, and exchange or sum there."""

from jaxdist.layers.attention import cached_attention, causal_attention
from jaxdist.layers.context import bind
from jaxdist.layers.conv import Conv
from jaxdist.layers.conv_transpose import ConvTranspose
from jaxdist.layers.dropout import Dropout
from jaxdist.layers.embed import Embed
from jaxdist.layers.experts import Experts
from jaxdist.layers.group_norm import GroupNorm, InstanceNorm
from jaxdist.layers.layer_norm import LayerNorm, LocalResponseNorm, RMSNorm
from jaxdist.layers.linear import Linear
from jaxdist.layers.lstm import LSTM
from jaxdist.layers.norm import BatchNorm
from jaxdist.layers.pixel_shuffle import PixelShuffle, PixelUnshuffle
from jaxdist.layers.pool import AvgPool, GlobalMean, GridMean, MaxPool
from jaxdist.layers.spatial_gather import Exchange, Gather
from jaxdist.layers.token_order import local_tokens, token_positions
from jaxdist.layers.upsample import Upsample

__all__ = [
    "LSTM",
    "AvgPool",
    "BatchNorm",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Embed",
    "Exchange",
    "Experts",
    "Gather",
    "GlobalMean",
    "GridMean",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "Linear",
    "LocalResponseNorm",
    "MaxPool",
    "PixelShuffle",
    "PixelUnshuffle",
    "RMSNorm",
    "Upsample",
    "bind",
    "cached_attention",
    "causal_attention",
    "local_tokens",
    "token_positions",
]
