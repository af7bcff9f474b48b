"""Evaluation by sliding windows: images of which no device could hold one whole.

Devices have one batch of windows at a time, laid out as a batch of training is. The
host blends what they return, plane by plane, and counts each plane when it is done.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count, format_size
from jaxdist.train.evaluate import metrics_of_sums
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.program import compile_predict_step
from jaxdist.train.sliding_window import BlendedPlanes, Place, SlidingWindow
from jaxdist.train.state import TrainState

Sample = Mapping[str, NDArray[Any]]
"""Arrays of one sample, [1, ...]."""
Cut = Callable[[NDArray[np.int64]], dict[str, NDArray[Any]]]
"""Makes the windows of these rows of a batch, [rows, ...]."""

_SCORED_BYTES: Final = 2**24
"""Most bytes of blended outputs that a device scores at once, unless a plane has more.
"""


@dataclass(kw_only=True)
class WindowEvaluator:
    """Evaluates states by windows; compiled at its first use."""

    layout: Layout
    """Task and its layout, of images of a window's size."""
    batch_shapes: BatchShapes
    """Shapes of a global batch of windows."""
    window: SlidingWindow
    """How windows lie in an image, and how they are blended."""
    samples: int
    """Held-out samples."""
    read: Callable[[int], Sample]
    """Reads one of them, whole."""
    place: Callable[[Cut], Mapping[str, jax.Array]]
    """Puts a batch of windows on the devices."""
    should_stop: Callable[[], bool] = lambda: False
    """Whether to interrupt an evaluation; called after every batch."""
    compiler_options: Mapping[str, str | bool] = field(default_factory=dict)
    """Options of the compiler, by name."""
    plane_bytes: int = 0
    """Most bytes that blended outputs took on the host, of all evaluations."""
    windows: int = 0
    """Windows of the last evaluation, over all samples."""
    _compiled_step: Any = field(default=None, repr=False)
    _score: Any = field(default=None, repr=False)

    @property
    def ready(self) -> bool:
        """Whether the program for windows is compiled."""
        return self._compiled_step is not None

    @property
    def device_bytes(self) -> int:
        """Bytes that the program takes of a device, whatever the size of an image."""
        sizes = self._compiled_step.memory_analysis()
        return int(
            sizes.argument_size_in_bytes
            + sizes.output_size_in_bytes
            + sizes.temp_size_in_bytes
        )

    @property
    def resources(self) -> dict[str, int]:
        """Windows of the last evaluation, and bytes on a device and on the host."""
        return {
            "windows": self.windows,
            "device_bytes": self.device_bytes,
            "plane_bytes": self.plane_bytes,
        }

    def describe(self) -> str:
        """Say by which windows was scored, and what they took of memory, in a line."""
        sides = " x ".join(map(str, self.window.sides))
        return (
            f"{format_count(self.windows)} windows {sides}, overlap "
            f"{self.window.overlap:g}, {self.window.blend}; "
            f"{format_size(self.device_bytes)} a device, "
            f"{format_size(self.plane_bytes)} of blended planes on the host"
        )

    def prepare(self) -> None:
        """Compile the program for a batch of windows.

        Raises:
            BadInput: the objective cannot score images in parts.
        """
        task = self.layout.task
        if task.metrics:
            raise BadInput(
                "metrics of one's own are of whole outputs",
                rule="evaluation by windows has images in parts",
                values=f"metrics {', '.join(task.metrics)}",
                remedy="data.eval_window= data.augment=, or no metrics of one's own",
            )
        self._compiled_step = compile_predict_step(
            self.layout, self.batch_shapes, self.compiler_options
        )

        def score(outputs: jax.Array, batch: dict[str, jax.Array]) -> Any:
            # The task's own objective: planes are whole, and on one device.
            sums = task.objective.pixel_sums(outputs, batch)
            real = jnp.ones(1, bool)
            return sums, task.objective.answer_sums(outputs, batch, real)

        self._score = jax.jit(score)

    def __call__(self, state: TrainState) -> dict[str, Any]:
        """Return what `Evaluator` does; an interrupted evaluation an empty dict."""
        if not self.ready:
            self.prepare()
        self.windows = 0
        sums: list[Mapping[str, Any]] = []
        for number in range(self.samples):
            totals: Any = 0
            channels = 0
            sample = self.read(number)
            for outputs, batch in self._planes(state, sample):
                own, found = self._score(outputs, batch)
                totals += np.asarray(own, np.float64)
                channels = outputs.shape[-1]
                sums.append(found)
            if self.should_stop():
                return {}
            dtype = jnp.result_type(float)
            losses = self.layout.task.objective.losses_of_sums(
                jnp.asarray(totals, dtype), channels
            )
            sums[-1] = {**sums[-1], "loss": float(losses[0]), "samples": 1}
        zeros = {"loss": 0.0, "samples": 0}
        return metrics_of_sums(self.layout, [{**zeros, **s} for s in sums])

    def _planes(
        self, state: TrainState, sample: Sample
    ) -> Iterator[tuple[NDArray[Any], dict[str, NDArray[Any]]]]:
        """Yield blended outputs of planes [1, planes, ...], with what they are held to.

        All have one shape, so that one program scores them: the last ones are filled up
        with planes whose targets count for nothing.
        """
        objective = self.layout.task.objective
        image_key, (target_key, _) = objective.inputs[0][0], objective.targets[0]
        image, target = sample[image_key][0], sample[target_key][0]
        ignored = getattr(objective, "ignore_value", 0)
        ready: list[NDArray[Any]] = []
        done = 0
        for plane in self._blend(state, image):
            ready.append(plane)
            done += 1
            count = max(_SCORED_BYTES // plane.nbytes, 1)
            count = min(count, self.window.sides[0], len(image))
            if len(ready) < count and done < len(image):
                continue
            outputs, part = np.stack(ready), target[done - len(ready) : done]
            behind = [(0, count - len(ready)), *[(0, 0)] * (part.ndim - 1)]
            yield (
                np.pad(outputs, [*behind, (0, 0)])[None],
                {target_key: np.pad(part, behind, constant_values=ignored)[None]},
            )
            ready = []

    def _blend(self, state: TrainState, image: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield what the network says of an image [..., C], plane by plane."""
        sides, whole = self.window.sides, image.shape[:-1]
        # An image smaller than a window is seen with zeros behind it.
        behind = [(0, max(side - n, 0)) for side, n in zip(sides, whole, strict=True)]
        if any(n for _, n in behind):
            image = np.pad(image, [*behind, (0, 0)])
        size = self.batch_shapes["id"].shape[0]
        planes = BlendedPlanes(self.window, whole)
        waiting: deque[tuple[list[Place], Any]] = deque()
        places = self.window.places(whole)
        self.windows += len(places)

        def add() -> None:
            group, outputs = waiting.popleft()
            said = np.asarray(outputs)
            real = tuple(map(slice, sides))
            for place, each in zip(group, said):
                planes.add(place, each[real])

        for first in range(0, len(places), size):
            group = places[first : first + size]
            # Every batch is full: another shape would be another program.
            full = [*group, *[group[-1]] * (size - len(group))]
            waiting.append((group, self._run(state, image, full)))
            # The devices work on one batch while the host blends the one before.
            if len(waiting) > 1:
                add()
                yield from planes.take(waiting[0][0][0][0])
            if self.should_stop():
                break
        while waiting:
            add()
        yield from planes.take(whole[0])
        self.plane_bytes = max(self.plane_bytes, planes.max_bytes)

    def _run(self, state: TrainState, image: NDArray[Any], places: list[Place]) -> Any:
        """Start the network on a batch of windows."""
        key, _ = self.layout.task.objective.inputs[0]
        dtype = self.batch_shapes[key].dtype

        def cut(rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
            parts = [
                image[tuple(slice(p, p + n) for p, n in zip(place, self.window.sides))]
                for place in (places[row] for row in rows)
            ]
            ids = np.zeros(len(rows), np.int32)
            return {key: np.stack(parts).astype(dtype), "id": ids}

        return self._compiled_step(*state.evaluated, self.place(cut))
