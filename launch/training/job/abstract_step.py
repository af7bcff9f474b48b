"""Described: an experiment's step under a plan, for the oracle; nothing is computed.

The mesh has no devices, so a layout for 1,024 of them is described on a laptop.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from jaxdist.core.axes import AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.profile import Profile
from jaxdist.input.registry import open_data
from jaxdist.launch.config import Experiment
from jaxdist.launch.training.job.abstract_model import bind_dropout_rng
from jaxdist.launch.training.job.batch_spec import (
    batch_shapes,
    feature_spec,
    fit_model_config,
)
from jaxdist.launch.training.job.job import make_model_spec, make_task, task_network
from jaxdist.models.registry import objective_for
from jaxdist.oracle.step_description import StepDescription
from jaxdist.profile.layer_calls import LayerCall, trace_calls
from jaxdist.profile.network_profile import profile_network
from jaxdist.profile.trace_cache import TraceCache
from jaxdist.train.build_layout import build_layout
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.objective import cast_floats
from jaxdist.train.peak_memory import device_batch_bytes, step_temporary_bytes

if TYPE_CHECKING:
    from jaxdist.train.task import Task
from math import prod

from jaxdist.launch.training.job.job import Job

_MAX_FAST_TRACE_LAYERS: Final = 1000
"""Layers of a network whose step is traced soon: ResNet-152 has about 500."""


class StepDescriber:
    """An experiment whose step is described under one plan after another.

    Args:
        config: checked settings; of its plan nothing is used. A plan that says nothing
            of microbatches has those of its optimizer.

    Raises:
        BadInput: data that the network cannot be trained on.
    """

    def __init__(self, config: Experiment) -> None:
        # Nothing is computed: leave accelerators to those who use them.
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", config.precision == "float64")
        self.config, self.shapes = _with_batch_shapes(config)
        self.task: Task = _make_abstract_task(self.config)
        self.profile = profile_task(self.task, self.shapes, config.model.name)
        self.trace_cache = TraceCache()

    @property
    def dtype(self) -> str:
        """Of the activations."""
        return np.dtype(self.task.dtype).name

    def describe(self, plan: Plan) -> StepDescription:
        """Describe the step under a plan.

        Raises:
            BadInput: the network or the batch cannot be split that way.
        """
        return self._describe(self.layout(plan), plan)

    @property
    def is_fast_to_trace(self) -> bool:
        """Whether tracing a step does not take minutes."""
        return len(self.profile.layers) <= _MAX_FAST_TRACE_LAYERS

    def describe_traced(self, plan: Plan) -> StepDescription:
        """Describe the step under a plan, with what its program keeps at most.

        It takes as long as tracing the step: 0.5 to 8 s, and minutes where it has a
        thousand layers.

        Raises:
            BadInput: as `describe`.
        """
        layout = self.layout(plan)
        case = self._describe(layout, plan)
        beside = {
            "batch": device_batch_bytes(layout),
            "temporaries": step_temporary_bytes(layout),
        }
        return replace(case, traced_bytes=beside)

    def _describe(self, layout: Layout, plan: Plan) -> StepDescription:
        stages = layout.slot_layout.stages.blocks if layout.slot_layout else ()
        return StepDescription(
            profile=self.profile,
            plan=plan,
            ledgers=layout.ledgers,
            microbatches=layout.task.microbatches,
            stages=stages,
            dtype=self.dtype,
            state_bytes=state_bytes(layout),
            batch_bytes=sum(map(_array_bytes, self.shapes.values())),
        )

    def layout(self, plan: Plan) -> Layout:
        """Lay the step out on a mesh without devices."""
        sizes = tuple(size for _, size in plan.mesh.items())
        mesh: Any = AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))
        micro = plan.microbatches or self.task.microbatches
        task = self.task.in_parts(micro)
        return build_layout(task, plan, mesh, self.shapes, self.trace_cache)


def profile_task(task: "Task", shapes: BatchShapes, name: str) -> Profile:
    """Read a task's network on a global batch.

    Args:
        task: its network, on shapes alone.
        shapes: of the batch.
        name: of the network.
    """
    inputs = cast_floats(task.objective.model_inputs(shapes), task.dtype)
    samples = shapes["id"].shape[0]
    return profile_network(
        task_network(task),
        inputs,
        name=name,
        prepare=lambda network: bind_dropout_rng(network, samples),
    )


def abstract_task(config: Experiment) -> tuple["Task", BatchShapes]:
    """Return an experiment's task, and the shapes of a global batch.

    Raises:
        BadInput: data that the network cannot be trained on.
    """
    sized, shapes = _with_batch_shapes(config)
    return _make_abstract_task(sized), shapes


def _make_abstract_task(config: Experiment) -> "Task":
    return make_task(config, make_model_spec(config), lambda count: 0.0 * count)


def list_layer_calls(config: Experiment) -> tuple[LayerCall, ...]:
    """List the layers that a step of an experiment calls, on the whole batch.

    Raises:
        BadInput: data that the network cannot be trained on.
    """
    task, shapes = abstract_task(config)
    return trace_calls(
        task.graph,
        (task.state.params, task.state.stats),
        *cast_floats(task.objective.model_inputs(shapes), task.dtype),
        prepare=lambda network: bind_dropout_rng(network, config.data.batch),
    )


def state_bytes(layout: Layout) -> dict[str, int]:
    """Return the bytes of the state on one device, by term: exact."""
    state, specs = layout.state_shapes, layout.specs
    fields = {
        "parameters": "params",
        "statistics": "stats",
        "optimizer": "opt",
        "averages": "average",
        "residuals": "feedback",
        "replicas": "replicas",
    }
    found = {
        term: sum(
            _bytes_per_device(leaf, spec, layout.plan)
            for leaf, spec in zip(
                jax.tree.leaves(getattr(state, name)),
                jax.tree.leaves(getattr(specs, name)),
                strict=True,
            )
        )
        for term, name in fields.items()
    }
    found["statistics"] += _bytes_per_device(state.step, specs.step, layout.plan)
    return {term: size for term, size in found.items() if size}


def _bytes_per_device(leaf: jax.ShapeDtypeStruct, spec: Any, plan: Plan) -> int:
    """Return the bytes of an array that lie on one device."""
    axes = [
        name
        for names in spec
        for name in ((names,) if isinstance(names, str) else names or ())
    ]
    return _array_bytes(leaf) // plan.mesh.size(*axes)


def _array_bytes(array: jax.ShapeDtypeStruct) -> int:
    return int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize


def _with_batch_shapes(config: Experiment) -> tuple[Experiment, BatchShapes]:
    """Return the shapes of a batch: of the data, or, without it, of the network's own.

    A plan is described before anybody has copied a data set to the machine.
    """
    objective = objective_for(config.model)
    try:
        train, _ = open_data(config.data, feature_spec(config))
    except BadInput:
        fields = feature_spec(config)
        if set(objective.dtypes) - set(fields):
            raise
        known = {key: fields[key].shape for key in objective.dtypes}
    else:
        config = replace(config, model=fit_model_config(config, train))
        read = batch_shapes(config, objective, train)
        known = {key: read[key].shape[1:] for key in objective.dtypes}
    batch = config.data.batch
    dtypes = {**objective.dtypes, "id": "int32"}
    return config, {
        key: jax.ShapeDtypeStruct((batch, *known.get(key, ())), np.dtype(dtype))
        for key, dtype in dtypes.items()
    }


def describe_job(job: Job) -> StepDescription:
    """Describe the step that a job runs; nothing is computed.

    Args:
        job: what runs.
    """
    layout, config = job.layout, job.config
    task, batch = layout.task, config.data.batch
    profile = profile_network(
        task_network(task),
        cast_floats(task.objective.model_inputs(layout.batch_shapes), task.dtype),
        name=config.model.name,
        prepare=lambda network: bind_dropout_rng(network, batch),
    )
    arrays = layout.batch_shapes.values()
    return StepDescription(
        profile=profile,
        plan=layout.plan,
        ledgers=layout.ledgers,
        microbatches=task.microbatches,
        stages=layout.slot_layout.stages.blocks if layout.slot_layout else (),
        dtype=np.dtype(task.dtype).name,
        state_bytes=state_bytes(layout),
        batch_bytes=sum(prod(x.shape) * x.dtype.itemsize for x in arrays),
    )
