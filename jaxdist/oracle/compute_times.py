"""Work: the seconds that a device computes, by layer, on the slice it really gets.

    share(l)   = FLOPs that the ledger gives the device / FLOPs of the whole layer; of a
                 module with several split layers, attention, as they; of others
                 1 / (devices that share out the samples there)
    measured   seconds(l) share e(F) / e(share F)
    timed      what the device was seen to take for products and convolutions like the
               slice's own (`jaxdist.core.cluster.kernel_timings`)
    otherwise  max(share F / (peak e(share F)), share M / memory bandwidth) + launch
    whole      all of it as much longer as the layer's block, where that was timed
               (`jaxdist.oracle.block_overhead`)
    again      forward once more backward, of blocks that a plan computes again
    summed     3 W / memory bandwidth for each microbatch of several, or of a pipeline

F are the FLOPs of one kernel of the layer, M the bytes that it reads and writes, of the
weights those that a device has of them, e the device's efficiency by the FLOPs of a
kernel: half a layer takes more than half the time (correction 5 to ParaDL, arXiv
2104.09075). W are the bytes of a stage's weights on a device.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.kernel_shape import KernelShape
from jaxdist.core.profile import LayerProfile
from jaxdist.core.step_breakdown import LayerTime
from jaxdist.oracle.block_overhead import block_overhead
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.plan_schedule import device_work_counts
from jaxdist.pipeline.stage_placement import stage_placement

_BACKWARD_PASSES: Final = 3
"""Times that a backward pass passes over a layer's output: its slope, its value, and
the slope that it writes."""
_FORWARD_PASSES: Final = 2
"""Times that a forward pass does: it reads its input and writes its output."""
ACCUMULATION_PASSES: Final = 3
"""Times that adding a gradient to a sum passes over it: both are read, one written."""
_BACKWARD_KERNELS: Final = 2
"""Kernels of a backward pass, for one of a forward pass."""


@dataclass(frozen=True, kw_only=True)
class MicrobatchTime:
    """Seconds of one microbatch on one device."""

    forward: float
    backward: float
    forward_comm: float = 0.0
    """Those of `forward` in which layers talk to other devices."""
    backward_comm: float = 0.0
    """The same of `backward`."""

    def __add__(self, other: "MicrobatchTime") -> "MicrobatchTime":
        return MicrobatchTime(
            forward=self.forward + other.forward,
            backward=self.backward + other.backward,
            forward_comm=self.forward_comm + other.forward_comm,
            backward_comm=self.backward_comm + other.backward_comm,
        )


@dataclass(frozen=True, kw_only=True)
class ComputeCostModel:
    """A device, and the part of each layer that is its own."""

    case: StepDescription
    """What it takes part in."""
    device: Device
    """How fast it is."""
    ledger: Ledger
    """What it does."""
    microbatches: int
    """Those that it works on in a step."""

    def work_fraction(self, layer: LayerProfile) -> float:
        """Return the part of a layer's work on the batch in one microbatch."""
        planned = self.ledger.layer_flops.get(layer.name)
        if planned and layer.flops:
            return planned / layer.flops / self.microbatches
        if self.case.plan.mesh.tensor > 1 and layer.name in self._module_fractions:
            return self._module_fractions[layer.name] / self.microbatches
        return 1 / (self.case.block_sample_shards(layer.block) * self.case.microbatches)

    @cached_property
    def _module_fractions(self) -> dict[str, float]:
        """Return the part of their layers that is done here, of modules with several.

        What attention does between its layers is dealt out with them, head by head.
        """
        planned, whole, count = Counter[str](), Counter[str](), Counter[str]()
        for layer in self.case.profile.layers:
            work = self.ledger.layer_flops.get(layer.name)
            if work and layer.flops:
                module = layer.name.rpartition(".")[0]
                planned[module] += work
                whole[module] += layer.flops
                count[module] += 1
        return {m: planned[m] / whole[m] for m, n in count.items() if m and n > 1}

    def microbatch_time(self, layer: LayerProfile) -> MicrobatchTime:
        """Return the seconds of a layer in one microbatch."""
        forward, backward = self._layer_seconds(layer, self.work_fraction(layer))
        longer = self._block_overhead(layer.block)
        forward, backward = longer[0] * forward, longer[1] * backward
        summed = MicrobatchTime(forward=0.0, backward=self._accumulation_seconds(layer))
        again = self.case.is_rematerialized(layer) * forward
        return MicrobatchTime(forward=forward, backward=backward + again) + summed

    def _layer_seconds(self, layer: LayerProfile, share: float) -> tuple[float, float]:
        """Return the seconds of a part of a layer, forward and backward."""
        return self._timed_seconds(layer, share) or self._roofline_seconds(layer, share)

    def _block_overhead(self, block: str) -> tuple[float, float]:
        """Return how many times as long as its layers a block takes."""
        if block not in self._block_overheads:
            self._block_overheads[block] = block_overhead(
                self.case, self.device, block, self._layer_seconds
            )
        return self._block_overheads[block]

    @cached_property
    def _block_overheads(self) -> dict[str, tuple[float, float]]:
        return {}

    def _roofline_seconds(
        self, layer: LayerProfile, share: float
    ) -> tuple[float, float]:
        """Return the seconds of a layer by its FLOPs and its bytes."""
        made = share * layer.output_bytes + self.weight_bytes(layer, share)
        forward = self._pass_seconds(
            layer.seconds_forward, layer.flops_forward, share, _FORWARD_PASSES * made, 1
        )
        backward = self._pass_seconds(
            layer.seconds_backward,
            layer.flops_backward,
            share,
            _BACKWARD_PASSES * made,
            2,
        )
        return forward, backward

    def _timed_seconds(
        self, layer: LayerProfile, share: float
    ) -> tuple[float, float] | None:
        """Return the seconds of the layer's own kernels, where such were timed."""
        whole, table = layer.kernel, self.device.kernels
        if whole is None or table is None or layer.seconds_forward is not None:
            return None
        peak = self.device.peak(self.case.dtype).value
        found = table.seconds(self._kernel_slice(layer, whole, share), peak)
        if found is None:
            return None
        forward, backward = found
        # A layer that reads the network's input has the gradient of its weights alone.
        gradients = layer.flops_backward / layer.flops_forward / _BACKWARD_KERNELS
        return forward, min(1.0, gradients) * backward

    def _accumulation_seconds(self, layer: LayerProfile) -> float:
        """Return the seconds in which gradients are added to those of microbatches."""
        if self.case.microbatches == 1 and not self.case.stages:
            return 0.0
        weights = self.weight_bytes(layer, self.work_fraction(layer))
        return ACCUMULATION_PASSES * weights / self.device.memory_bandwidth.value

    def _kernel_slice(
        self, layer: LayerProfile, kernel: KernelShape, share: float
    ) -> KernelShape:
        """Return what one kernel computes here: a part of the uses, or of the filters.

        What is less than a device's part of the samples is filters that it lacks.
        """
        samples = 1 / (
            self.case.block_sample_shards(layer.block) * self.case.microbatches
        )
        filters = min(1.0, share / samples) if self.case.plan.mesh.tensor > 1 else 1.0
        uses = kernel.uses * share / filters
        return replace(kernel, uses=uses, outputs=kernel.outputs * filters)

    def weight_bytes(self, layer: LayerProfile, share: float) -> float:
        """Return the bytes of the weights that a kernel reads: of a device's part."""
        samples = self.case.block_sample_shards(layer.block) * self.case.microbatches
        return min(1.0, share * samples) * layer.parameter_bytes

    def _pass_seconds(
        self,
        measured: float | None,
        flops: int,
        share: float,
        bytes_moved: float,
        kernels: int,
    ) -> float:
        """Return the seconds of one direction."""
        curve, own = self.device.efficiency, share * flops / kernels
        if measured is not None:
            slower = curve.at(flops / kernels) / curve.at(own) if own else 1.0
            return measured * share * slower
        if not flops and not bytes_moved:
            return 0.0
        peak = self.device.peak(self.case.dtype).value
        computed = kernels * own / (peak * curve.at(own)) if own else 0.0
        passed = bytes_moved / self.device.memory_bandwidth.value
        return max(computed, passed) + kernels * self.device.launch.value


