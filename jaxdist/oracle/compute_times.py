"""The seconds that a device computes, by layer, for its own slice of each layer.

    share(l)   = FLOPs that the ledger gives the device / FLOPs of the whole layer; a
                 module with several split layers (attention) has one share for all of
                 them; other layers have 1 / (devices that split the samples there)
    measured   seconds(l) share e(F) / e(share F)
    timed      the interpolated time of a matrix product or convolution of the slice's
                 own size (`jaxdist.core.cluster.kernel_timings`)
    passes     of layers without a product the interpolated time of their kind, by the
               bytes that they make (`jaxdist.core.cluster.layer_timings`)
    otherwise  max(share F / (peak e(share F)), share M / memory bandwidth) + launch
    overhead   all of it times seconds(b) / sum of seconds(l) over the layers of its
                 block b, where blocks like it were timed
    loss       of the last stage, by the bytes of the network's outputs, where timed
    recompute  the forward pass once more, in blocks that are rematerialized
    accumulate 3 W / memory bandwidth for each microbatch of several, or of a pipeline

F are the FLOPs of one kernel of the layer, M the bytes that it reads and writes (of the
weights the device's own), e the device's efficiency by the FLOPs of a kernel: half a
layer takes more than half the time (correction 5 to ParaDL, arXiv 2104.09075). W are
the bytes of a stage's weights on a device.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.cluster.host_group import distinct_devices
from jaxdist.core.cluster.kernel_timings import block_signature
from jaxdist.core.cluster.layer_timings import LOSS
from jaxdist.core.profile import LayerProfile
from jaxdist.core.step_breakdown import LayerTime
from jaxdist.layers import Experts
from jaxdist.oracle.rank_devices import rank_devices
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger

_FORWARD_PASSES: Final = 2
"""Passes of a forward kernel over a layer's output: one read and one write."""
_BACKWARD_PASSES: Final = 3
"""The same of a backward pass: it reads the output and its gradient, and writes one."""
ACCUMULATION_PASSES: Final = 3
"""Passes over a gradient that is added to a sum: two reads and one write."""
_BACKWARD_KERNELS: Final = 2
"""Kernels of a backward pass: the gradients of the input and of the weights."""
_COPY_PASSES: Final = 2
"""Passes over what is copied: one read and one write."""


@dataclass(frozen=True, kw_only=True)
class MicrobatchTime:
    """Seconds of one microbatch on one device."""

    forward: float
    backward: float
    forward_comm: float = 0.0
    """The part of `forward` in which layers communicate."""
    backward_comm: float = 0.0
    """The same of `backward`."""
    weights: float = 0.0
    """The part of `backward` that gradients of weights take, which may come later."""

    def __add__(self, other: "MicrobatchTime") -> "MicrobatchTime":
        return MicrobatchTime(
            forward=self.forward + other.forward,
            backward=self.backward + other.backward,
            weights=self.weights + other.weights,
            forward_comm=self.forward_comm + other.forward_comm,
            backward_comm=self.backward_comm + other.backward_comm,
        )


