"""A step by term: the seconds that a Transformer's step takes on a cluster.

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
from jaxdist.oracle.published.megatron.kernels import (
    embedding_operations,
    head_operations,
    layer_operations,
)
from jaxdist.oracle.published.megatron.links import (
    RankGroup,
    all_reduce_seconds,
    rank_group,
    send_seconds,
)
from jaxdist.oracle.published.megatron.model import (
    MegatronLayout,
    MegatronModel,
    check_divisible,
)
from jaxdist.oracle.published.megatron.speed import (
    MegatronRates,
    PassCost,
    backward_pass,
    forward_pass,
)

GRADIENT_BYTES: Final = 2
"""Bytes of a gradient that replicas sum."""
UPDATE_BYTES: Final = 30
"""Bytes that mixed-precision Adam moves for a parameter: gradient 4, mean, square and
weight of 4 read and written, a weight of 2 written."""


@dataclass(frozen=True, kw_only=True)
class MegatronStep:
    """A step that is ready to be predicted for any rates."""

    model: MegatronModel
    layout: MegatronLayout
    cluster: Cluster
    forward: PassCost
    """Of a layer and one microbatch."""
    recompute: PassCost
    """What of it is computed again, backward."""
    backward: PassCost
    embedding_and_head: tuple[PassCost, PassCost]
    """Of embedding, and of head with loss: forward and backward."""

    def seconds(self, rates: MegatronRates) -> float:
        """Return what the step takes."""
        return sum(self.terms(rates).values())

    def terms(self, rates: MegatronRates) -> dict[str, float]:
        """Return what the step takes by term, on the device that works longest."""
        m, layers = self.layout.microbatches, self._layer_terms(rates)
        even = sum(layers.values())
        stages = [even] * self.layout.pipe
        for stage, end in zip((0, -1), self.embedding_and_head):
            stages[stage] += end.seconds(rates) + self._all_reduce_seconds(
                self._activation_bytes, rates
            )
        worst = max(stages)
        memory = self.cluster.device.memory_bandwidth.value * rates.memory
        return {name: m * value for name, value in layers.items()} | {
            "embedding, head": m * (worst - even),
            "bubble": (sum(stages) - worst) / self.layout.chunks,
            "all-reduce, data": self._gradient_seconds(rates),
            "update": self._parameter_count * UPDATE_BYTES / memory,
        }

    def _layer_terms(self, rates: MegatronRates) -> dict[str, float]:
        """Return a stage's layers by term, for one microbatch."""
        layers = self.model.layers / self.layout.pipe
        passes = {
            "forward": self.forward,
            "recompute": self.recompute,
            "backward": self.backward,
        }
        parts = {name: layers * one.busy(rates) for name, one in passes.items()}
        issued = layers * sum(one.issued(rates) for one in passes.values())
        return parts | {
            "wait for the host": max(0.0, issued - sum(parts.values())),
            "all-reduce, tensor": layers * self._tensor_seconds(rates),
            "send, pipe": self._send_seconds(rates),
        }

    @property
    def _activation_bytes(self) -> float:
        """Return the bytes between two layers, of a microbatch."""
        model = self.model
        return 2.0 * self.layout.microbatch * model.sequence * model.hidden

    @property
    def _parameter_count(self) -> float:
        """Return the parameters of a device in the largest stage: the first."""
        layers, t = self.model.layers / self.layout.pipe, self.layout.tensor
        inner = layers * self.model.layer_parameters(t)
        return inner + self.model.embedding_parameters(t)

    def _all_reduce_seconds(self, size: float, rates: MegatronRates) -> float:
        """Return the seconds of one sum along tensor."""
        per_host = self.cluster.levels[0].size
        return all_reduce_seconds(
            size, rank_group(self.layout.tensor, 1, per_host), self.cluster, rates
        )

    def _tensor_seconds(self, rates: MegatronRates) -> float:
        """Return those of a layer and a microbatch."""
        layout = self.layout
        sums = 4 + 2 * (layout.recompute == "full") + layout.sequence_parallel
        return sums * self._all_reduce_seconds(self._activation_bytes, rates)

    def _send_seconds(self, rates: MegatronRates) -> float:
        """Return those of a microbatch to the next stage, and back."""
        layout, per_host = self.layout, self.cluster.levels[0].size
        if layout.pipe == 1:
            return 0.0
        stride = layout.tensor * layout.data
        inside = layout.devices <= per_host
        crossing = 0 if inside else min(stride, per_host)
        size = self._activation_bytes / layout.tensor
        return 2 * layout.chunks * send_seconds(size, crossing, self.cluster, rates)

    def _gradient_seconds(self, rates: MegatronRates) -> float:
        """Return those of gradients, the embedding's at both ends of the pipe too."""
        layout, per_host = self.layout, self.cluster.levels[0].size
        who = rank_group(layout.data, layout.tensor, per_host)
        took = all_reduce_seconds(
            GRADIENT_BYTES * self._parameter_count, who, self.cluster, rates
        )
        if layout.pipe == 1:
            return took
        inside = 2 if layout.devices <= per_host else 1
        pair = RankGroup(
            ranks_per_host=inside, hosts=2 // inside, groups_per_host=per_host // inside
        )
        tied = (
            GRADIENT_BYTES * self.model.vocabulary / layout.tensor * self.model.hidden
        )
        return took + all_reduce_seconds(tied, pair, self.cluster, rates)


def megatron_step(
    model: MegatronModel, layout: MegatronLayout, cluster: Cluster
) -> MegatronStep:
    """Make a step ready to be predicted.

    Args:
        model: the network.
        layout: how it is split.
        cluster: what it runs on.

    Raises:
        BadInput: the network is not split like that.
    """
    check_divisible(model, layout)
    device, t, b = cluster.device, layout.tensor, layout.microbatch
    done = layer_operations(model, b, t, sequence_parallel=layout.sequence_parallel)
    again = {"none": (), "full": done}.get(
        layout.recompute, tuple(one for one in done if one.is_attention_core)
    )
    ends = (
        embedding_operations(model, b),
        head_operations(model, b, -(-model.vocabulary // t)),
    )
    first, last = (
        forward_pass(one, device) + backward_pass(one, device) for one in ends
    )
    return MegatronStep(
        model=model,
        layout=layout,
        cluster=cluster,
        forward=forward_pass(done, device),
        recompute=forward_pass(again, device),
        backward=backward_pass(done, device),
        embedding_and_head=(first, last),
    )
