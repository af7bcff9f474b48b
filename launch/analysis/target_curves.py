"""Calibrates a device that is not here by what its compiler estimates of networks."""

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxdist.calibrate.compiled_networks import (
    CompiledNetwork,
    fit_target_device,
    layer_scope,
)
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.launch.analysis.target_compile import CompiledStep, compile_for_target
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.targets.chips import TpuChip
from jaxdist.meshes.targets.compilers import quiet_stderr, target_devices
from jaxdist.meshes.targets.plugins import compiler_version
from jaxdist.meshes.targets.target import Target
from jaxdist.oracle.compute_times import compute_cost_model, step_layer_times
from jaxdist.oracle.predict import update_seconds
from jaxdist.profile.compiled_schedule import read_schedule

if TYPE_CHECKING:
    from rich.console import Console

_DTYPE: Final = "bfloat16"
"""Of activations: what matrix units multiply."""
_STREAM_NUMBERS: Final = 1 << 28
"""Numbers of the array that is streamed, 1 GiB in float32: no chip keeps it inside."""

_TILE_NUMBERS: Final = 8 * 128
"""Numbers of one tile of a vector unit, the least that an operation works on."""

IMAGES: Final = ("data.name=synthetic", "model.size=tiny")
TOKENS: Final = ("data.name=synthetic", "model.depth=2")
FITTED_NETWORKS: Final[tuple[tuple[str, ...], ...]] = (
    # Bottleneck blocks behind batch norm, basic blocks, plain convolutions with maxima;
    # Transformers of both families. But for AlexNet their sizes are no published
    # network's, and the smallest are bound by what an instruction takes at least.
    ("resnet50", *IMAGES, "model.width=96", "data.size=160", "data.batch=512"),
    ("vgg16", *IMAGES, "model.width=80", "data.size=112", "data.batch=512"),
    ("alexnet", "data.name=synthetic", "data.batch=1024"),
    (
        *("gpt2_small", *TOKENS, "model.embed=1024", "model.heads=16"),
        *("model.vocabulary=32768", "data.batch=32"),
    ),
    (
        *("llama", *TOKENS, "model.embed=1536", "model.heads=24", "model.kv_heads=8"),
        *("model.hidden=6144", "model.vocabulary=65536", "data.batch=8"),
    ),
    ("characters", "data.name=synthetic", "model.vocabulary=64", "model.context=128"),
    ("digits", "plan.mesh.spatial_h=1"),
)
"""What is compiled: experiments and the keys that set their sizes."""


@dataclass(frozen=True, kw_only=True)
class NetworkScore:
    """How far a device's compute is off for a network that was compiled for it."""

    network: str
    """What it is called, with its sizes."""
    compiled_s: float
    """Seconds of the compiler's cycles."""
    predicted_s: float
    """Seconds of the oracle's terms `compute` and `update`."""
    layer_error: float
    """Sum of what layers are off by, over the sum of what they take."""
    median_layer_error: float
    """Median of what layers are off by that take a hundredth of the step or more."""

    @property
    def step_error(self) -> float:
        """Predicted over compiled, less one."""
        return self.predicted_s / self.compiled_s - 1


@dataclass(frozen=True, kw_only=True)
class TargetCalibration:
    """A device that was calibrated by its compiler."""

    cluster: Cluster
    """The cluster of such devices, with their timings."""
    compiler: str
    """Package and version."""
    networks: tuple[CompiledNetwork, ...]
    """What was compiled."""
    scores: tuple[NetworkScore, ...]
    """Each network predicted from the others."""
    output_path: Path
    """The cluster file."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, in seconds and bytes."""
        device = self.cluster.device
        return {
            "compiler": self.compiler,
            "bandwidth": device.memory_bandwidth.value,
            "kernels": len(device.kernels.timed) if device.kernels else 0,
            "layers": len(device.layers.timed) if device.layers else 0,
            "networks": [
                {
                    "network": score.network,
                    "compiled_s": score.compiled_s,
                    "predicted_s": score.predicted_s,
                    "step_error": score.step_error,
                    "layer_error": score.layer_error,
                    "median_layer_error": score.median_layer_error,
                }
                for score in self.scores
            ],
            "written": str(self.output_path),
        }


