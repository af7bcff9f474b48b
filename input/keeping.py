"""Keeping: a source of which this host keeps its own partitions, and exchanges some.

A batch reads what the host keeps. With each read that leaves, its place is given to the
sample that comes for it, which is fetched at once: Q b samples a step, spread evenly,
in the threads that read ahead of training. Whatever is missing, for any reason, is read
from where the data set is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.order import Order
from jaxdist.input.partial import PartialOrder
from jaxdist.input.recipes import Batch, Recipe, Rows
from jaxdist.input.shuffle import Numbers, hosts_of
from jaxdist.input.sources import Arrays, Source, Varied
from jaxdist.input.store import Store

_TOGETHER: Final = 1024
"""Samples that are read of the data set at once when a store is filled."""


class Fetch(Protocol):
    """Brings samples of other hosts, as many as it can."""

    def fetch(self, ids: Numbers, hosts: Numbers) -> Mapping[int, Arrays]:
        """Return what came, by id; `hosts` have them."""


@dataclass(kw_only=True)
class Counts:
    """What a host has read from where, in samples."""

    kept: int = 0
    """Of its own store."""
    filled: int = 0
    """Of the data set, to begin with."""
    exchanged: int = 0
    """That came for others that left."""
    origin: int = 0
    """Of these, read of the data set and not brought by peers."""
    strays: int = 0
    """Of the data set, because they were not in the store when they were needed."""


@dataclass(kw_only=True)
class Keeping:
    """A host's part of a source; is a `Source` of all of it.

    Args:
        origin: all samples.
        order: which are read when.
        host: this one.
        hosts: how many there are.
        store: where this host's samples are kept.
        peers: brings samples that come from other hosts; none: the origin has them.
        slack: steps for which a sample that left is still here, for peers that are
            behind.

    Raises:
        BadInput: hosts that cannot hold equally many partitions each, or samples that
            are not kept as they are read.
    """

    origin: Source
    order: PartialOrder
    host: int
    hosts: int
    store: Store
    peers: Fetch | None = None
    slack: int = 0
    counts: Counts = field(default_factory=Counts)
    _left: dict[int, int] = field(default_factory=dict, repr=False)
    """The step in which each sample left that is still here."""

    def __post_init__(self) -> None:
        check_hosts(self.order.shuffle.partitions, self.hosts)
        if isinstance(self.origin, Varied):
            raise BadInput(
                "these samples cannot be kept",
                rule="what is kept is the same in every epoch",
                values=f"{type(self.origin).__name__} reads others in each",
                remedy="leave them where they are: plan.shuffle.q alone",
            )

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def fingerprint(self) -> str:
        """That of all samples."""
        return self.origin.fingerprint

    @property
    def partitions(self) -> range:
        """The partitions that this host keeps."""
        each = self.order.shuffle.partitions // self.hosts
        return range(self.host * each, (self.host + 1) * each)

    def begin(self, step: int) -> None:
        """Keep what this host's partitions hold before a step, and nothing else."""
        wanted = self.order.held(step, self.partitions)
        self.store.drop(np.setdiff1d(self.store.held(), wanted).tolist())
        self._left.clear()
        gone = wanted[self.store.missing(wanted)]
        for ids in np.array_split(gone, -(-len(gone) // _TOGETHER) or 1):
            if len(ids):
                self.store.put(ids, self.origin.get(ids))
        self.counts.filled += len(gone)

    def get(self, ids: NDArray[np.integer[Any]]) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...]."""
        found, good = self.store.get(ids)
        self.counts.kept += int(good.sum())
        if good.all():
            return found
        self.counts.strays += int((~good).sum())
        fresh = self.origin.get(ids[~good])
        arrays = {key: np.array(array) for key, array in found.items()}
        for key, array in arrays.items():
            array[~good] = fresh[key]
        return arrays

    def exchange(self, step: int) -> None:
        """Give the places of what a step has read and what leaves to what comes."""
        gone, came, source = self.order.exchanged(step, self.partitions)
        self._left |= dict.fromkeys(gone.tolist(), step)
        for sample in came.tolist():  # it may be one that left just now
            self._left.pop(sample, None)
        missing = self.store.missing(came)
        brought = self._brought(came[missing], source[missing])
        late = [sample for sample, at in self._left.items() if at <= step - self.slack]
        self.store.drop(late)
        for sample in late:
            del self._left[sample]
        for ids, samples in brought:
            self.store.put(ids, samples)
            self.counts.exchanged += len(ids)

    def _brought(
        self, ids: Numbers, source: Numbers
    ) -> Iterator[tuple[Numbers, Arrays]]:
        """Yield samples that come, from peers as far as they have them."""
        each = self.order.shuffle.partitions // self.hosts
        found = self.peers.fetch(ids, source // each) if self.peers else {}
        for sample, arrays in found.items():
            one = {key: np.asarray(array)[None] for key, array in arrays.items()}
            yield np.array([sample]), one
        rest = np.array([i for i in ids.tolist() if i not in found], np.int64)
        self.counts.origin += len(rest)
        if len(rest):
            yield rest, self.origin.get(rest)


@dataclass(frozen=True, kw_only=True)
class KeptRecipe:
    """Batches of samples that a host keeps: read, then exchanged."""

    recipe: Recipe
    """Makes a batch; its source is `keeping`."""
    keeping: Keeping
    """This host's samples."""

    def __call__(self, step: int, rows: Rows) -> Batch:
        """Make a step's rows, and give up what leaves with them."""
        batch = self.recipe(step, rows)
        self.keeping.exchange(step)
        return batch


def open_keeping(
    source: Source, order: Order, *, host: int, hosts: int, folder: Path | None
) -> Keeping:
    """Make this host's part of a source, with a store that is large enough.

    Args:
        source: all samples.
        order: which are read when.
        host: this one.
        hosts: how many there are.
        folder: where samples are kept; none: in memory.

    Raises:
        BadInput: samples that are drawn from everywhere, or hosts that do not divide.
    """
    if not isinstance(order, PartialOrder):
        raise BadInput(
            "samples of all hosts would be kept on each",
            rule="a host keeps what stays with it: Local() or Partial(q=0.1)",
            values="shuffle = Global()",
            remedy="shuffle=Partial(q=0.1)",
        )
    check_hosts(order.shuffle.partitions, hosts)
    each = order.shuffle.partitions // hosts
    places = each * (order.shuffle.slots + 1) + 2 * order.batch // hosts
    own = None if folder is None else folder / f"host-{host}-of-{hosts}"
    store = Store(source.get(np.zeros(1, np.int64)), places, own)
    return Keeping(origin=source, order=order, host=host, hosts=hosts, store=store)


def check_hosts(partitions: int, hosts: int) -> None:
    """Refuse hosts that cannot hold equally many partitions each.

    Raises:
        BadInput: naming the numbers of hosts that can.
    """
    if partitions % hosts:
        works = ", ".join(map(str, hosts_of(partitions)))
        raise BadInput(
            "the partitions do not divide over the hosts",
            rule="each host keeps equally many partitions",
            values=f"plan.shuffle.partitions = {partitions}, {hosts} hosts",
            remedy=(
                f"{works} hosts",
                f"plan.shuffle.partitions={hosts}, or a multiple",
            ),
        )
