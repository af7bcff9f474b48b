"""Chains: every kind of collective is timed, among as many as a mesh may have."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxdist.calibrate import chains
from jaxdist.collectives.hlo import read_collectives


def mesh_of(count):
    devices = jax.devices()[:count]
    return jax.make_mesh((count,), ("data",), (AxisType.Auto,), devices=devices)


def test_every_kind_is_timed_in_groups_of_every_size(monkeypatch):
    monkeypatch.setattr(chains, "SIZES", (1 << 10, 1 << 18))
    found = chains.chained(mesh_of(4))
    assert {(one.kind, one.devices) for one in found} == {
        (kind, size) for kind in chains._KINDS for size in (2, 4)
    }
    for one in found:
        small, large = (timing.payload for timing in one.timings)
        whole = one.devices if one.kind == "reduce-scatter" else 1
        assert (small, large) == ((1 << 10) // whole, (1 << 18) // whole)
        assert all(timing.seconds > 0 for timing in one.timings)


@pytest.mark.parametrize("kind", list(chains._KINDS))
def test_a_chain_has_its_collectives_and_no_others(kind):
    """Neither folded into one nor left out; a tenth of the product's work is real."""
    from functools import partial

    from jax.sharding import PartitionSpec as P

    grouped = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("group",))
    for collective, count in ((chains._KINDS[kind], 3), (chains._alone, 0)):
        run = jax.shard_map(
            partial(chains._chain, collective, 3),
            mesh=grouped,
            in_specs=P(),
            out_specs=P("group"),
            check_vma=False,
        )
        text = jax.jit(run).lower(*chains._own(1 << 10, 4)).compile().as_text()
        moves = read_collectives(text, {"group": 4})
        assert [move.kind for move in moves] == [kind] * count
        assert text.count(" dot(") + text.count("custom-call(") >= 2