def calibrate_target(
    target: Target, found: Sequence["NetworkAnswer"], output: Path
) -> TargetCalibration:
    """Time a target's kernels and layers by the cycles of compiled networks.

    Args:
        target: a host of TPUs.
        found: networks that were compiled for it.
        output: the cluster file, whose name is that of the cluster.
    """
    speed = memory_speed(target)
    every = [one.network for one in found]
    # Leave one out: a network that was fitted to its own cycles would score itself.
    scores = []
    for one in found:
        others = [other for other in every if other is not one.network]
        device = fit_device(target, others, speed)
        scores.append(score_network(one, replace(target.cluster, device=device)))
    # What is written is fitted to all of them.
    cluster = replace(
        target.cluster,
        name=output.stem,
        device=fit_device(target, every, speed),
    )
    return TargetCalibration(
        cluster=cluster,
        compiler=compiler_version(target.platform),
        networks=tuple(every),
        scores=tuple(scores),
        output_path=output,
    )


@dataclass(frozen=True, kw_only=True)
class NetworkAnswer:
    """A network that was compiled, with what describes its step."""

    network: CompiledNetwork
    """What the compiler estimates of it."""
    describer: StepDescriber
    """Its experiment."""
    step: CompiledStep
    """All that the compiler says."""


def compile_network(
    words: Sequence[str], target: Target, folder: Path | None
) -> NetworkAnswer:
    """Compile an experiment's step in bfloat16, its samples split over a host.

    Args:
        words: experiment, and keys.
        target: a host of TPUs.
        folder: where answers of compilers are kept; None: nowhere.

    Raises:
        BadInput: the step does not fit.
    """
    experiment, *keys = words
    mesh = f"plan.mesh.data={target.devices}"
    resolved = resolve_config(experiment, [f"precision={_DTYPE}", mesh, *keys])
    config: Experiment = resolved.config
    answer = compile_for_target(resolved, target, folder)
    if not answer.fits or answer.cycles is None:
        raise BadInput(
            f"{' '.join(words)} cannot be timed on {target}",
            rule="a step that fits has cycles of its layers",
            values=f"{answer.memory_bytes:,} B of {answer.capacity_bytes:,} B",
            remedy="a smaller data.batch",
        )
    describer = StepDescriber(config, target.platform)
    # Cycles a second.
    clock = answer.cycles / (answer.compute_s or 1.0)
    cycles = {
        row["layer"]: (row["forward_cycles"], row["backward_cycles"])
        for row in answer.layers
    }
    # Cycles in no layer's scope are those of the update and of the loss.
    rest = answer.cycles - sum(map(sum, cycles.values()))
    network = CompiledNetwork(
        name=" ".join(words),
        profile=describer.profile,
        parts=target.devices,
        state_bytes=answer.memory_terms["parameters"]
        + answer.memory_terms["optimizer"],
        layer_seconds={
            layer: (forward / clock, backward / clock)
            for layer, (forward, backward) in cycles.items()
        },
        update_s=rest / clock,
    )
    return NetworkAnswer(network=network, describer=describer, step=answer)


