"""Errors of rows that are left out of a fit: what its predictions are off by elsewhere.

Constants are fitted again to a part of the rows, and the others are predicted. Which
part is left out says what kind of row the errors are of: rows like those fitted, other
networks, other numbers of devices, other layouts.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.calibrate.measured_rows import ConstantValues, MeasuredRow
from jaxdist.core.intervals import ErrorGroup, Shift

_FOLDS: Final = 5
"""Parts of cross-validation."""
_SINGLE_ROWS: Final = 20
"""Rows up to which each is left out by itself."""
_SCALES: Final = 2
"""Numbers of devices at which rows are cut into fitted and predicted ones, at most."""
_SEEN_SHARE: Final = 0.02
"""Share of a prediction from which a term is there: what is below does not show beside
the errors of the best rows, 1.6 to 1.8 %."""

Refit = Callable[[Sequence[MeasuredRow]], ConstantValues]
"""Fits the constants to some rows."""


def seen_terms(row: MeasuredRow, values: ConstantValues) -> frozenset[str]:
    """Return the terms that a row's prediction has to speak of."""
    if row.predict_terms is None:
        return frozenset()
    terms = row.predict_terms(values)
    total = sum(terms.values())
    return frozenset(name for name, x in terms.items() if x > _SEEN_SHARE * total)


def deciding_term(row: MeasuredRow, values: ConstantValues) -> str:
    """Return the longest term of a row's prediction; empty where it has none."""
    if row.predict_terms is None:
        return ""
    terms = row.predict_terms(values)
    return max(terms, key=lambda name: terms[name], default="")


def device_octaves(devices: int, fitted: Collection[int]) -> int:
    """Return the doublings from a number of devices to the range of those fitted.

    >>> device_octaves(64, (2, 8)), device_octaves(8, (2, 8)), device_octaves(1, (2, 8))
    (3, 0, 1)
    """
    # Between the least and the most a model interpolates, and only beyond them it errs
    # by the logarithm of the distance.
    least, most = min(fitted), max(fitted)
    return math.ceil(max(math.log2(devices / most), math.log2(least / devices), 0.0))


@dataclass(frozen=True, kw_only=True)
class FittedScope:
    """What the rows of a fit were of."""

    networks: tuple[str, ...] = ()
    """Their networks."""
    groups: tuple[str, ...] = ()
    """Their groups."""
    terms: tuple[str, ...] = ()
    """Terms that their predictions have to speak of."""
    devices: tuple[int, ...] = ()
    """The least and the most devices."""

    def shifts(self, row: MeasuredRow, values: ConstantValues) -> list[Shift]:
        """Return in what a row differs from them."""
        if not self.networks:
            return ["nothing"]
        found: list[Shift] = []
        if row.network not in self.networks:
            # Where all fitted networks have one width, say, none was held out by it.
            known = [set(own) for own in zip(*(x.split() for x in self.networks))]
            unseen = zip(known, row.network.split())
            alike = any(len(own) == 1 and word not in own for own, word in unseen)
            found.append("nothing" if alike else "network")
        if device_octaves(row.devices, self.devices):
            found.append("scale")
        # A group is a split in some formats, and the network with it in others.
        is_new = row.group not in self.groups and row.network in self.networks
        if is_new or not seen_terms(row, values) <= {*self.terms}:
            found.append("layout")
        return found or ["like"]


def fitted_scope(rows: Sequence[MeasuredRow], values: ConstantValues) -> FittedScope:
    """Return what the rows of a fit are of."""
    devices = [row.devices for row in rows]
    return FittedScope(
        networks=tuple(sorted({row.network for row in rows})),
        groups=tuple(sorted({row.group for row in rows})),
        terms=tuple(sorted({t for row in rows for t in seen_terms(row, values)})),
        devices=(min(devices), max(devices)),
    )


