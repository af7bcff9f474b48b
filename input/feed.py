"""Feed: batches on the devices before the step asks for them.

A recipe says what is in the batch of a step, for the rows this host needs; the feed
runs it ahead of time in grain's read threads and places the pieces on the devices.
"""

from collections.abc import Callable, Mapping
from threading import Thread, current_thread
from types import TracebackType
from typing import Final, Self

import jax
from jax.sharding import NamedSharding

from jaxdist.input.order import Order
from jaxdist.input.place import NONE_LARGER, Shapes, place, rows_held
from jaxdist.input.recipes import IMAGES, Dtypes, EvalRecipe, Recipe, TrainRecipe
from jaxdist.input.sources import Source

_ENDLESS: Final = 2**62


class Feed:
    """An iterator over batches as global `jax.Array`s, prepared ahead of time.

    Close it, or use it in a `with` statement: it holds threads.

    Args:
        recipe: what is in the batch of a step.
        batch: samples a step, over all devices together.
        shardings: how each key of the batch lies on the devices.
        shapes: of keys that are laid out with padding behind each sample.
        start: first step to give.
        stop: the step at which the feed ends.
        threads: threads that prepare batches.
        after: called when the feed is closed.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        batch: int,
        shardings: Mapping[str, NamedSharding],
        shapes: Shapes = NONE_LARGER,
        start: int = 0,
        stop: int = _ENDLESS,
        threads: int = 1,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        import grain

        self._recipe, self._batch, self._shardings = recipe, batch, dict(shardings)
        self._shapes, self._after = dict(shapes), after
        self._rows = rows_held(self._shardings.values(), batch)
        self._threads: set[Thread] = set()
        ahead = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1)
        steps = grain.MapDataset.range(start, stop).map(self._prepare)
        self._batches = iter(steps.to_iter_dataset(ahead))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return next(self._batches)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and wait until they have; closing twice does no harm."""
        self._batches.close()
        # grain tells its threads to end but does not wait for the batch in the making.
        while self._threads:
            self._threads.pop().join()
        self._after()

    def _prepare(self, step: int) -> dict[str, jax.Array]:
        """Make a batch and place it; runs in grain's threads."""
        self._threads.add(current_thread())
        local = self._recipe(step, self._rows)
        return place(local, self._rows, self._batch, self._shardings, self._shapes)


def train_feed(
    source: Source,
    order: Order,
    shardings: Mapping[str, NamedSharding],
    *,
    shapes: Shapes = NONE_LARGER,
    dtypes: Dtypes = IMAGES,
    shift: int = 0,
    start: int = 0,
    threads: int = 1,
) -> Feed:
    """Feed a training loop, endlessly, from step `start` on.

    Args:
        source: the training samples.
        order: which samples a step takes.
        shardings: of the keys that are read and of `id`.
        shapes: of keys that are laid out with padding behind each sample.
        dtypes: the keys that are read of a sample, each with its dtype.
        shift: largest random shift of an `image`, pixels.
        start: steps already done; the feed goes on as if it had given their batches.
        threads: threads that prepare batches.
    """
    recipe = TrainRecipe(source=source, order=order, shift=shift, dtypes=dtypes)
    return Feed(
        recipe,
        batch=order.batch,
        shardings=shardings,
        shapes=shapes,
        start=start,
        threads=threads,
    )


def eval_feed(
    source: Source,
    batch: int,
    shardings: Mapping[str, NamedSharding],
    *,
    shapes: Shapes = NONE_LARGER,
    dtypes: Dtypes = IMAGES,
    threads: int = 1,
) -> Feed:
    """Feed an exact evaluation: each sample once with weight 1, padding with weight 0.

    Args:
        source: the samples.
        batch: samples a step, over all devices together.
        shardings: of the keys that are read, of `id` and of `weight`.
        shapes: of keys that are laid out with padding behind each sample.
        dtypes: the keys that are read of a sample, each with its dtype.
        threads: threads that prepare batches.
    """
    recipe = EvalRecipe(source=source, batch=batch, dtypes=dtypes)
    return Feed(
        recipe,
        batch=batch,
        shardings=shardings,
        shapes=shapes,
        stop=recipe.steps,
        threads=threads,
    )