def memory_speed(target: Target) -> tuple[float, float]:
    """Return the bytes a second that memory passes, and an operation's least seconds.

    They are what the compiler estimates of one operation that reads an array and writes
    another: of a large one, and of one tile.
    """
    assert isinstance(target.chip, TpuChip)
    place, clock = (
        SingleDeviceSharding(target_devices(target)[0]),
        target.chip.clock.value,
    )

    def seconds(array: jax.ShapeDtypeStruct) -> float:
        with quiet_stderr():
            lowered = jax.jit(lambda x: x + 1, out_shardings=place).lower(array)
            text = lowered.compile().as_text() or ""
        return read_schedule(text, frozenset()).cycles / clock

    large, small = (
        jax.ShapeDtypeStruct((numbers,), jnp.float32, sharding=place)
        for numbers in (_STREAM_NUMBERS, _TILE_NUMBERS)
    )
    # Read once and written once.
    return 2 * large.size * large.dtype.itemsize / seconds(large), seconds(small)


def fit_device(
    target: Target, networks: Sequence[CompiledNetwork], speed: tuple[float, float]
) -> Device:
    """Return the target's device with the timings of compiled networks.

    Args:
        target: whose data sheet has the rest.
        networks: compiled for it.
        speed: of memory, as `memory_speed` has it.
    """
    assert isinstance(target.chip, TpuChip)
    version = compiler_version(target.platform)
    return fit_target_device(
        target.device,
        networks,
        bandwidth=speed[0],
        launch=speed[1],
        number_bytes=jnp.dtype(_DTYPE).itemsize,
        tile=target.chip.matrix_side,
        origin=f"fitted: cycles that {version} estimates for {target.chip.name}",
    )


def score_network(answer: NetworkAnswer, cluster: Cluster) -> NetworkScore:
    """Hold the predicted compute of a network against its compiled program.

    Args:
        answer: the network, compiled for devices of the cluster.
        cluster: whose device has timings.
    """
    network, device = answer.network, cluster.device
    case = answer.describer.describe(answer.describer.config.plan)
    predicted: dict[str, float] = defaultdict(float)
    for layer, took in step_layer_times(case, cluster).items():
        # The scope of a block has what lies between its layers.
        scope = layer_scope(layer, network.layer_seconds) or ""
        predicted[scope] += took.forward + took.backward
    # Neither loss nor update is in a layer's scope: both sides have them under "".
    loss = compute_cost_model(case, device, 0).loss_time()
    predicted[""] += loss.forward + loss.backward + update_seconds(case, device)
    compiled = {x: sum(took) for x, took in network.layer_seconds.items()}
    compiled[""] = compiled.get("", 0.0) + network.update_s
    errors = {x: abs(predicted[x] - took) for x, took in compiled.items()}
    whole = network.step_s
    large = sorted(
        errors[x] / took for x, took in compiled.items() if took >= whole / 100
    )
    return NetworkScore(
        network=network.name,
        compiled_s=whole,
        predicted_s=sum(predicted.values()),
        layer_error=sum(errors.values()) / whole,
        median_layer_error=large[len(large) // 2] if large else 0.0,
    )


def print_target_calibration(out: "Console", made: TargetCalibration) -> None:
    """Print each network predicted from the others, and what was written."""
    device = made.cluster.device
    out.print(f"{made.cluster.name}    {device.name}, by {made.compiler}\n")
    heads = ("compiled", "predicted", "step", "layers ")
    rows = make_table("network, left out", *heads, right=heads)
    for score in made.scores:
        rows.add_row(
            score.network,
            format_duration(score.compiled_s),
            format_duration(score.predicted_s),
            f"{100 * score.step_error:+.1f} %",
            format_percent(score.layer_error),
        )
    print_table(out, rows)
    kernels = len(device.kernels.timed) if device.kernels else 0
    layers = len(device.layers.timed) if device.layers else 0
    rate = format_size(device.memory_bandwidth.value, "B/s")
    out.print(f"  memory   {rate} a device, as the compiler counts")
    out.print(f"  timed    {kernels} kernels, {layers} layers of other kinds")
    out.print(f"  written  {made.output_path}\n")
    file = shlex.quote(str(made.output_path))
    print_next_commands(
        out,
        f"jaxdist predict resnet50 plan.mesh.data=64 data.batch=2048 --cluster {file}",
    )