def held_out_errors(
    rows: Sequence[MeasuredRow],
    refit: Refit,
    *,
    initial: ConstantValues,
    values: ConstantValues,
    min_rows: int,
    others: Sequence[MeasuredRow] = (),
) -> tuple[ErrorGroup, ...]:
    """Return the errors of rows where they are left out of the fit, by kind of row.

    Args:
        rows: rows of a fit.
        refit: fits the constants to a part of them.
        initial: constants before any fit.
        values: constants fitted to all rows.
        min_rows: least rows of a fit.
        others: rows that were too noisy to be fitted; others may be as noisy.
    """
    found: Mapping[tuple[Shift, str, str, int], list[float]] = defaultdict(list)
    terms = {row.key: deciding_term(row, values) for row in (*rows, *others)}

    def add(
        shift: Shift,
        out: Sequence[MeasuredRow],
        known: ConstantValues,
        fitted: Sequence[MeasuredRow] = (),
    ) -> None:
        devices = [row.devices for row in fitted]
        for row in out:
            octaves = device_octaves(row.devices, devices) if shift == "scale" else 0
            place = shift, row.quantity, terms[row.key], octaves
            found[place].append(math.log(row.measured / row.predict(known)))

    def leave_out(shift: Shift, parts: Sequence[Collection[int]]) -> None:
        for part in parts:
            out = [row for k, row in enumerate(rows) if k in part]
            fitted = [row for k, row in enumerate(rows) if k not in part]
            if out and len(fitted) >= min_rows:
                add(shift, out, refit(fitted), fitted)

    # Without a fit every row is held out.
    add("nothing", [*rows, *others], initial)
    add("like", others, values)
    # Sorted by digest, so that neither the order of a file nor chance decides.
    order = sorted(range(len(rows)), key=lambda k: rows[k].key)
    count = len(rows) if len(rows) <= _SINGLE_ROWS else _FOLDS
    leave_out("like", [{*order[k::count]} for k in range(count)])
    leave_out("network", _parts([row.network for row in rows], _FOLDS))
    # A group tells layouts apart; so does a term that only some rows have.
    groups = _parts([row.group for row in rows], _FOLDS)
    shown = [seen_terms(row, values) for row in rows]
    # Terms that all rows have cannot be held out: no row would be left to fit.
    partial = {t for own in shown for t in own if any(t not in x for x in shown)}
    without = [
        {k for k, own in enumerate(shown) if term in own} for term in sorted(partial)
    ]
    leave_out("layout", [*groups, *without])
    sizes = sorted({row.devices for row in rows})
    # The smallest size has nothing below it to be fitted to.
    cuts = sizes[1:][:: max(1, len(sizes[1:]) // _SCALES)][:_SCALES]
    above = [{k for k, row in enumerate(rows) if row.devices >= cut} for cut in cuts]
    leave_out("scale", [*above, *({*range(len(rows))} - part for part in above)])
    return tuple(
        ErrorGroup(
            shift=shift,
            quantity=quantity,
            term=term,
            octaves=octaves,
            # Only their distribution is used, so they are sorted, and files differ by
            # no noise.
            log_ratios=tuple(round(x, 5) for x in sorted(ratios)),
        )
        for (shift, quantity, term, octaves), ratios in found.items()
    )


def _parts(names: Sequence[str], most: int) -> list[set[int]]:
    """Return the places of each name, or of neighbours where there are many names."""
    order = sorted(set(names), key=_numbers_first)
    if len(order) < 2:
        return []
    # Neighbours leave together: a network between two that are fitted is no new one.
    count = min(most, len(order))
    edges = [k * len(order) // count for k in range(count + 1)]
    chosen = [{*order[a:b]} for a, b in itertools.pairwise(edges)]
    return [{k for k, name in enumerate(names) if name in own} for own in chosen]


def _numbers_first(name: str) -> tuple[tuple[float, str], ...]:
    """Order names by the numbers in them."""
    found = []
    for word in name.split():
        try:
            found.append((float(word), ""))
        except ValueError:
            found.append((math.inf, word))
    return tuple(found)