@dataclass(frozen=True, kw_only=True)
class ComputeCostModel:
    """The compute time of one device in a step."""

    case: StepDescription
    """The step."""
    device: Device
    """Its speed."""
    ledger: Ledger
    """The FLOPs of each layer that the device does."""
    microbatches: int
    """The microbatches that it works on in a step."""

    def work_fraction(self, layer: LayerProfile) -> float:
        """Return the part of a layer's work on the batch in one microbatch."""
        # The ledger counts FLOPs of split layers exactly, uneven parts and padding
        # included.
        planned = self.ledger.layer_flops.get(layer.name)
        if planned and layer.flops:
            return planned / layer.flops / self.microbatches
        if self.case.plan.mesh.tensor > 1 and layer.name in self._module_fractions:
            return self._module_fractions[layer.name] / self.microbatches
        return 1 / (self.case.block_sample_shards(layer.block) * self.case.microbatches)

    @cached_property
    def _module_fractions(self) -> dict[str, float]:
        """Return the device's part of the layers of modules that have several of them.

        What attention computes between its projections is split with them, by heads.
        """
        planned, whole, count = Counter[str](), Counter[str](), Counter[str]()
        layers = self.case.profile.layer_by_name
        for name, work in self.ledger.layer_flops.items():
            layer = layers.get(name)
            if work and layer and layer.flops:
                module = layer.name.rpartition(".")[0]
                planned[module] += work
                whole[module] += layer.flops
                count[module] += 1
        return {m: planned[m] / whole[m] for m, n in count.items() if m and n > 1}

    def weight_bytes(self, layer: LayerProfile, share: float) -> float:
        """Return the bytes of the device's part of the weights, which a kernel reads.

        Args:
            layer: any.
            share: the part of the layer's work on the batch, as `work_fraction`.
        """
        samples = self.case.block_sample_shards(layer.block) * self.case.microbatches
        # Samples are split without the weights, so only what a device does less than
        # its part of the samples is a part of the weights.
        held = layer.parameter_bytes
        if layer.kind.endswith(Experts.__name__):
            held //= self.case.plan.mesh.expert
        return min(1.0, share * samples) * held

    def microbatch_time(self, layer: LayerProfile) -> MicrobatchTime:
        """Return the seconds of a layer in one microbatch.

        Raises:
            BadInput: the device has no speed for the dtype.
        """
        case, share = self.case, self.work_fraction(layer)
        # Rematerialization runs the forward pass once more before the backward pass,
        # but of layers whose outputs wait on the device or the host. Those of experts
        # spare nothing: the backward pass reads what is inside, between their products.
        waits = case.plan.memory_action(layer.name) is not None
        waits = waits and not layer.kind.endswith(Experts.__name__)
        again = case.is_rematerialized(layer) and not waits
        # Layers of equal blocks take the same time, which is computed once.
        samples = case.block_sample_shards(layer.block)
        longer = self._block_overhead(layer.block)
        alike = layer.unnamed, share, samples, longer, again
        if alike not in self._times:
            self._times[alike] = self._compute_time(layer, share, longer, again)
        return self._times[alike]

    @cached_property
    def _times(self) -> dict[Any, MicrobatchTime]:
        return {}

    def _compute_time(
        self,
        layer: LayerProfile,
        share: float,
        overhead: tuple[float, float],
        is_remade: bool,
    ) -> MicrobatchTime:
        forward, backward = self._layer_seconds(layer, share)
        forward, backward = overhead[0] * forward, overhead[1] * backward
        weights = self._weight_fraction(layer) * backward
        backward += is_remade * forward
        # Gradients of several microbatches are added to a sum in memory; a pipeline's
        # loop does that even for one.
        if self.case.microbatches > 1 or self.case.stages:
            summed = ACCUMULATION_PASSES * self.weight_bytes(layer, share)
            added = summed / self.device.memory_bandwidth.value
            backward, weights = backward + added, weights + added
        return MicrobatchTime(forward=forward, backward=backward, weights=weights)

    def loss_time(self) -> MicrobatchTime:
        """Return the seconds of the loss of one microbatch, where losses were timed.

        Raises:
            BadInput: the device has no speed for the dtype.
        """
        device, blocks = self.device, self.case.profile.blocks
        none = MicrobatchTime(forward=0.0, backward=0.0)
        if device.layers is None or not blocks:
            return none
        # The last block hands the network's outputs to the loss.
        last = blocks[-1]
        parts = self.case.block_sample_shards(last.name) * self.case.microbatches
        peak = device.peak(self.case.dtype).value
        size = last.output_bytes / parts
        timed = device.layers.seconds(LOSS, size, (0.0, 0.0), peak)
        return MicrobatchTime(forward=timed[0], backward=timed[1]) if timed else none

    def _weight_fraction(self, layer: LayerProfile) -> float:
        """Return the part of a layer's backward pass that is the gradient of weights.

        A product with weights has as many FLOPs there as in the forward pass, which is
        half, or all where its input has no gradient. Norms have theirs at once, and
        recurrent layers in the loop that goes through their input's
        (`jaxdist.pipeline.backward_split`).
        """
        looped = layer.kind.endswith("LSTM")
        if layer.kernel is None or looped or not layer.flops_backward:
            return 0.0
        return min(1.0, layer.flops_forward / layer.flops_backward)

    def _layer_seconds(self, layer: LayerProfile, share: float) -> tuple[float, float]:
        """Return the seconds of a part of a layer, forward and backward."""
        device, dtype = self.device, self.case.dtype
        kernel, table = layer.kernel, device.kernels
        if kernel is not None and table is not None and layer.seconds_forward is None:
            # What the device does less than its part of the samples is filters that it
            # lacks: the tensor axis splits filters, all other axes split samples.
            samples = self.case.block_sample_shards(layer.block)
            whole = 1 / (samples * self.case.microbatches)
            split = self.case.plan.mesh.tensor > 1
            filters = min(1.0, share / whole) if split else 1.0
            uses = kernel.uses * share / filters
            own = replace(kernel, uses=uses, outputs=kernel.outputs * filters)
            timed = table.seconds(own, device.peak(dtype).value)
            if timed is not None:
                # The layer that reads the network's input has no input gradient, so it
                # has one backward kernel of the two that were timed.
                kernels = layer.flops_backward / layer.flops_forward / _BACKWARD_KERNELS
                return timed[0], min(1.0, kernels) * timed[1]

        if kernel is None and device.layers is not None and not layer.seconds_forward:
            made = share * (layer.output_bytes + layer.inner_bytes)
            both = share * layer.flops_forward, share * layer.flops_backward
            timed = device.layers.seconds(
                layer.kind, made, both, device.peak(dtype).value
            )
            if timed is not None:
                return timed

        # Roofline: a kernel is bound by its FLOPs or by the bytes that it moves. A
        # measured time takes the place of both, scaled by the efficiency of smaller
        # kernels.
        moved = share * layer.output_bytes + self.weight_bytes(layer, share)
        curve, seconds = device.efficiency, []
        for measured, whole_flops, passes, kernels in (
            (layer.seconds_forward, layer.flops_forward, _FORWARD_PASSES, 1),
            (layer.seconds_backward, layer.flops_backward, _BACKWARD_PASSES, 2),
        ):
            # Efficiency depends on the size of one kernel, not of the whole pass.
            flops = share * whole_flops / kernels
            if measured is not None:
                whole_share = curve.at(whole_flops / kernels)
                slower = whole_share / curve.at(flops) if flops else 1.0
                seconds.append(measured * share * slower)
            elif not whole_flops and not moved:
                seconds.append(0.0)
            else:
                peak = device.peak(dtype).value
                work = kernels * flops / (peak * curve.at(flops)) if flops else 0.0
                passed = passes * moved / device.memory_bandwidth.value
                seconds.append(max(work, passed) + kernels * device.launch.value)
        return seconds[0], seconds[1]

    def _block_overhead(self, block: str) -> tuple[float, float]:
        """Return the time of a block over the sum of its layers, forward and backward.

        It is 1 where no block like it was timed, and where layers were measured.

        Args:
            block: its name; the empty name of layers without a block is the last block.
        """
        if block in self._block_overheads:
            return self._block_overheads[block]
        profile, table, found = self.case.profile, self.device.blocks, (1.0, 1.0)
        if table is not None and profile.blocks:
            # Whole samples and weights in both: a divided block has the same overhead.
            share = 1 / (self.case.block_sample_shards(block) * self.case.microbatches)
            name = block or profile.blocks[-1].name
            peak = self.device.peak(self.case.dtype).value
            signature = block_signature(profile, name)
            timed = table.at(signature, share * profile.batch, peak)
            layers = profile.layers_of(name)
            if timed and all(layer.seconds_forward is None for layer in layers):
                each = [self._layer_seconds(layer, share) for layer in layers]
                forward, backward = (sum(one) for one in zip(*each, strict=True))
                if forward and backward:
                    # A pipeline copies what the block saves for its backward pass into
                    # the buffer of the microbatches in flight.
                    copied = _COPY_PASSES * timed.kept if self.case.stages else 0
                    copied /= self.device.memory_bandwidth.value
                    found = (
                        (timed.forward_s + copied) / forward,
                        timed.backward_s / backward,
                    )
        self._block_overheads[block] = found
        return found

    @cached_property
    def _block_overheads(self) -> dict[str, tuple[float, float]]:
        return {}


