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
    again: PassCost
    """What of it is computed again, backward."""
    backward: PassCost
    ends: tuple[PassCost, PassCost]
    """Of embedding, and of head with loss: forward and backward."""

    def seconds(self, rates: MegatronRates) -> float:
        """Return what the step takes."""
        return sum(self.terms(rates).values())

    def terms(self, rates: MegatronRates) -> dict[str, float]:
        """Return what the step takes by term, on the device that works longest."""
        m, layers = self.layout.microbatches, self._layers(rates)
        even = sum(layers.values())
        stages = [even] * self.layout.pipe
        for stage, end in zip((0, -1), self.ends):
            stages[stage] += end.seconds(rates) + self._sum(self._activation, rates)
        worst = max(stages)
        memory = self.cluster.device.memory_bandwidth.value * rates.memory
        return {name: m * value for name, value in layers.items()} | {
            "embedding, head": m * (worst - even),
            "bubble": (sum(stages) - worst) / self.layout.chunks,
            "all-reduce, data": self._data(rates),
            "update": self._parameters * UPDATE_BYTES / memory,
        }

    def _layers(self, rates: MegatronRates) -> dict[str, float]:
        """Return a stage's layers by term, for one microbatch."""
        layers = self.model.layers / self.layout.pipe
        passes = {
            "forward": self.forward,
            "recompute": self.again,
            "backward": self.backward,
        }
        parts = {name: layers * one.busy(rates) for name, one in passes.items()}
        issued = layers * sum(one.issued(rates) for one in passes.values())
        return parts | {
            "wait for the host": max(0.0, issued - sum(parts.values())),
            "all-reduce, tensor": layers * self._tensor(rates),
            "send, pipe": self._sends(rates),
        }

    @property
    def _activation(self) -> float:
        """Return the bytes between two layers, of a microbatch."""
        model = self.model
        return 2.0 * self.layout.microbatch * model.sequence * model.hidden

    @property
    def _parameters(self) -> float:
        """Return the parameters of a device in the largest stage: the first."""
        layers, t = self.model.layers / self.layout.pipe, self.layout.tensor
        inner = layers * self.model.layer_parameters(t)
        return inner + self.model.embedding_parameters(t)

    def _sum(self, size: float, rates: MegatronRates) -> float:
        """Return the seconds of one sum along tensor."""
        per_host = self.cluster.levels[0].size
        return all_reduce_seconds(
            size, rank_group(self.layout.tensor, 1, per_host), self.cluster, rates
        )

    def _tensor(self, rates: MegatronRates) -> float:
        """Return those of a layer and a microbatch."""
        layout = self.layout
        sums = 4 + 2 * (layout.recompute == "full") + layout.sequence_parallel
        return sums * self._sum(self._activation, rates)

    def _sends(self, rates: MegatronRates) -> float:
        """Return those of a microbatch to the next stage, and back."""
        layout, per_host = self.layout, self.cluster.levels[0].size
        if layout.pipe == 1:
            return 0.0
        stride = layout.tensor * layout.data
        inside = layout.devices <= per_host
        crossing = 0 if inside else min(stride, per_host)
        size = self._activation / layout.tensor
        return 2 * layout.chunks * send_seconds(size, crossing, self.cluster, rates)

    def _data(self, rates: MegatronRates) -> float:
        """Return those of gradients, the embedding's at both ends of the pipe too."""
        layout, per_host = self.layout, self.cluster.levels[0].size
        who = rank_group(layout.data, layout.tensor, per_host)
        took = all_reduce_seconds(
            GRADIENT_BYTES * self._parameters, who, self.cluster, rates
        )
        if layout.pipe == 1:
            return took
        inside = 2 if layout.devices <= per_host else 1
        pair = RankGroup(inside=inside, hosts=2 // inside, beside=per_host // inside)
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
        layout.recompute, tuple(one for one in done if one.core)
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
        again=forward_pass(again, device),
        backward=backward_pass(done, device),
        ends=(first, last),
    )
