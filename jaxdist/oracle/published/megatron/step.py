"""The seconds of a Transformer's step on a cluster, by term.

    step    = m max(stage) + (sum of stages - max(stage)) / v + sums of data + update
    stage   = layers/p (forward + again + backward + sums of tensor) + 2 v sends,
              the first with the embedding, the last with head and loss

for m microbatches, p stages of v chunks each: 1F1B, or interleaved, with stages that
are not alike (Narayanan et al. 2021, arXiv 2104.04473). A layer sums 4 times over
tensor, 6 times where it is computed again; with sequence parallelism reduce-scatters
and all-gathers take the place of sums, and inputs are gathered once more backward.
"""

from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.oracle.published.megatron.kernels import (
    MegatronRates,
    PassCost,
    head_operations,
    layer_operations,
    memory_operation,
    pass_cost,
)
from jaxdist.oracle.published.megatron.links import (
    RankGroup,
    all_reduce_seconds,
    rank_group,
    send_seconds,
)
from jaxdist.oracle.published.megatron.model import MegatronLayout, MegatronModel

GRADIENT_BYTES: Final = 2
"""Bytes of a gradient that replicas sum."""
UPDATE_BYTES: Final = 30
"""Bytes that mixed-precision Adam moves for a parameter: gradient 4, mean, square and
weight of 4 read and written, a weight of 2 written."""


@dataclass(frozen=True, kw_only=True)
class MegatronStep:
    """A step whose kernels are counted, to be predicted for any rates."""

    model: MegatronModel
    layout: MegatronLayout
    cluster: Cluster
    forward: PassCost
    """Of a layer and one microbatch."""
    recompute: PassCost
    """The part of it that the backward pass recomputes."""
    backward: PassCost
    embedding_and_head: tuple[PassCost, PassCost]
    """Of embedding, and of head with loss: forward and backward."""

    def seconds(self, rates: MegatronRates) -> float:
        """Return the seconds of the step."""
        return sum(self.terms(rates).values())

    def terms(self, rates: MegatronRates) -> dict[str, float]:
        """Return the seconds of the step by term, on the device that works longest."""
        model, layout, cluster = self.model, self.layout, self.cluster
        per_host, t = cluster.levels[0].size, layout.tensor
        counts, inside = (
            layout.layers_of_stages(model.layers),
            layout.devices <= per_host,
        )
        activation = 2.0 * layout.microbatch * model.sequence * model.hidden
        near = rank_group(t, 1, per_host)
        tensor_sum = all_reduce_seconds(activation, near, cluster, rates)

        # A layer in one microbatch. The host issues kernels ahead, so the
        # device waits for it only where they are shorter in sum.
        passes = {
            "forward": self.forward,
            "recompute": self.recompute,
            "backward": self.backward,
        }
        layer = {name: one.busy_seconds(rates) for name, one in passes.items()}
        issued = sum(one.issue_seconds(rates) for one in passes.values())
        layer["wait for the host"] = max(0.0, issued - sum(layer.values()))
        sums = 4 + 2 * (layout.recompute == "full") + layout.sequence_parallel
        layer["all-reduce, tensor"] = sums * tensor_sum
        sent = 0.0
        if layout.pipe > 1:
            # To the next stage and back; the t devices send a part of it each.
            crossing = 0 if inside else min(t * layout.data, per_host)
            one = send_seconds(activation / t, crossing, cluster, rates)
            sent = 2 * layout.chunks * one
        inner = [count * sum(layer.values()) + sent for count in counts]
        stages = inner.copy()
        for stage, end in zip((0, -1), self.embedding_and_head):
            stages[stage] += end.seconds(rates) + tensor_sum
        worst = max(stages)
        slowest = stages.index(worst)
        terms = {name: counts[slowest] * took for name, took in layer.items()}
        terms["send, pipe"] = sent

        # The embedding is beside the layers of the first stage.
        own = [count * model.layer_parameters(t) for count in counts]
        own[0] += model.embedding_parameters(t)
        parameters = max(own)
        replicas = rank_group(layout.data, t, per_host)
        gradients = all_reduce_seconds(
            GRADIENT_BYTES * parameters, replicas, cluster, rates
        )
        if layout.pipe > 1:
            # Embedding and head share their weights, so both ends sum the gradients.
            hosts = 1 if inside else 2
            pair = RankGroup(
                ranks_per_host=2 // hosts,
                hosts=hosts,
                groups_per_host=per_host // (2 // hosts),
            )
            tied = GRADIENT_BYTES * model.vocabulary / t * model.hidden
            gradients += all_reduce_seconds(tied, pair, cluster, rates)
        m, memory = layout.microbatches, cluster.device.memory_bandwidth.value
        return {name: m * value for name, value in terms.items()} | {
            "embedding, head": m * (worst - inner[slowest]),
            "bubble": (sum(stages) - worst) / layout.chunks,
            "all-reduce, data": gradients,
            "update": parameters * UPDATE_BYTES / (memory * rates.memory),
        }


def megatron_step(
    model: MegatronModel, layout: MegatronLayout, cluster: Cluster
) -> MegatronStep:
    """Return a step that can be predicted for any rates.

    Args:
        model: the network.
        layout: how it is split.
        cluster: what it runs on.

    Raises:
        BadInput: the network is not split like that.
    """
    parts = layout.pipe * layout.chunks
    for what, size, by in (
        ("heads", model.heads, layout.tensor),
        ("layers", model.layers, 1 if layout.stage_layers else parts),
    ):
        if size % by:
            fits = [n for n in range(1, size + 1) if size % n == 0]
            raise BadInput(
                f"{size} {what} are not split over {by}",
                rule=f"each of {by} parts has as many {what}",
                values=f"{what} = {size}, parts = {by}",
                remedy=f"{min(fits, key=lambda n: abs(n - by))} parts",
            )
    device, t, b = cluster.device, layout.tensor, layout.microbatch
    done = layer_operations(model, b, t, sequence_parallel=layout.sequence_parallel)
    # Selective recomputation repeats the core of attention alone: it saves most bytes
    # for its FLOPs.
    again = {"none": (), "full": done}.get(
        layout.recompute, tuple(one for one in done if one.is_attention_core)
    )
    whole, ends = b * model.sequence * model.hidden, []
    # The embedding moves rows of two bytes an element; dropout has a mask of one byte.
    embedding = (
        memory_operation(4 * whole, 4 * whole),  # rows of tokens, and their sums
        memory_operation(6 * whole, 2 * whole),  # with positions
        memory_operation(5 * whole, 5 * whole),  # dropout
    )
    head = head_operations(model, b, -(-model.vocabulary // t))
    for operations in (embedding, head):
        forward = [one.forward for one in operations]
        backward = [kernel for one in operations for kernel in one.backward]
        ends.append(pass_cost(forward, device) + pass_cost(backward, device))
    return MegatronStep(
        model=model,
        layout=layout,
        cluster=cluster,
        forward=pass_cost([one.forward for one in done], device),
        recompute=pass_cost([one.forward for one in again], device),
        backward=pass_cost([x for one in done for x in one.backward], device),
        embedding_and_head=(ends[0], ends[1]),
    )