@dataclass(frozen=True, kw_only=True)
class StageCostModel:
    """The compute time of a stage: that of the slowest of its kinds of devices."""

    models: tuple[ComputeCostModel, ...]
    """One for each kind of device that the stage stands on."""

    @property
    def microbatches(self) -> int:
        """The microbatches that a device of the stage works on in a step."""
        return self.models[0].microbatches

    def slowest_device(self, layers: Iterable[LayerProfile]) -> Device:
        """Return the kind of device that takes longest for some layers."""
        own = tuple(layers)

        def seconds(model: ComputeCostModel) -> float:
            spent = map(model.microbatch_time, own)
            return sum(one.forward + one.backward for one in spent)

        return max(self.models, key=seconds).device

    def work_fraction(self, layer: LayerProfile) -> float:
        """Return the part of a layer's work on the batch, as of one device."""
        return self.models[0].work_fraction(layer)

    def microbatch_time(self, layer: LayerProfile) -> MicrobatchTime:
        """Return the seconds of a layer in one microbatch, on the slowest device.

        Raises:
            BadInput: a device has no speed for the dtype.
        """
        if len(self.models) == 1:
            return self.models[0].microbatch_time(layer)
        return slowest_time([model.microbatch_time(layer) for model in self.models])

    def loss_time(self) -> MicrobatchTime:
        """Return the seconds of the loss of one microbatch, where losses were timed.

        Raises:
            BadInput: a device has no speed for the dtype.
        """
        return slowest_time([model.loss_time() for model in self.models])


