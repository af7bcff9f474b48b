"""Stages as a plan: what `jaxdist train` runs."""

import math

from jaxdist.core.pipe import Pipe
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.planner.answer import Answer


def plan_of(found: Answer) -> Plan:
    """Return the plan of some stages: one alone is data parallelism.

    Nodes are the blocks of a network: its cuts are named by them. Others run without a
    flush, as PipeDream does, which is what their times are of.
    """
    if len(found.stages) == 1:
        return Plan(mesh=MeshShape(data=found.replicas[0]))
    pipe = Pipe(cuts=found.cuts, schedule="pipedream", replicas=found.replicas)
    return Plan(mesh=MeshShape(pipe=sum(found.replicas)), pipe=pipe)


def microbatches_of(found: Answer) -> int:
    """Return microbatches of a step that all stages can deal out, and that fill them.

    With M of them S - 1 of M + S - 1 turns are waited for.
    """
    round_ = math.lcm(*found.replicas)
    wanted = 4 * sum(found.replicas)
    return -(-wanted // round_) * round_
