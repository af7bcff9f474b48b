"""The traffic ledger: what a plan's step must move, collective by collective."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import jax

from jaxdist.collectives.hlo import wire_bytes
from jaxdist.core.plan import Plan
from jaxdist.partition import data, spatial
from jaxdist.partition.traffic import Traffic
from jaxdist.profile.calls import Call

Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All traffic of one training step under a plan."""

    plan: Plan
    """The plan it was written for."""
    rows: tuple[Traffic, ...]
    """One row a layer, direction and kind."""

    def by_axes(self) -> dict[Key, int]:
        """Payload bytes on a device by (kind, axes)."""
        total: Counter[Key] = Counter()
        for row in self.rows:
            total[row.kind, row.axes] += row.payload
        return {key: size for key, size in total.items() if size}

    def by_term(self) -> dict[str, int]:
        """Bytes a device sends by `what, axes`, largest first: a report's words."""
        total: Counter[str] = Counter()
        for row in self.rows:
            group = self.plan.mesh.size(*row.axes)
            name = f"{row.what}, {' x '.join(row.axes)}"
            total[name] += wire_bytes(row.kind, row.payload, group)
        return dict(total.most_common())


def write_ledger(plan: Plan, calls: Iterable[Call], params: object) -> Ledger:
    """Write the ledger of a plan's training step.

    Args:
        plan: the layout.
        calls: the network's layer calls on the global batch.
        params: tree of parameters, arrays or shapes.
    """
    calls = tuple(calls)
    leaves = jax.tree.leaves(params)
    rows = (
        *data.gradients(plan, leaves),
        *data.statistics(plan, calls),
        *spatial.halos(plan, calls),
        *spatial.means(plan, calls),
    )
    return Ledger(plan=plan, rows=tuple(row for row in rows if row.payload))