def slowest_time(times: Sequence[MicrobatchTime]) -> MicrobatchTime:
    """Return the seconds of each pass where it takes longest."""
    return MicrobatchTime(
        forward=max(one.forward for one in times),
        backward=max(one.backward for one in times),
        weights=max(one.weights for one in times),
    )


def compute_cost_model(
    case: StepDescription, device: Device, pipe_rank: int
) -> ComputeCostModel:
    """Return the compute time of the device at a rank of the pipe axis."""
    return ComputeCostModel(
        case=case,
        device=device,
        ledger=case.ledgers[pipe_rank],
        microbatches=case.work_counts[pipe_rank].microbatches,
    )


def stage_cost_model(
    case: StepDescription, cluster: Cluster, stage: int
) -> StageCostModel:
    """Return the compute time of a stage on the devices that it stands on."""
    ranks = case.placement.stage_devices[stage]
    kinds = distinct_devices(
        device
        for rank in ranks
        for device in rank_devices(cluster, case.plan.placed, rank)
    )
    # Replicas of a stage have equal parts, so the first of them stands for all.
    models = (compute_cost_model(case, device, ranks[0]) for device in kinds)
    return StageCostModel(models=tuple(models))


def stage_compute_times(
    case: StepDescription, cluster: Cluster
) -> tuple[MicrobatchTime, ...]:
    """Return the seconds of each stage in one microbatch; one without stages.

    Raises:
        BadInput: a device has no speed for the dtype.
    """
    found = list[MicrobatchTime]()
    for stage, equal in enumerate(case.stages_of_equal_time(cluster)):
        if equal < stage:
            found.append(found[equal])
            continue
        model = stage_cost_model(case, cluster, stage)
        spent = (model.microbatch_time(x) for x in case.compute_layers(stage))
        found.append(sum(spent, MicrobatchTime(forward=0.0, backward=0.0)))
        if stage == case.stage_range[-1]:
            found[-1] += model.loss_time()
    return tuple(found)


def step_layer_times(case: StepDescription, cluster: Cluster) -> dict[str, LayerTime]:
    """Predict the seconds of each layer in a step, by name.

    Args:
        case: network, layout and traffic.
        cluster: machines.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    # Jitter is the mean delay of a device in a step: all devices wait for the slowest.
    late, found = 1 + cluster.jitter.value, {}
    for stage in case.stage_range:
        rank = case.placement.stage_devices[stage][0]
        micro = case.work_counts[rank].microbatches
        model = stage_cost_model(case, cluster, stage)
        for layer in case.compute_layers(stage):
            one = model.microbatch_time(layer)
            found[layer.name] = LayerTime(
                forward=late * micro * one.forward,
                backward=late * micro * one.backward,
            )
    return found
