"""Loader: batches for any JAX training loop, in one call."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.shuffle import Global, ShuffleConfig
from jaxdist.input.device_feed import Feed, train_feed
from jaxdist.input.loader_state import ResumePoint, resume_step
from jaxdist.input.local_shuffle.partial import order_from_config
from jaxdist.input.local_shuffle.setup import Keep
from jaxdist.input.order import SampleOrder, SourceOrder
from jaxdist.input.prefetch import Workers
from jaxdist.input.sample_validation import check_source
from jaxdist.input.sources import (
    ArraySource,
    Source,
    sample_template,
    source_fingerprint,
)

_GLOBAL_SHUFFLE: Final = Global()


def loader(
    source: Source | Mapping[str, Any],
    *,
    global_batch: int,
    shuffle: ShuffleConfig | None = _GLOBAL_SHUFFLE,
    mesh: Mesh | None = None,
    over: str | Sequence[str] | None = None,
    seed: int = 0,
    start: ResumePoint = 0,
    threads: int | Workers = 1,
    keep: Keep | None = None,
) -> Feed:
    """Feed a training loop: an endless iterator over global arrays on the devices.

    Each batch is a dict of what the source has, and `id`; every process calls this
    alike and gets its part. A loop that stopped resumes from `start`, on any number of
    processes. Close it, or use it in a `with` statement: it holds threads.

    Args:
        source: `len(source)` and `source.get(ids) -> dict of arrays [n, ...]`; or a
            dict of arrays [N, ...].
        global_batch: samples a step, over all devices together.
        shuffle: `Global()`, `Local()` or `Partial(exchange_fraction=0.1)`; None: each
            epoch in the order of the source.
        mesh: devices; none: the first one. Its axes split batches without a word in
            the types of arrays, unless `jax.set_mesh` has made it the mesh of now.
        over: axes of the mesh that split samples; none: the mesh's first axis.
        seed: another seed is another order, in every epoch.
        start: steps that are already done; better what `state()` of the loop that
            stopped returned, which other samples or another order do not fit.
        threads: threads that prepare batches, or `Workers(2)`, processes that do.
        keep: how this host keeps the samples of its partitions; none: it reads them
            where the source is.

    Raises:
        BadInput: a batch that is larger than the source or does not divide over axes
            or partitions, an axis that the mesh does not have, or the state of a loop
            over other samples or in another order.

    >>> with loader({"x": np.arange(10.0)}, global_batch=4) as batches:
    ...     next(batches)["x"].shape
    (4,)
    """
    source = check_source(
        ArraySource(source) if isinstance(source, Mapping) else source
    )
    mesh = mesh or Mesh(np.asarray(jax.devices()[:1]), ("data",))
    mesh = automatic_mesh(mesh)
    # A batch is split along the first axis: data parallel, as meshes are written.
    axes = (mesh.axis_names[0],) if over is None else over
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    unknown = [axis for axis in axes if axis not in mesh.shape]
    if unknown:
        raise BadInput(
            f"the mesh has no axis {unknown[0]}",
            values=f"its axes are {', '.join(mesh.axis_names)}",
            remedy=f"over={mesh.axis_names[0]!r}",
        )
    shards = int(np.prod([mesh.shape[axis] for axis in axes]))
    if global_batch % shards or not global_batch:
        raise BadInput(
            "the batch does not divide over the mesh",
            rule="global_batch is a multiple of the devices along the axes of samples",
            values=f"global_batch = {global_batch}, {shards} along {' x '.join(axes)}",
            remedy=f"global_batch={max(-(-global_batch // shards), 1) * shards}",
        )
    if len(source) < global_batch:
        raise BadInput(
            "the source is smaller than a batch",
            rule="a step draws different samples",
            values=f"{len(source)} samples, global_batch = {global_batch}",
            remedy=f"global_batch={max(len(source) // shards, 1) * shards}",
        )

    samples = len(source)
    order: SampleOrder = (
        SourceOrder(num_samples=samples, batch=global_batch, seed=seed)
        if shuffle is None
        else order_from_config(
            shuffle, num_samples=samples, batch=global_batch, seed=seed
        )
    )
    # The fingerprint may read the whole source: it is asked for only to resume.
    step = resume_step(start, order, lambda: source_fingerprint(source))
    # A batch has the source's own dtypes; 64 bits only where jax has them.
    first = {
        key: array for key, array in sample_template(source).items() if key != "id"
    }
    dtypes = {
        key: jax.dtypes.canonicalize_dtype(array.dtype).name
        for key, array in first.items()
    }
    if texts := [key for key, x in first.items() if x.dtype.kind not in "biufc"]:
        raise BadInput(
            f"the source's {texts[0]} is no number",
            rule="what is put on devices are numbers",
            values=", ".join(f"{key}: {first[key].dtype}" for key in texts),
            remedy=f"a source without {', '.join(texts)}; `id` of a batch finds them",
        )
    rows = NamedSharding(mesh, PartitionSpec(axes))
    return train_feed(
        source,
        order,
        dict.fromkeys((*dtypes, "id"), rows),
        dtypes=dtypes,
        start=step,
        threads=threads,
        sample_store=keep,
    )


def automatic_mesh(mesh: Mesh) -> Mesh:
    """Return the same devices with axes that programs need not mention.

    `jax.make_mesh` makes axes that are a part of every array's type. A step that was
    written for one device says nothing of them, and is refused by jax: its gradients
    are products of two arrays that are split along the same axis.

    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> [each.axis_types[0].name for each in (mesh, automatic_mesh(mesh))]
    ['Explicit', 'Auto']
    """
    if jax.sharding.get_abstract_mesh() == mesh.abstract_mesh:
        return mesh
    return Mesh(mesh.devices, mesh.axis_names)
