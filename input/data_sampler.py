"""Sampler: the order of a run as lists of ids, for loaders that are not ours.

DataLoader(dataset, batch_sampler=sampler(len(dataset), global_batch=256, ...))
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.shuffle import Global, ShuffleConfig
from jaxdist.input.loader_state import (
    LoaderState,
    ResumePoint,
    make_loader_state,
    resume_step,
)
from jaxdist.input.local_shuffle.partial import order_from_config
from jaxdist.input.order import SampleOrder

_GLOBAL_SHUFFLE: Final = Global()


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Yields the ids of a rank's part of each step, epoch after epoch of `len` steps.

    Each pass goes on where the last one ended: `start` steps, then `len` more. Iterate
    it in one process; workers of a loader get the lists from there.
    """

    order: SampleOrder
    """Which samples a step takes."""
    rank: int = 0
    """This process."""
    world_size: int = 1
    """Processes that share a batch."""
    start: int = 0
    """Steps that are already done."""
    fingerprint: str = ""
    """Fingerprint of the samples; empty: nobody knows when they change."""

    def __len__(self) -> int:
        """Count the steps of an epoch."""
        return self.order.steps(1)

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.start, self.start + len(self)):
            yield self.ids(step)

    def ids(self, step: int) -> list[int]:
        """Return this rank's samples of a step (from 0)."""
        # Ranks take contiguous rows, as the hosts of `loader` do on one mesh axis.
        own = self.order.batch // self.world_size
        mine: list[int] = self.order.ids(step)[self.rank * own :][:own].tolist()
        return mine

    def advance(self, steps: int) -> "Sampler":
        """Return the same, so many steps later: for the next epoch, or a resume."""
        return replace(self, start=self.start + steps)

    def state(self, step: int) -> LoaderState:
        """Describe a loop that has done so many steps: JSON of at most 512 bytes.

        The loop counts its steps: a DataLoader asks for batches ahead of it.
        """
        return make_loader_state(self.order, self.fingerprint, step)


def sampler(
    samples: int,
    *,
    global_batch: int,
    shuffle: ShuffleConfig = _GLOBAL_SHUFFLE,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
    start: ResumePoint = 0,
    data: str = "",
) -> Sampler:
    """Make a batch sampler of the order that `jaxdist.input.loader` has.

    Args:
        samples: in the data set.
        global_batch: samples a step, over all ranks together.
        shuffle: `Global()`, `Local()` or `Partial(exchange_fraction=0.1)`.
        rank: this process.
        world: processes that share a batch.
        seed: another seed is another order, in every epoch.
        start: steps that are already done, or the state of the loop that did them.
        data: fingerprint of the samples, any text that changes with them.

    Raises:
        BadInput: a batch that does not divide over ranks or partitions, a rank that is
            not one of them, or the state of a loop over other samples or in another
            order.

    >>> both = [sampler(10, global_batch=4, rank=r, world=2) for r in (0, 1)]
    >>> [len(own.ids(0)) for own in both], len(both[0])
    ([2, 2], 3)
    """
    if global_batch % world or not 0 <= rank < world:
        raise BadInput(
            "the batch does not divide over the ranks",
            rule="global_batch is a multiple of world, and rank is below world",
            values=f"global_batch = {global_batch}, rank = {rank}, world = {world}",
            remedy=f"global_batch={-(-global_batch // world) * world}",
        )
    order = order_from_config(
        shuffle, num_samples=samples, batch=global_batch, seed=seed
    )
    # Checked before the first batch: a state of another order would go on unnoticed.
    step = resume_step(start, order, lambda: data)
    return Sampler(
        order=order, rank=rank, world_size=world, start=step, fingerprint=data
    )
