"""Describing an experiment's step under a plan, for the oracle; nothing is computed.

The mesh has no devices, so a layout for 1,024 of them is described on a laptop.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from jaxdist.core.axes import AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.profile import Profile
from jaxdist.input.augmentation import Augmentation
from jaxdist.input.registry import is_known, open_data, sized_features
from jaxdist.launch.config import Experiment
from jaxdist.launch.training.job.batch_spec import (
    batch_shapes,
    feature_spec,
    fit_model_config,
    ignored_values,
)
from jaxdist.launch.training.job.job import (
    Job,
    lay_out,
    make_model_spec,
    make_task,
    objective_of,
    task_network,
)
from jaxdist.layers import bind
from jaxdist.meshes.build import build_mesh
from jaxdist.oracle.step_description import FROZEN_TERM, StepDescription
from jaxdist.profile.layer_calls import LayerCall, trace_calls
from jaxdist.profile.network_profile import profile_network
from jaxdist.profile.trace import TraceCache
from jaxdist.train.build_layout import check_samples
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.objective import cast_floats
from jaxdist.train.peak_memory import (
    device_batch_bytes,
    host_bytes,
    step_temporary_bytes,
    trace_device_program,
)

if TYPE_CHECKING:
    from jaxdist.train.task import Task

_STATE_AXES: Final = ("replica", "pipe", "fsdp", "expert", "tensor")
"""Axes that split parameters, and what an optimizer has of each."""
_MAX_FAST_TRACE_LAYERS: Final = 1000
"""Layers of a network whose step is traced soon: ResNet-152 has about 500."""


class StepDescriber:
    """An experiment whose step is described under one plan after another.

    Args:
        config: checked settings; of its plan the kernel of attention is used. A plan
            that says nothing of microbatches has those of its optimizer.
        platform: of the devices that it is described for: cpu, gpu or tpu.

    Raises:
        BadInput: data that the network cannot be trained on.
    """

    def __init__(self, config: Experiment, platform: str = "cpu") -> None:
        # Nothing is computed: leave accelerators to those who use them.
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", config.precision == "float64")
        # The number of training samples is None where the data is not here.
        self.config, self.shapes, self.num_samples = fit_batch_shapes(config)
        self.task: Task = make_abstract_task(self.config)
        self._platform = platform
        used = config.plan.attention_platform(platform)
        self.profile = profile_task(self.task, self.shapes, config.model.name, used)
        # What is traced of blocks is the same under many plans; a search describes
        # hundreds.
        self.trace_cache = TraceCache()

    @property
    def dtype(self) -> str:
        """Of the activations."""
        return np.dtype(self.task.dtype).name

    def describe(self, plan: Plan) -> StepDescription:
        """Describe the step under a plan, its blocks one by one.

        Raises:
            BadInput: the network or the batch cannot be split that way.
        """
        # To find the loops of accelerators takes longer than all else, and changes
        # neither work nor, but for microbatches, traffic.
        unrolled = plan
        if plan.scan == "auto":
            unrolled = replace(plan, scan="off", offload=())
        return self._describe(self.layout(unrolled), plan)

    def _describe(self, layout: Layout, plan: Plan) -> StepDescription:
        # All that the bytes of a state depend on, besides the network.
        own = layout.plan
        # The other axes split samples, and what a compressor keeps of its sums.
        axes = AXES if layout.has_error_feedback else _STATE_AXES
        sizes = tuple(own.mesh.size(axis) for axis in axes)
        how = sizes, own.zero, own.reduce, own.outer, own.replicated_axes
        state = self.trace_cache.get_or_compute(
            ("state", layout.state_layout, *how), lambda: state_bytes(layout)
        )
        return _describe(layout, plan, self.profile, self.shapes, state)

    @property
    def is_fast_to_trace(self) -> bool:
        """Whether tracing a step does not take minutes."""
        return len(self.profile.layers) <= _MAX_FAST_TRACE_LAYERS

    def describe_traced(self, plan: Plan) -> StepDescription:
        """Describe the step under a plan, with the peak memory of its program.

        Equal blocks are loops there where they are in the step.

        It takes as long as tracing the step: 0.5 to 8 s, and minutes where it has a
        thousand layers.

        Raises:
            BadInput: as `describe`.
        """
        layout = self.layout(plan)
        program = trace_device_program(layout)
        traced = {
            "batch": device_batch_bytes(layout),
            "temporaries": step_temporary_bytes(layout, program),
        }
        described = self._describe(layout, plan)
        return replace(
            described, traced_bytes=traced, traced_host_bytes=host_bytes(program)
        )

    def layout(self, plan: Plan, devices: Sequence[Any] | None = None) -> Layout:
        """Lay the step out.

        Args:
            plan: how it is split.
            devices: as many as the plan has; None: on a mesh without devices.

        Raises:
            BadInput: the network or the batch cannot be split that way.
        """
        mesh: Any
        if devices is None:
            sizes = tuple(size for _, size in plan.mesh.items())
            # Shardings and `shard_map` take it like a mesh while nothing is run.
            mesh = AbstractMesh(
                sizes,
                AXES,
                axis_types=(AxisType.Auto,) * len(AXES),
                abstract_device=AbstractDevice("", None, self._platform),
            )
        else:
            mesh = build_mesh(plan, devices)
        micro = plan.microbatches or self.task.microbatches
        task = self.task.in_parts(micro)
        return lay_out(self.config, task, plan, mesh, self.shapes, self.trace_cache)


def profile_task(
    task: "Task", shapes: BatchShapes, name: str, platform: str = "cpu"
) -> Profile:
    """Read a task's network on a global batch.

    Args:
        task: its network, on shapes alone.
        shapes: of the batch.
        name: of the network.
        platform: whose kernels its layers use.

    Raises:
        BadInput: the network cannot take such samples.
    """
    # Activations have the precision of the run, whatever the samples have.
    inputs = cast_floats(task.objective.model_inputs(shapes), task.dtype)
    samples = shapes["id"].shape[0]
    prepare = partial(bind_dropout_rng, batch=samples, platform=platform)
    try:
        return profile_network(task_network(task), inputs, name=name, prepare=prepare)
    except BadInput:
        raise
    except Exception:
        # A network that cannot take its samples is told so, as a run would be.
        check_samples(task, task_network(task), inputs, shapes, prepare)
        raise


def bind_dropout_rng(network: nnx.Module, batch: int, platform: str = "cpu") -> None:
    """Bind the random numbers of the dropout of a network that is traced.

    Dropout draws them from a key and the numbers of the samples; any will do here.
    """
    ids = jnp.arange(batch, dtype=jnp.int32)
    bind(network, jax.random.key(0), ids, platform=platform)


def make_abstract_task(config: Experiment) -> "Task":
    """Return an experiment's task, on shapes alone.

    Args:
        config: fitted to its data, as `fit_batch_shapes` returns it.
    """
    # The rate has the shape of the count, as the optimizer wants it; its value is never
    # used.
    return make_task(config, make_model_spec(config), lambda count: 0.0 * count)


def list_layer_calls(config: Experiment) -> tuple[LayerCall, ...]:
    """List the layers that a step of an experiment calls, on the whole batch.

    Raises:
        BadInput: data that the network cannot be trained on.
    """
    sized, shapes, _ = fit_batch_shapes(config)
    task = make_abstract_task(sized)
    calls, _ = trace_calls(
        task.graph,
        (task.state.params, task.state.stats),
        *cast_floats(task.objective.model_inputs(shapes), task.dtype),
        prepare=lambda network: bind_dropout_rng(network, config.data.batch),
    )
    return calls


def state_bytes(layout: Layout) -> dict[str, int]:
    """Return the bytes of the state on one device, by term: exact."""
    state, specs = layout.state_shapes, layout.specs
    fields = {
        "params": "parameters",
        "stats": "statistics",
        "step": "statistics",
        "opt": "optimizer",
        "average": "averages",
        "feedback": "residuals",
        "replicas": "replicas",
    }
    found = dict.fromkeys((*fields.values(), FROZEN_TERM), 0)
    stats = layout.state_layout.stat_shardings
    frozen = {i for i, leaf in enumerate(stats) if not leaf.has_gradient}
    # Few arrays lie in a way of their own.
    parts = dict[Any, int]()
    for name, term in fields.items():
        leaves = jax.tree.leaves(getattr(state, name))
        of = jax.tree.leaves(getattr(specs, name))
        for i, (leaf, spec) in enumerate(zip(leaves, of, strict=True)):
            if spec not in parts:
                # An entry of a spec is None, the name of an axis, or a tuple of names.
                axes = [
                    axis
                    for entry in spec
                    for axis in ((entry,) if isinstance(entry, str) else entry or ())
                ]
                parts[spec] = layout.plan.mesh.size(*axes)
            own = FROZEN_TERM if name == "stats" and i in frozen else term
            found[own] += _array_bytes(leaf) // parts[spec]
    return {term: size for term, size in found.items() if size}


def _array_bytes(array: jax.ShapeDtypeStruct) -> int:
    return math.prod(array.shape) * array.dtype.itemsize


def fit_batch_shapes(
    config: Experiment,
) -> tuple[Experiment, BatchShapes, int | None]:
    """Return the configuration fitted to the data, a batch's shapes, and its samples.

    A plan is described before anybody has copied a data set to the machine: without the
    data the shapes are those that the network was made for, and the number of training
    samples is None.
    """
    objective, num_samples = objective_of(config), None
    try:
        train, _ = open_data(config.data, feature_spec(config))
    except BadInput:
        # A name that no data set can have is a slip, and not data that is elsewhere.
        if not is_known(config.data):
            raise
        # In the size that the data would be read in, were it here.
        fields = sized_features(config.data, feature_spec(config))
        # A user's network says nothing of its input: it cannot do without samples.
        if set(objective.dtypes) - {k for k, f in fields.items() if not f.is_open}:
            raise
        augmentation = Augmentation.parse(config.data.augment)
        known = dict(
            augmentation.sample_shapes(
                {key: fields[key].shape for key in objective.dtypes},
                ignored_values(objective),
            )
        )
    else:
        num_samples = len(train)
        config = replace(config, model=fit_model_config(config, train))
        read = batch_shapes(config, objective, train)
        known = {key: read[key].shape[1:] for key in objective.dtypes}
    batch = config.data.batch
    # Each sample has a number, from which its dropout and its augmentation are drawn.
    dtypes = {**objective.dtypes, "id": "int32"}
    shapes = {
        key: jax.ShapeDtypeStruct((batch, *known.get(key, ())), np.dtype(dtype))
        for key, dtype in dtypes.items()
    }
    return config, shapes, num_samples


def describe_job(job: Job) -> StepDescription:
    """Describe the step that a job runs; nothing is computed.

    Args:
        job: what runs.
    """
    layout, shapes = job.layout, job.layout.batch_shapes
    used = job.plan.attention_platform(layout.platform)
    profile = profile_task(layout.task, shapes, job.config.model.name, used)
    return _describe(layout, job.plan, profile, shapes, state_bytes(layout))


def _describe(
    layout: Layout,
    plan: Plan,
    profile: Profile,
    shapes: BatchShapes,
    state: Mapping[str, int],
) -> StepDescription:
    return StepDescription(
        profile=profile,
        plan=plan,
        ledgers=layout.ledgers,
        equal_ranks=layout.equal_ranks,
        microbatches=layout.task.microbatches,
        stages=layout.slot_layout.stages.blocks if layout.slot_layout else (),
        dtype=np.dtype(layout.task.dtype).name,
        state_bytes=state,
        batch_bytes=sum(map(_array_bytes, shapes.values())),
    )
