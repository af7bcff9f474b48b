"""Mixture: several sources as one, each with its share of every epoch.

An epoch of a mixture has a fixed number of samples, of which source s gets a part by
its weight. Draw d of source s, counted over all epochs, is

    sample  pi(s, d // N_s)(d mod N_s)     of the N_s that it has,

where pi is a permutation keyed by seed, source and pass: a source that is smaller than
its part is gone through several times an epoch, a larger one over several epochs, and
in both each of its samples comes once a pass.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.keyed_permutation import hash64, permute
from jaxdist.input.sample_validation import check_source
from jaxdist.input.sources import (
    Arrays,
    EpochVaryingSource,
    SampleIds,
    Source,
    sample_template,
)

_KEY_DOMAIN: Final = 0x313C5
"""Marks the keys of mixtures."""


class Mixture:
    """A source of several, in parts by weight; its samples differ between epochs.

    Args:
        sources: each with a weight above 0, by name; all have the same keys.
        samples: in an epoch of the mixture; none: as many as all sources together.

    Raises:
        BadInput: no source, a weight that is not above 0 or not finite, no samples, a
            source without a sample in an epoch, or sources of other keys.

    >>> from jaxdist.input.sources import ArraySource
    >>> few, many = (ArraySource({"x": np.full(n, n)}) for n in (10, 90))
    >>> mixed = Mixture({"few": (few, 1), "many": (many, 1)})
    >>> sorted(mixed.get(np.arange(100))["x"].tolist()).count(10)
    50
    """

    def __init__(
        self, sources: Mapping[str, tuple[Source, float]], samples: int | None = None
    ) -> None:
        wrong = [
            name for name, (_, weight) in sources.items() if not 0 < weight < math.inf
        ]
        if wrong or not sources:
            raise BadInput(
                "these sources are no mixture",
                rule="there is at least one source, and every weight is above 0 and "
                "finite",
                values=f"weights of {', '.join(wrong)}" if wrong else "no source",
                remedy='Mixture({"one": (source, 0.7), "other": (source, 0.3)})',
            )
        if samples is not None and samples < 1:
            raise BadInput(
                "an epoch of this mixture has no samples",
                rule="samples is at least 1, or none for as many as all sources have",
                values=f"samples = {samples}",
                remedy="samples=None",
            )
        sources = {
            name: (check_source(source), weight)
            for name, (source, weight) in sources.items()
        }
        keys = {
            name: sorted(sample_template(source))
            for name, (source, _) in sources.items()
        }
        first = next(iter(keys))
        other = next((name for name in keys if keys[name] != keys[first]), None)
        if other is not None:
            raise BadInput(
                f"{first} and {other} have other keys",
                rule="all sources of a mixture have the same keys",
                values=f"{first}: {', '.join(keys[first])}; {other}: "
                f"{', '.join(keys[other])}",
                remedy="a source that renames or leaves out keys",
            )

        self._names = tuple(sources)
        self._sources = [source for source, _ in sources.values()]
        if samples is None:
            samples = sum(len(source) for source in self._sources)
        self._sample_counts = largest_remainder_split(
            [weight for _, weight in sources.values()], samples
        )
        if 0 in self._sample_counts:
            name = self._names[self._sample_counts.index(0)]
            raise BadInput(
                f"{name} has no sample in an epoch of the mixture",
                rule="samples x weight / all weights rounds to at least 1",
                values=f"samples = {samples}, parts = {self._sample_counts}",
                remedy="more samples, or a larger weight",
            )
        self._bounds = np.cumsum([0, *self._sample_counts])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    @property
    def samples_per_source(self) -> dict[str, int]:
        """Samples of each source in an epoch."""
        return dict(zip(self._names, self._sample_counts, strict=True))

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples as they are in the first epoch."""
        # For evaluation, which has no epochs.
        return self.vary(ids, np.zeros_like(ids), 0)

    def vary(self, ids: SampleIds, epochs: SampleIds, seed: int) -> Arrays:
        """Read samples as they are in their epochs, a function of (seed, epoch, id)."""
        # Ids are in the order of the sources: those of one are a range.
        owner = np.searchsorted(self._bounds, ids, side="right") - 1
        found: dict[str, NDArray[Any]] = {}
        for number in np.unique(owner).tolist():
            rows = np.nonzero(owner == number)[0]
            first, part = self._bounds[number], self._sample_counts[number]
            # Draws of one source, counted over all epochs; a pass takes each of its
            # samples once, whether it is shorter or longer than an epoch.
            draws = epochs[rows].astype(np.int64) * part + ids[rows] - first
            source = self._sources[number]
            passes, places = np.divmod(draws, len(source))
            keys = hash64(seed, _KEY_DOMAIN, number, passes)
            own = permute(keys, places, len(source))
            if isinstance(source, EpochVaryingSource):
                arrays = source.vary(own, passes, seed)
            else:
                arrays = source.get(own)
            for name, array in arrays.items():
                shape = (len(ids), *array.shape[1:])
                found.setdefault(name, np.empty(shape, array.dtype))[rows] = array
        return found

    @property
    def fingerprint(self) -> str:
        """Name the sources, their samples and their parts."""
        each = zip(self._names, self._sources, self._sample_counts, strict=True)
        return "; ".join(f"{n} {s.fingerprint} {part}" for n, s, part in each)


def largest_remainder_split(weights: Sequence[float], samples: int) -> list[int]:
    """Divide samples by weights, by the largest remainder method (Hamilton).

    >>> largest_remainder_split([1, 1, 1], 10), largest_remainder_split([0.7, 0.3], 5)
    ([4, 3, 3], [4, 1])
    """
    exact = [samples * weight / sum(weights) for weight in weights]
    parts = [int(x) for x in exact]
    # Ties go to the earlier source, so that the parts are the same everywhere.
    # Parts are rounded down, so the furthest below its exact one is first.
    by_rest = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_rest[: samples - sum(parts)]:
        parts[i] += 1
    return parts
