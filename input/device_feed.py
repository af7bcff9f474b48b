"""Device feed: batches put on the devices before the step asks for them.

A recipe says what is in the batch of a step, for the rows this host needs; the feed
runs it ahead of time in grain's read threads and places the pieces on the devices.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Thread, current_thread
from types import MappingProxyType
from typing import Any, Final, Self
from weakref import finalize

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from jaxdist.input.augmentation import Augmentation, pixel_keys
from jaxdist.input.batch_assembly import (
    IMAGE_DTYPES,
    Batch,
    BatchAssembler,
    Dtypes,
    EvalBatchAssembler,
    Rows,
    TrainBatchAssembler,
)
from jaxdist.input.loader_state import LoaderState, make_loader_state
from jaxdist.input.local_shuffle.setup import Keep, SampleStoreRuntime, check_no_workers
from jaxdist.input.order import SampleOrder
from jaxdist.input.prefetch import Workers, prefetch_batches
from jaxdist.input.sample_validation import SampleSpec, check_source
from jaxdist.input.slabs import Starts, local_slabs
from jaxdist.input.sources import SlabSource, Source, source_fingerprint

Index = tuple[slice, ...]
PaddedShapes = Mapping[str, jax.ShapeDtypeStruct]

NO_PADDED_SHAPES: Final[PaddedShapes] = MappingProxyType({})
"""Shapes of a batch whose arrays are the samples' own."""
NO_AUGMENTATION: Final = Augmentation()
"""Images as they are."""


@dataclass(frozen=True, kw_only=True)
class BatchGeometry:
    """What the arrays that were read do not say of those on the devices."""

    shapes: PaddedShapes = field(default_factory=dict)
    """Global shapes of keys that may be larger than the samples' own, zeros behind."""
    starts: Starts = field(default_factory=dict)
    """Where the part that was read begins in each sample, of keys of which one was."""
    sample_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of a sample's own arrays, of the same keys."""


WHOLE_SAMPLES: Final = BatchGeometry()
"""Batches whose arrays are the samples' own, read whole."""


def local_rows(shardings: Iterable[NamedSharding], batch: int) -> Rows:
    """Name the rows of a global batch of which this host's devices hold any piece.

    Returns:
        int64, sorted, each row once.
    """
    pieces: list[Index] = []
    for sharding in shardings:
        # Only the first dim matters here: other dims are cut out of rows that are held.
        by_row = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
        held = by_row.addressable_devices_indices_map((batch,)).values()
        pieces += [piece for piece in held if piece is not None]
    return covered_rows(pieces, batch)


def covered_rows(pieces: Iterable[Index], batch: int) -> Rows:
    """Gather the rows that pieces of a batch cover: sorted, each row once.

    >>> covered_rows([(slice(4, 6),), (slice(0, 2),), (slice(4, 6),)], 8).tolist()
    [0, 1, 4, 5]
    """
    # As a set: devices that hold copies name the same rows.
    ranges = {piece[0].indices(batch) for piece in pieces}
    return np.unique(np.concatenate([np.arange(*bounds) for bounds in ranges]))


def device_put_batch(
    local: Mapping[str, NDArray[Any]],
    rows: Rows,
    batch: int,
    shardings: Mapping[str, NamedSharding],
    geometry: BatchGeometry = WHOLE_SAMPLES,
) -> dict[str, jax.Array]:
    """Put this host's rows of a batch on its devices, without asking other hosts.

    Args:
        local: arrays of those rows, [rows, ...], whole or parts.
        rows: which rows of the global batch they are, sorted.
        batch: rows of the global batch.
        shardings: how each key lies on the devices.
        geometry: shapes of the global arrays, and where parts begin.

    Returns:
        Global arrays [batch, ...].
    """

    def lay(name: str, array: NDArray[Any]) -> jax.Array:
        own = batch, *array.shape[1:]
        shape = geometry.shapes[name].shape if name in geometry.shapes else own

        def piece(index: Index | None) -> NDArray[Any]:
            # The rows of a device are contiguous in the global batch, and so are they
            # among this host's sorted rows.
            held = index or ()
            first, last, _ = held[0].indices(batch)
            begin = int(np.searchsorted(rows, first))
            bounds = [i.indices(n)[:2] for i, n in zip(held[1:], shape[1:])]
            begins = geometry.starts.get(name, (0,) * len(bounds))
            cut = (slice(a - at, b - at) for (a, b), at in zip(bounds, begins))
            part = array[(slice(begin, begin + last - first), *cut)]
            # Where the layout pads dims to divide them, the samples end early.
            wanted = [last - first, *(b - a for a, b in bounds)]
            behind = [(0, n - have) for n, have in zip(wanted, part.shape)]
            return np.pad(part, behind) if any(n for _, n in behind) else part

        # Called for the devices of this process only: no host needs the whole batch.
        return jax.make_array_from_callback(shape, shardings[name], piece)

    return {name: lay(name, array) for name, array in local.items()}


