"""Every step list equals psum on 2 to 16 devices, and moves the bytes of its formula."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.algorithms.non_power_of_two import floor_power_of_two
from jaxdist.collectives.algorithms.registry import SCHEDULES, make_schedule
from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.schedule_executor import run_schedule
from jaxdist.collectives.schedule_traffic import schedule_payload_bytes

pytestmark = [pytest.mark.laws, pytest.mark.slow]

POWERS_ONLY = {"swing", "striped_halving_doubling"}
CASES = [
    (name, ranks)
    for name in SCHEDULES
    for ranks in range(2, 17)
    if name not in POWERS_ONLY or ranks == floor_power_of_two(ranks)
]


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_step_list_is_psum(name, ranks):
    steps = make_schedule(name, ranks)
    mesh = jax.make_mesh(
        (ranks,),
        ("data",),
        devices=jax.devices()[:ranks],
        axis_types=(AxisType.Auto,),
    )

    def both(x):
        return run_schedule(steps, x, "data"), jax.lax.psum(x, "data")

    mapped = jax.shard_map(
        both, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )
    x = np.random.default_rng(ranks).normal(size=(ranks, 101)).astype(np.float32)
    program = jax.jit(mapped).lower(x).compile()
    ours, theirs = map(np.asarray, program(x))
    assert (ours == ours[0]).all()
    # Each of ranks - 1 additions is off by half a unit of the last place, at most.
    bound = ranks * np.finfo(np.float32).eps * np.abs(x).sum(0)
    assert (np.abs(ours - theirs) <= bound).all()
    moves = read_collectives(program.as_text(), mesh.shape)
    permutes = [m for m in moves if m.kind == "collective-permute"]
    assert sum(m.payload for m in permutes) == schedule_payload_bytes(steps, 101, 4)
