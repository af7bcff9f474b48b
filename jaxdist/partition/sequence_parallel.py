"""Sequence parallelism: pairs, and between them each device has its own tokens.

Rule: as `jaxdist.partition.megatron_pairs`, for networks that say where each token is
by itself (`ResidualStream`); the tokens of a sample divide over the tensor axis, and
the norms, sums and dropout between pairs are not repeated.
Traffic a step of a pair's output y: a reduce-scatter of y where `pairs` sums it, an
all-gather behind the next norm, the reverse of both backward: the bytes of two sums.

Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.
"""

from collections.abc import Sequence

from flax import nnx

from jaxdist.core.block_protocol import ResidualStream
from jaxdist.core.errors import BadInput
from jaxdist.layers.tensor_role import Role, Roles
from jaxdist.partition import megatron_pairs
from jaxdist.partition.weights import ShardableLayer


def sequence_parallel_roles(
    shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
) -> Roles:
    """Say what each layer does with the tensor axis.

    Raises:
        BadInput: no stream of tokens, tokens or a pair that do not divide.
    """
    stream = getattr(network, "stream", None)
    if not isinstance(stream, ResidualStream):
        raise BadInput(
            "the network has no tokens to split between its layers",
            rule="plan.weights=sequence is for networks of tokens",
            values=f"{type(network).__name__} says of no layers that tokens are apart",
            remedy="plan.weights=pairs",
        )
    _check_tokens_divide(shardable, stream, devices)
    given: dict[str, Role] = dict(
        megatron_pairs.megatron_roles(shardable, network, devices)
    )
    for path, role in tuple(given.items()):
        if role == "row":
            given[path] = "scatter"
    for path in stream.start:
        given[path] = "lookup" if given.get(path) == "vocabulary" else "own"
    along: dict[str, Role] = dict.fromkeys(stream.along, "own")
    ends: dict[str, Role] = dict.fromkeys(stream.ends, "gather")
    return {**given, **along, **ends}


def _check_tokens_divide(
    weights: Sequence[ShardableLayer], stream: ResidualStream, devices: int
) -> None:
    tokens = next((w.tokens for w in weights if w.path in stream.start), 0)
    if tokens % devices:
        near = sorted({tokens // devices * devices, -(-tokens // devices) * devices})
        raise BadInput(
            f"{tokens} tokens do not divide over {devices} devices",
            rule="the tokens of a sample divide over the tensor axis",
            values=f"data.context = {tokens}, plan.mesh.tensor = {devices}, "
            "plan.weights = sequence",
            remedy=(
                *(f"data.context={count}" for count in near if count),
                "plan.weights=pairs",
            ),
        )