def stage_compute_times(
    case: StepDescription, device: Device
) -> tuple[MicrobatchTime, ...]:
    """Return the seconds of each stage in one microbatch; one without stages.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    nothing = MicrobatchTime(forward=0.0, backward=0.0)
    return tuple(
        sum((one for _, one in microbatch_layer_times(case, device, stage)), nothing)
        for stage in range(max(1, len(case.stages)))
    )


def microbatch_layer_times(
    case: StepDescription, device: Device, stage: int
) -> Iterator[tuple[LayerProfile, MicrobatchTime]]:
    """Yield the layers of a stage, and the seconds of each in one microbatch.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    place = stage_placement(case.plan).stage_devices[stage][0]
    worker = ComputeCostModel(
        case=case,
        device=device,
        ledger=case.ledgers[place],
        microbatches=device_work_counts(case.plan, case.microbatches)[
            place
        ].microbatches,
    )
    for layer in compute_layers(case, stage):
        yield layer, worker.microbatch_time(layer)


def compute_layers(case: StepDescription, stage: int) -> tuple[LayerProfile, ...]:
    """Return the layers whose work a stage does.

    They are those of its blocks, but for a table that the last block uses: what costs
    time is asking it, which the last stage does.
    """
    last = len(case.stages) - 1
    if last < 1:
        return case.stage_layers(stage)
    asked, own = _shared_layers(case, last), case.stage_layers(stage)
    if stage != last:
        return tuple(layer for layer in own if layer.name not in asked)
    return (*(x for x in case.profile.layers if x.name in asked), *own)


def _shared_layers(case: StepDescription, last: int) -> frozenset[str]:
    """Name what the device of the last stage works on that its blocks do not hold."""
    places = stage_placement(case.plan)
    device = places.stage_devices[last][0]
    own = (x for stage in places.stages_of(device) for x in case.stage_layers(stage))
    return frozenset(case.ledgers[device].layer_flops.keys() - {x.name for x in own})


def step_layer_times(case: StepDescription, cluster: Cluster) -> dict[str, LayerTime]:
    """Predict the seconds of each layer in a step, by name.

    Args:
        case: network, layout and traffic.
        cluster: machines.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    late, found = 1 + cluster.jitter.value, {}
    places, taken = (
        stage_placement(case.plan),
        device_work_counts(case.plan, case.microbatches),
    )
    for stage in range(max(1, len(case.stages))):
        micro = taken[places.stage_devices[stage][0]].microbatches
        for layer, one in microbatch_layer_times(case, cluster.device, stage):
            found[layer.name] = LayerTime(
                forward=late * micro * one.forward,
                backward=late * micro * one.backward,
            )
    return found
