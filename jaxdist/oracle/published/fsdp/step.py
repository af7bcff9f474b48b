"""The seconds of a Transformer's step under fully sharded data parallelism, by term.

    step = sum over passes (compute + exposed + i hidden) + update

A pass takes some samples of a device forward and backward. Every block is a unit whose
parameters are gathered before its forward pass, with ZeRO-3 once more before its
backward pass, and whose gradients are reduced and scattered behind it. Embedding, head
and last norm are one more unit, which stays gathered. Collectives follow one another,
beside the computing of other units, as the two workers of `jaxdist.oracle.flow_shop`;
while they do, computing loses i seconds a second: the kernels of collectives have a
part of the device's processors and of its memory's bandwidth.

Zhao et al. 2023, "PyTorch FSDP" (arXiv 2304.11277), section 4.3; Rajbhandari et al.
2020, "ZeRO" (arXiv 1910.02054).
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.oracle.flow_shop import concurrent_time
from jaxdist.oracle.published.fsdp.layers import (
    FsdpRates,
    PassWork,
    block_operations,
    embedding_operations,
    head_operations,
    pass_work,
)
from jaxdist.oracle.published.fsdp.ring import ring_seconds
from jaxdist.oracle.published.megatron.links import RankGroup, rank_group
from jaxdist.oracle.published.megatron.model import MegatronModel

GATHER_BYTES: Final = 2
"""Bytes of a parameter that is gathered, and of a gradient before it is reduced."""
_ADAM_ACCESSES: Final = 7
"""Numbers that Adam reads or writes for a parameter: its gradient is read; mean, square
and weight are read and written."""


@dataclass(frozen=True, kw_only=True)
class FsdpLayout:
    """How a step is split: every device has a part of all parameters."""

    devices: int
    """n, over which parameters and samples are split."""
    batch: int
    """Samples of a step, of all devices."""
    microbatch: int
    """Samples of a device in a pass."""
    passes: int
    """Passes of a step, whose gradients are summed; the last may have fewer samples. A
    whole number either way, where the batch makes no whole number of them."""
    zero: Literal[2, 3]
    """3: parameters are gathered again for the backward pass; 2: they are kept."""
    reduce_bytes: int
    """Bytes of a gradient where it is reduced."""
    state_bytes: int
    """Bytes of a gradient, a parameter and each average in the optimizer."""
    remat: bool
    """Blocks are computed again in the backward pass."""

    def __post_init__(self) -> None:
        # Rows round passes up or down where the batch makes no whole number of them.
        own = self.batch / self.devices / self.microbatch
        if abs(self.passes - own) >= 1:
            raise BadInput(
                f"a batch of {self.batch:,} is not {self.passes} passes",
                rule="every pass but the last has devices x microbatch samples",
                values=f"{self.devices} x {self.microbatch} samples a pass, "
                f"{self.passes} passes",
                remedy=f"accumulate {math.ceil(own)}",
            )

    @property
    def pass_samples(self) -> dict[int, int]:
        """Samples of a device in a pass, with the number of such passes."""
        # Where samples do not divide, all wait for a device that has one more.
        own, most = math.ceil(self.batch / self.devices), self.microbatch
        starts = range(0, own, most)
        return dict(Counter(min(most, own - start) for start in starts))


@dataclass(frozen=True, kw_only=True)
class FsdpStep:
    """A step whose work is counted, to be predicted for any rates."""

    model: MegatronModel
    layout: FsdpLayout
    cluster: Cluster

    def seconds(self, rates: FsdpRates) -> float:
        """Return the seconds of the step."""
        return sum(self.terms(rates).values())

    def terms(self, rates: FsdpRates) -> dict[str, float]:
        """Return the seconds of the step by term; of collectives the exposed ones."""
        total, device = defaultdict[str, float](float), self.cluster.device
        for samples, count in self.layout.pass_samples.items():
            for name, value in self._pass_terms(samples, rates).items():
                total[name] += count * value
        own = self.block_parameters * self.model.layers + self.root_parameters
        # ZeRO shards the optimizer's state, so a device updates 1/n of the parameters.
        moved = own / self.layout.devices * _ADAM_ACCESSES * self.layout.state_bytes
        update = PassWork(bytes_moved=moved).seconds(rates, device)
        return {**total, "update": update}

    @property
    def block_parameters(self) -> float:
        """Parameters of a block."""
        return self.model.layer_parameters()

    @property
    def root_parameters(self) -> float:
        """Parameters of no block: embedding, positions and the last norm."""
        return self.model.embedding_parameters() + 2 * self.model.hidden

    @cached_property
    def _works(self) -> dict[int, tuple[PassWork, ...]]:
        """Work of embedding, block and head by the samples of a pass, both ways."""
        found = {}
        for samples in self.layout.pass_samples:
            parts = (embedding_operations, block_operations, head_operations)
            both = [pass_work(one(self.model, samples)) for one in parts]
            found[samples] = tuple(work for pair in both for work in pair)
        return found

    @cached_property
    def _group(self) -> RankGroup:
        return rank_group(self.layout.devices, 1, self.cluster.levels[0].size)

    def _pass_terms(self, samples: int, rates: FsdpRates) -> dict[str, float]:
        """Return the seconds of one pass, forward and backward, by term."""
        layout, device, layers = self.layout, self.cluster.device, self.model.layers
        embed, embed_back, block, block_back, head, head_back = (
            work.seconds(rates, device) for work in self._works[samples]
        )
        # Only blocks are checkpointed: embedding and head are not computed again.
        recompute = block if layout.remat else 0.0
        # Gradients of other bytes than parameters are copied before they are reduced.
        wider = layout.reduce_bytes != GATHER_BYTES
        copied = (GATHER_BYTES + layout.reduce_bytes) * wider
        gathers, reductions, copies = list[float](), list[float](), list[float]()
        for parameters in (self.root_parameters, self.block_parameters):
            for found, size in (
                (gathers, GATHER_BYTES),
                (reductions, layout.reduce_bytes),
            ):
                found.append(
                    ring_seconds(size * parameters, self._group, self.cluster, rates)
                )
            copy = PassWork(bytes_moved=copied * parameters)
            copies.append(copy.seconds(rates, device))

        # In the order of the passes: embedding, blocks and head; then head, blocks and
        # embedding. The head needs nothing more than the embedding.
        gathered = np.array([gathers[0], *[gathers[1]] * layers, 0.0])
        computed = np.array([embed, *[block] * layers, head])
        # The root unit stays gathered between the passes, as PyTorch FSDP keeps its
        # outermost.
        again = np.array([0.0, *[gathers[1] * (layout.zero == 3)] * layers, 0.0])
        backward = np.array(
            [
                head_back,
                *[recompute + block_back + copies[1]] * layers,
                embed_back + copies[0],
            ]
        )
        scattered = np.array([0.0, *[reductions[1]] * layers, reductions[0]])
        hidden_forward = float(concurrent_time(gathered, computed))
        hidden_again = float(concurrent_time(again, backward))
        # Links that are busy with gathers reduce nothing meanwhile.
        left = backward * (1 - hidden_again / backward.sum())
        hidden_back = float(concurrent_time(left, scattered))
        hidden = hidden_forward + hidden_again + hidden_back
        return {
            "forward": float(computed.sum()),
            "recompute": layers * recompute,
            "backward": float(backward.sum()) - layers * recompute,
            "all-gather": float(gathered.sum() + again.sum())
            - hidden_forward
            - hidden_again,
            "reduce-scatter": float(scattered.sum()) - hidden_back,
            "interference": rates.interference * hidden,
        }
