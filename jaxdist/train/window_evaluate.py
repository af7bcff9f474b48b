"""Evaluation by sliding windows: images of which no device could hold one whole.

Devices have one batch of windows at a time, laid out as a batch of training is. The
host reads the planes that these windows see, blends what devices return, plane by
plane, and counts each plane when it is done. So nobody holds an image whole.
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

Read = Callable[[int, str, slice], NDArray[Any]]
"""Reads planes of a key of a sample, [planes, ...]."""
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
    image: tuple[int, ...]
    """Rows of an image along each dim."""
    read: Read
    """Reads planes of one of them: each plane once, in order."""
    place: Callable[[Cut], Mapping[str, jax.Array]]
    """Puts a batch of windows on the devices."""
    should_stop: Callable[[], bool] = lambda: False
    """Whether to interrupt an evaluation; called after every batch."""
    compiler_options: Mapping[str, str | bool] = field(default_factory=dict)
    """Options of the compiler, by name."""
    plane_bytes: int = 0
    """Most bytes that planes took on the host, of images and of blended outputs."""
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
            f"{format_size(self.plane_bytes)} of planes on the host"
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
            for outputs, batch in self._planes(state, number):
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
            # Counts are two words, as those that devices add.
            one = np.array([0, 1], np.int32)
            sums[-1] = {**sums[-1], "loss": float(losses[0]), "samples": one}
        zeros = {"loss": 0.0, "samples": np.zeros(2, np.int32)}
        return metrics_of_sums(self.layout, [{**zeros, **s} for s in sums])

    def _planes(
        self, state: TrainState, number: int
    ) -> Iterator[tuple[NDArray[Any], dict[str, NDArray[Any]]]]:
        """Yield blended outputs of planes [1, planes, ...], with what they are held to.

        All have one shape, so that one program scores them: the last ones are filled up
        with planes whose targets count for nothing.
        """
        objective = self.layout.task.objective
        target_key, _ = objective.targets[0]
        ignored = getattr(objective, "ignore_value", 0)
        ready: list[NDArray[Any]] = []
        done = 0
        for plane in self._blend(state, number):
            ready.append(plane)
            done += 1
            count = max(_SCORED_BYTES // plane.nbytes, 1)
            count = min(count, self.window.sides[0], self.image[0])
            if len(ready) < count and done < self.image[0]:
                continue
            outputs = np.stack(ready)
            part = self.read(number, target_key, slice(done - len(ready), done))
            behind = [(0, count - len(ready)), *[(0, 0)] * (part.ndim - 1)]
            yield (
                np.pad(outputs, [*behind, (0, 0)])[None],
                {target_key: np.pad(part, behind, constant_values=ignored)[None]},
            )
            ready = []

    def _blend(self, state: TrainState, number: int) -> Iterator[NDArray[Any]]:
        """Yield what the network says of a sample's image, plane by plane."""
        sides, whole = self.window.sides, self.image
        size = self.batch_shapes["id"].shape[0]
        key, _ = self.layout.task.objective.inputs[0]
        image = _ImagePlanes(lambda part: self.read(number, key, part), whole, sides)
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
            image.move(group[0][0], group[-1][0] + sides[0])
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
        self.plane_bytes = max(self.plane_bytes, planes.max_bytes + image.max_bytes)

    def _run(
        self, state: TrainState, image: "_ImagePlanes", places: list[Place]
    ) -> Any:
        """Start the network on a batch of windows."""
        key, _ = self.layout.task.objective.inputs[0]
        dtype = self.batch_shapes[key].dtype

        def cut(rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
            parts = [image.cut(places[row]) for row in rows]
            ids = np.zeros(len(rows), np.int32)
            return {key: np.stack(parts).astype(dtype), "id": ids}

        return self._compiled_step(*state.evaluated, self.place(cut))


class _ImagePlanes:
    """The planes of an image that the windows of a batch see; zeros lie behind it.

    Args:
        read: reads planes, [planes, ..., C].
        image: rows of the image along each dim.
        sides: those of a window.
    """

    def __init__(
        self,
        read: Callable[[slice], NDArray[Any]],
        image: tuple[int, ...],
        sides: tuple[int, ...],
    ) -> None:
        self._read, self._image, self._sides = read, image, sides
        self._first = self._end = 0
        self._held: NDArray[Any] | None = None
        self.max_bytes = 0
        """Most bytes that planes took at once."""

    def move(self, first: int, end: int) -> None:
        """Read the planes up to one, and forget those before another."""
        if end > self._end:
            new = self._read(slice(self._end, min(end, self._image[0])))
            # An image smaller than a window is seen with zeros behind it.
            rows = (
                max(end - self._image[0], 0),
                *(
                    max(side - n, 0)
                    for side, n in zip(self._sides[1:], self._image[1:])
                ),
            )
            new = np.pad(new, [*((0, n) for n in rows), (0, 0)])
            if self._held is not None:
                new = np.concatenate([self._held[first - self._first :], new])
            self._held, self._first, self._end = new, first, end
            self.max_bytes = max(self.max_bytes, new.nbytes)

    def cut(self, place: Place) -> NDArray[Any]:
        """Return the window that begins at a place, [..., C]."""
        assert self._held is not None  # the planes were moved there
        starts = place[0] - self._first, *place[1:]
        sides = zip(starts, self._sides, strict=True)
        return self._held[tuple(slice(at, at + side) for at, side in sides)]