# A feed without an end has one all the same: steps are a range of numbers.
_UNBOUNDED: Final = 2**62


class Feed:
    """An iterator over batches as global `jax.Array`s, prepared ahead of time.

    Close it, or use it in a `with` statement: it holds threads.

    Args:
        assembler: what is in the batch of a step.
        batch: samples a step, over all devices together.
        shardings: how each key of the batch lies on the devices.
        geometry: shapes of the global arrays, and where parts begin.
        start: first step to give.
        stop: the step at which the feed ends.
        threads: threads that prepare batches, or `Workers`.
        store_runtime: samples that this process keeps for itself; closed with the feed.
        state_at: says where a loop is in its data that has done so many steps; none: it
            has no state to save.
    """

    def __init__(
        self,
        assembler: BatchAssembler,
        *,
        batch: int,
        shardings: Mapping[str, NamedSharding],
        geometry: BatchGeometry = WHOLE_SAMPLES,
        start: int = 0,
        stop: int = _UNBOUNDED,
        threads: int | Workers = 1,
        store_runtime: SampleStoreRuntime | None = None,
        state_at: Callable[[int], LoaderState] | None = None,
    ) -> None:
        # Threads that have made a batch are noted, to be waited for at the end.
        rows, seen = local_rows(shardings.values(), batch), set[Thread]()

        # Nothing here holds the feed itself: one that nobody holds is closed.
        def placed(local: Batch) -> dict[str, jax.Array]:
            return device_put_batch(local, rows, batch, shardings, geometry)

        self.store_runtime, self._state_at = store_runtime, state_at
        self.step = start
        """Steps that are done: this many batches of the run were given."""
        # Placing runs in the read threads too: the copy to the device overlaps the
        # step.
        batches = prefetch_batches(
            assembler,
            rows,
            placed,
            lambda: seen.add(current_thread()),
            start=start,
            stop=stop,
            workers=threads,
        )
        # A list, which the finalizer can empty without holding the feed.
        self._open_batches = [batches]
        """Empty when the feed is closed."""
        # Runs when the feed is closed, is collected, or at the exit of the program,
        # whichever is first, and once only.
        self._finalizer = finalize(
            self, _close_batches, self._open_batches, seen, store_runtime
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        if not self._open_batches:
            raise ValueError("this feed is closed")
        batch: dict[str, jax.Array] = next(self._open_batches[0])
        # Counted when it is handed out, not when it is made: batches that wait here are
        # made again after a resume.
        self.step += 1
        return batch

    def state(self) -> LoaderState:
        """Return where the loop is, for its checkpoint: JSON of at most 512 bytes.

        The same on every process, and a function of the batches that were given, not
        of those that are made ahead. `loader(..., start=saved)` goes on from it.

        Raises:
            BadInput: a source without a fingerprint.
            ValueError: a feed that has no state: an evaluation is done from the start.
        """
        if self._state_at is None:
            raise ValueError("this feed has no state: it is read from the start")
        return self._state_at(self.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End threads and processes and wait for them; closing twice does no harm."""
        self._finalizer()


def _close_batches(
    batches: list[Any], threads: set[Thread], kept: SampleStoreRuntime | None
) -> None:
    """End what makes batches; also where a feed is left open, when its program ends.

    grain's iterators that outlive this would complain as Python ends.
    """
    while batches:
        batches.pop().close()
    # grain tells its threads to end but does not wait for the batch in the making.
    for thread in threads - {current_thread()}:
        thread.join()
    # Last: no thread reads the store any more.
    if kept is not None:
        kept.close()


def train_feed(
    source: Source,
    order: SampleOrder,
    shardings: Mapping[str, NamedSharding],
    *,
    shapes: PaddedShapes = NO_PADDED_SHAPES,
    dtypes: Dtypes | SampleSpec = IMAGE_DTYPES,
    augmentation: Augmentation = NO_AUGMENTATION,
    start: int = 0,
    threads: int | Workers = 1,
    sample_store: Keep | None = None,
) -> Feed:
    """Feed a training loop, endlessly, from step `start` on.

    Args:
        source: the training samples.
        order: which samples a step takes.
        shardings: of the keys that are read and of `id`.
        shapes: of keys that are laid out with padding behind each sample.
        dtypes: the keys that are read of a sample, each with its dtype; or a
            `SampleSpec`, which says what they may hold as well.
        augmentation: how images are varied.
        start: steps already done; the feed goes on as if it had given their batches.
        threads: threads that prepare batches, or `Workers`.
        sample_store: how this host keeps the samples of its partitions; none: it reads
            them where the source is.

    Raises:
        BadInput: samples that cannot be kept.
    """
    spec = dtypes if isinstance(dtypes, SampleSpec) else SampleSpec(dtypes=dtypes)
    source = check_source(source)

    def read(samples: Source) -> BatchAssembler:
        return TrainBatchAssembler(
            source=samples,
            order=order,
            augmentation=augmentation,
            image_start=geometry.starts.get("image", ()),
            whole_image=geometry.sample_shapes.get("image", ()),
            dtypes=spec.dtypes,
            checks=replace(spec, start=start).of(samples),
        )

    kept, local, geometry = None, source, BatchGeometry(shapes=shapes)
    if sample_store is None:
        local, geometry = _local_part(
            source, order.batch, shardings, shapes, augmentation
        )
    else:
        # A store is in this process; it is filled before the first batch is made.
        check_no_workers(threads)
        rows = local_rows(shardings.values(), order.batch)
        kept = SampleStoreRuntime(source, order, rows, sample_store, start)
    return Feed(
        read(local) if kept is None else kept.assembler(read),
        batch=order.batch,
        shardings=shardings,
        geometry=geometry,
        start=start,
        threads=threads,
        store_runtime=kept,
        state_at=lambda step: make_loader_state(
            order, source_fingerprint(source), step
        ),
    )


def eval_feed(
    source: Source,
    batch: int,
    shardings: Mapping[str, NamedSharding],
    *,
    shapes: PaddedShapes = NO_PADDED_SHAPES,
    dtypes: Dtypes | SampleSpec = IMAGE_DTYPES,
    threads: int = 1,
    crop: Augmentation = NO_AUGMENTATION,
) -> Feed:
    """Feed an exact evaluation: each sample once with weight 1, padding with weight 0.

    Args:
        source: the samples.
        batch: samples a step, over all devices together.
        shardings: of the keys that are read, of `id` and of `weight`.
        shapes: of keys that are laid out with padding behind each sample.
        dtypes: the keys that are read of a sample, each with its dtype; or a
            `SampleSpec`, which says what they may hold as well.
        threads: threads that prepare batches.
        crop: of which size the middle of an image is seen, if not the whole.
    """
    spec = dtypes if isinstance(dtypes, SampleSpec) else SampleSpec(dtypes=dtypes)
    source = check_source(source)
    local, geometry = _local_part(source, batch, shardings, shapes, crop)
    recipe = EvalBatchAssembler(
        source=local,
        batch=batch,
        dtypes=spec.dtypes,
        checks=spec.of(local),
        crop=crop,
    )
    return Feed(
        recipe,
        batch=batch,
        shardings=shardings,
        geometry=geometry,
        stop=recipe.steps,
        threads=threads,
    )


def _local_part(
    source: Source,
    batch: int,
    shardings: Mapping[str, NamedSharding],
    shapes: PaddedShapes,
    augmentation: Augmentation,
) -> tuple[Source, BatchGeometry]:
    """Cut a source to what this process's devices hold of each sample, if it can be.

    Args:
        source: the samples.
        batch: samples a step, over all devices together.
        shardings: how each key of a batch lies on the devices.
        shapes: of keys that are laid out with padding behind each sample.
        augmentation: how images are moved.

    Returns:
        The source of the parts, and what they do not say of whole batches.
    """
    # Where a pixel of a block comes from may be anywhere, unless it is near.
    near = replace(augmentation, shift=0, noise=0.0).moves is False
    if not isinstance(source, SlabSource) or not near:
        return source, BatchGeometry(shapes=shapes)
    like = {key: array for key, array in source.template.items() if key in shardings}
    own = {key: array.shape[1:] for key, array in like.items()}
    # A part does not say how large the whole is.
    shapes = {
        **{k: jax.ShapeDtypeStruct((batch, *own[k]), x.dtype) for k, x in like.items()},
        **shapes,
    }
    whole = {key: shapes[key].shape for key in own}
    # What a shift moves into a block comes from beside it.
    halos = {}
    if far := augmentation.shift:
        dims = len(own["image"]) - 1
        halos = {
            key: (*(far,) * dims, *(0,) * (len(own[key]) - dims))
            for key in pixel_keys(own)
        }
    slabs = local_slabs(shardings, whole, own, halos)
    # Arrays that no step reads are left out, too.
    whole_slabs = {k: tuple(map(slice, (0,) * len(s), s)) for k, s in own.items()}
    if slabs == whole_slabs and len(slabs) == len(source.template):
        return source, BatchGeometry(shapes=shapes)
    starts = {key: tuple(part.start for part in slab) for key, slab in slabs.items()}
    return source.slab(slabs), BatchGeometry(
        shapes=shapes, starts=starts, sample_shapes=own
    )
