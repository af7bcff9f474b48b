"""Layers that see from the trace that an axis is manual, and exchange or sum."""

from jaxdist.layers.attention import causal_attention
from jaxdist.layers.bind import bind
from jaxdist.layers.conv import Conv
from jaxdist.layers.dropout import Dropout
from jaxdist.layers.embed import Embed
from jaxdist.layers.gather import Exchange, Gather
from jaxdist.layers.linear import Linear
from jaxdist.layers.lstm import LSTM
from jaxdist.layers.norm import BatchNorm
from jaxdist.layers.pool import AvgPool, GlobalMean, GridMean, MaxPool
from jaxdist.layers.response import LocalResponseNorm
from jaxdist.layers.token_norm import LayerNorm, RMSNorm

__all__ = [
    "LSTM",
    "AvgPool",
    "BatchNorm",
    "Conv",
    "Dropout",
    "Embed",
    "Exchange",
    "Gather",
    "GlobalMean",
    "GridMean",
    "LayerNorm",
    "Linear",
    "LocalResponseNorm",
    "MaxPool",
    "RMSNorm",
    "bind",
    "causal_attention",
]
